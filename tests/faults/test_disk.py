"""A full disk: one sentence, and everything acknowledged is kept."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.writer import BATCH, FORKS, batch, check_none_lost, committed, write
from tvmstack.core.errors import TuningError
from tvmstack.store import Store, export_records, open_store

pytestmark = [pytest.mark.faults, pytest.mark.timeout(200)]


def write_until_full(store: str, writer: str, log: Path, reason: Path, limit: int | None) -> None:
    """Write batches until the disk is full, or a file has `limit` bytes; leave the error's text in `reason`."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        write(store, writer, log)
    except TuningError as err:
        reason.write_text(str(err))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def check(path: Path, reason: Path, logs: dict[str, Path], opened: Callable[[str], Store]) -> None:
    assert "disk is full" in reason.read_text()
    assert "what was measured before is safe" in reason.read_text()
    assert min(map(committed, logs.values())) > 5
    check_none_lost(opened(str(path)), logs)
    with sqlite3.connect(path) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_a_full_disk_costs_the_batch_in_flight(
    small_disk: Path, tmp_path: Path, opened: Callable[[str], Store]
) -> None:
    path, reason, logs = small_disk / "store.db", tmp_path / "reason", {"w": tmp_path / "log"}
    writer = FORKS.Process(target=write_until_full, args=(str(path), "w", logs["w"], reason, None))
    writer.start()
    writer.join()
    check(path, reason, logs, opened)
    store = opened(str(path))
    with pytest.raises(TuningError, match=r"cannot write .*: No space left"):
        export_records(store, small_disk / "out.jsonl")
    assert not list(small_disk.glob("*.jsonl")) + list(small_disk.glob(".*.part"))


def test_a_file_that_may_not_grow_costs_the_batch_in_flight(tmp_path: Path, opened: Callable[[str], Store]) -> None:
    path, reason, logs = tmp_path / "store.db", tmp_path / "reason", {"w": tmp_path / "log"}
    writer = FORKS.Process(target=write_until_full, args=(str(path), "w", logs["w"], reason, 600_000))
    writer.start()
    writer.join()
    check(path, reason, logs, opened)
    assert opened(str(path)).add(batch("later", 0)) == BATCH


def test_a_damaged_file_that_cannot_be_mended_for_want_of_room_is_left_as_it_is(
    small_disk: Path, damaged_store: Callable[..., int], tmp_path: Path
) -> None:
    path = small_disk / "store.db"
    damaged_store(path, 40)
    before = path.read_bytes()
    (small_disk / "filler").write_bytes(b"x" * ((2 << 20) - len(before) - 200_000))
    with pytest.raises(TuningError, match="is damaged and cannot be mended"):
        open_store(path)
    (small_disk / "filler").unlink()
    store = open_store(path)
    assert len(store.records()) > 100
    store.close()
