"""kill -9 at any moment: nothing acknowledged is lost, nothing is damaged."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.writer import FORKS, check_none_lost, write
from tests.postgres import Server
from tvmstack.store import Store

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
ROUNDS = 100


def start(where: str, name: str, log: Path) -> Any:
    process = FORKS.Process(target=write, args=(where, name, log))
    process.start()
    return process


def kill_all(where: str, folder: Path, rounds: int, longest_s: float) -> dict[str, Path]:
    """Start two writers and kill each at a random moment, from its very start on; return their logs by name."""
    moments, logs = random.Random(1), {}
    for number in range(rounds):
        names = [f"r{number}w{which}" for which in range(2)]
        logs.update({name: folder / name for name in names})
        writers = [start(where, name, logs[name]) for name in names]
        for writer in moments.sample(writers, 2):
            time.sleep(moments.uniform(0, longest_s))
            writer.kill()
        for writer in writers:
            writer.join()
            assert writer.exitcode == -9
    return logs


def test_two_hundred_kills_of_two_writers_on_one_file_lose_nothing_and_damage_nothing(
    tmp_path: Path, opened: Callable[[str], Store], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    logs = kill_all(str(path), tmp_path, ROUNDS, longest_s=0.25)
    store = opened(str(path))
    found = check_none_lost(store, logs)
    assert found > 20 * ROUNDS, "the writers were killed before they wrote: the test shows nothing"
    assert "damaged" not in caplog.text
    with sqlite3.connect(path) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_killed_clients_of_a_server_lose_nothing(
    server: Server, tmp_path: Path, opened: Callable[[str], Store]
) -> None:
    where = server.new_database()
    logs = kill_all(where, tmp_path, 20, longest_s=0.4)
    assert check_none_lost(opened(where), logs) > 100


def test_a_kill_in_the_middle_of_a_repair_leaves_the_file_to_be_repaired_again(
    tmp_path: Path, opened: Callable[[str], Store], damaged_store: Callable[[Path], int]
) -> None:
    path = tmp_path / "store.db"
    written = damaged_store(path)
    moments = random.Random(2)
    for _ in range(15):
        opening = start(str(path), "later", tmp_path / "later")
        time.sleep(moments.uniform(0.0, 0.3))
        opening.kill()
        opening.join()
    store = opened(str(path))
    names = [r.workload.split()[0] for r in store.walk()]
    assert names.count("before") > written / 2
