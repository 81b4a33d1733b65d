"""What the tests of faults share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.writer import batch
from tests.store.conftest import opened, server
from tvmstack.store import open_store

__all__ = ["damaged_store", "opened", "server"]


@pytest.fixture
def damaged_store() -> Callable[[Path], int]:
    """A function that makes a store with a destroyed stretch in its middle, and returns how many records it had."""

    def call(path: Path, batches: int = 200) -> int:
        store = open_store(path, shipped=False)
        written = sum(store.add(batch("before", number)) for number in range(batches))
        store.close()
        with sqlite3.connect(path) as db:
            db.execute("pragma wal_checkpoint(truncate)")
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2 // 4096 * 4096)
            file.write(b"\xff" * 8192)
        return written

    return call
