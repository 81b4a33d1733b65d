"""Older stores: each becomes one of today's in a single transaction, and nothing of it is lost."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.store import Store, open_store, schema, stats
from tvmstack.store.schema import SCHEMA

pytestmark = pytest.mark.null
DATA = Path(__file__).parent / "data"


def old_store(path: Path, version: int) -> Path:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / f"schema-{version}.sql").read_text())
        db.execute("pragma journal_mode=wal")
    return path


def test_there_is_a_sample_of_every_older_schema() -> None:
    assert sorted(p.stem for p in DATA.glob("schema-*.sql")) == [f"schema-{v}" for v in range(1, SCHEMA)]


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_an_older_store_is_brought_up_to_date_with_all_its_records(
    version: int, tmp_path: Path, opened: Callable[[str], Store]
) -> None:
    store = opened(str(old_store(tmp_path / "old.db", version)))
    found = {(r.choice.text, r.versions, r.workload): r for r in store.records()}
    assert len(found) == 6
    best = min(found.values(), key=lambda r: r.median_s)
    assert (best.median_s, best.spread_s, best.is_final, best.when) == (1e-5, 1e-7, True, 1796091102.25)
    assert best.choice == Choice("dense", {"m": 2})
    assert not any(r.proven for r in found.values())
    failed = next(r for r in found.values() if r.status != "ok")
    assert (failed.status, failed.median_s) == ("run: crash (signal 11)", math.inf)
    assert stats(store)["devices"] == {"haswell-4c-01234567": 6}
    assert store.database.read(schema.held_schema) == SCHEMA


def test_a_migration_that_fails_leaves_the_old_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "old.db", 1)
    migrate = schema._MIGRATIONS[1]

    def fails(db: sa.Connection) -> None:
        migrate(db)
        raise TuningError("power cut")

    monkeypatch.setattr(schema, "_MIGRATIONS", {1: fails})
    with pytest.raises(TuningError, match="power cut"):
        open_store(path, shipped=False)
    with sqlite3.connect(path) as db:
        assert db.execute("select value from info where name = 'schema'").fetchone() == ("1",)
        assert db.execute("select count(*) from records").fetchone() == (6,)
        tables = db.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        assert tables == [("info",), ("records",), ("workloads",)]


def test_two_processes_that_open_an_old_store_at_once_migrate_it_once(tmp_path: Path) -> None:
    path = old_store(tmp_path / "old.db", 1)
    code = "import sys; from tvmstack.store import open_store; print(len(open_store(sys.argv[1], False).records()))"
    opening = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in opening] == ["6", "6", "6"]


def test_somebody_elses_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.db"
    with sqlite3.connect(path) as db:
        db.execute("create table bookmarks (url text)")
    with pytest.raises(TuningError, match="a database of something else"):
        open_store(path)
    with sqlite3.connect(path) as db:
        assert db.execute("select name from sqlite_master").fetchall() == [("bookmarks",)]


def test_the_fields_of_a_key_are_kept_twice(store: Store) -> None:
    fields = {name: name for name in schema.FIELDS}
    digest = store.database.write(lambda db: schema.put_context(db, fields))
    copy = store.database.read(
        lambda db: db.execute(sa.select(schema.info.c.value).where(schema.info.c.name == f"context {digest}")).scalar()
    )
    assert json.loads(copy) == fields
