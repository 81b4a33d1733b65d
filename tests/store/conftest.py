"""Stores for tests: the same claims hold of a file and of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.postgres import Server, missing
from tvmstack.store import Store, open_store


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running PostgreSQL server, or a skip that says why there is none."""
    if missing():
        pytest.skip(missing())
    running = Server()
    yield running
    running.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store may be, in both kinds."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: Server = request.getfixturevalue("server")
    return server.new_database()


@pytest.fixture
def opened() -> Iterator[Callable[[str], Store]]:
    """A function that opens stores without shipped records; all are closed at the end."""
    stores: list[Store] = []

    def call(where: str) -> Store:
        stores.append(open_store(where, shipped=False))
        return stores[-1]

    yield call
    for store in stores:
        store.close()


@pytest.fixture
def store(place: str, opened: Callable[[str], Store]) -> Store:
    """An empty store."""
    return opened(place)
