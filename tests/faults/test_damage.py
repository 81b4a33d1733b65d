"""Damage anywhere in a file: found, said, and every record that can still be read is kept as it was written."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.writer import BATCH, batch
from tvmstack.store import Store, open_store

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
BATCHES = 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "store.db"
    store = open_store(path, shipped=False)
    for number in range(BATCHES):
        store.add(batch("w", number))
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    return path.read_bytes()


def reopened(path: Path, data: bytes) -> set[tuple[str, str, float]]:
    path.write_bytes(data)
    store = open_store(path, shipped=False)
    found = {(r.workload, r.choice.text, r.when) for r in store.walk()}
    assert store.add(batch("later", 0)) == BATCH
    store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("pragma quick_check").fetchall() == [("ok",)]
    return found


WRITTEN = {(r.workload, r.choice.text, r.when) for n in range(BATCHES) for r in batch("w", n)}


@pytest.mark.parametrize("seed", range(12))
def test_a_destroyed_page_costs_what_was_on_it(seed: int, whole: bytes, tmp_path: Path) -> None:
    place = random.Random(seed)
    page = place.randrange(1, len(whole) // 4096)
    data = whole[: page * 4096] + place.randbytes(4096) + whole[(page + 1) * 4096 :]
    found = reopened(tmp_path / "store.db", data)
    assert found <= WRITTEN
    assert len(found) > 0.8 * len(WRITTEN)


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bits_never_give_a_record_that_was_not_written(seed: int, whole: bytes, tmp_path: Path) -> None:
    place, data = random.Random(seed), bytearray(whole)
    for _ in range(40):
        data[place.randrange(4096, len(data))] ^= 1 << place.randrange(8)
    found = reopened(tmp_path / "store.db", bytes(data))
    assert found <= WRITTEN
    assert len(found) > 0.5 * len(WRITTEN)


def test_a_file_cut_off_keeps_what_is_left(whole: bytes, tmp_path: Path) -> None:
    found = reopened(tmp_path / "store.db", whole[: len(whole) // 2])
    assert found <= WRITTEN
    assert len(found) > 0.3 * len(WRITTEN)
    assert list(tmp_path.glob("store.db.corrupt-*"))


def test_a_destroyed_first_page_costs_no_record(whole: bytes, tmp_path: Path) -> None:
    assert reopened(tmp_path / "store.db", b"\xff" * 4096 + whole[4096:]) == WRITTEN


def test_what_is_in_the_log_only_is_kept_too(tmp_path: Path, opened: Callable[[str], Store]) -> None:
    path = tmp_path / "store.db"
    store = opened(str(path))
    for number in range(20):
        store.add(batch("w", number))
    assert path.with_name("store.db-wal").stat().st_size > path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert len(opened(str(path)).records()) == 20 * BATCH


def test_a_file_damaged_while_others_have_it_open_is_mended_under_them(
    whole: bytes, tmp_path: Path, opened: Callable[[str], Store], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(whole)
    one = opened(str(path))
    assert one.add(batch("one", 0)) == BATCH
    with path.open("r+b") as file:
        file.seek(len(whole) // 2 // 4096 * 4096)
        file.write(b"\xff" * 16384)
    two = opened(str(path))
    assert "was damaged" in caplog.text
    assert one.add(batch("one", 1)) == BATCH
    assert two.add(batch("two", 0)) == BATCH
    names = [r.workload.split()[0] for r in two.walk()]
    assert (names.count("one"), names.count("two")) == (2 * BATCH, BATCH)
    assert names.count("w") > 0.8 * len(WRITTEN)


def test_a_store_deleted_or_replaced_under_a_run_costs_nothing_measured_later(
    tmp_path: Path, opened: Callable[[str], Store], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    running = opened(str(path))
    running.add(batch("w", 0))
    path.rename(tmp_path / "elsewhere.db")
    assert running.add(batch("w", 1)) == BATCH
    assert "moved or replaced" in caplog.text
    assert {r.workload.split()[1] for r in opened(str(path)).records()} == {"1"}


def test_damage_in_a_large_file_is_found_by_the_look_up_that_meets_it(
    whole: bytes, tmp_path: Path, opened: Callable[[str], Store], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tvmstack.store.salvage._READ_THROUGH_BYTES", 0)
    path = tmp_path / "store.db"
    middle = len(whole) // 2 // 4096 * 4096
    path.write_bytes(whole[:middle] + b"\xff" * 16384 + whole[middle + 16384 :])
    store = opened(str(path))
    assert "was damaged" not in caplog.text
    found = {(r.workload, r.choice.text, r.when) for r in store.walk()}
    assert "was damaged" in caplog.text
    assert found <= WRITTEN
    assert len(found) > 0.8 * len(WRITTEN)
