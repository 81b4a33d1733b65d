"""A damaged SQLite file: how it is found, and how every record that can still be read is kept.

The file is mended in place, by one transaction that overwrites all its pages, never by moving another file over it:
processes that have it open go on with the mended one, and a kill half-way leaves it as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tvmstack.core.errors import TuningError
from tvmstack.store.key import FIELDS
from tvmstack.store.record import Record
from tvmstack.store.rows import record_from_row

__all__ = ["file_lock", "is_damage", "require_sound", "salvage"]

_log = logging.getLogger(__name__)
# Larger files are not read through at each opening: their damage is found by the first look-up that meets it.
_READ_THROUGH_BYTES = 16 << 20
_DAMAGE = ("malformed", "not a database", "database corruption")


def is_damage(error: object) -> bool:
    """Whether an error says that the file's structure is broken."""
    return isinstance(error, sqlite3.DatabaseError) and any(word in str(error) for word in _DAMAGE)


@contextlib.contextmanager
def file_lock(path: Path | None, exclusive: bool) -> Iterator[None]:
    """Hold the lock of the folder a store is in, so that nobody writes to a file that is being mended."""
    if path is None:
        yield
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


def require_sound(path: Path) -> None:
    """Look at a file before it is opened as a store; mend it where it is damaged.

    Never opens the file but through SQLite: closing any other handle would drop the locks of this process.

    Raises:
        TuningError: it is no database, a folder, not readable, or locked.
    """
    if path.is_dir():
        raise TuningError(f"cannot open the store {path}: it is a folder; name a file")
    if not path.exists() or not path.stat().st_size:
        return
    if not os.access(path, os.R_OK):
        raise TuningError(f"cannot open the store {path}: no permission to read it; --store names another")
    try:
        sound = _is_sound(path)
    except sqlite3.DatabaseError as err:
        if "not a database" not in str(err):
            raise TuningError(f"the store {path} cannot be opened: {err}; try again or use --store") from err
        raise TuningError(
            f"{path} is not a store (or its first page is destroyed) and is left as it is; --store names another file"
        ) from err
    if not sound:
        salvage(path)


def _is_sound(path: Path) -> bool:
    with _opened(path) as db:
        try:
            db.execute("select count(*) from sqlite_master").fetchone()
            if path.stat().st_size > _READ_THROUGH_BYTES:
                return True
            return bool(db.execute("pragma quick_check(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError as err:
            if is_damage(err) and "not a database" not in str(err):
                return False
            raise


@contextlib.contextmanager
def _opened(path: Path, timeout_s: float = 10.0) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, timeout=timeout_s, isolation_level=None)) as db:
        yield db


def salvage(path: Path) -> None:
    """Set a copy of a damaged file aside and keep every record that can still be read in the file itself.

    Raises:
        TuningError: the disk is full; the file is left as it is.
    """
    from tvmstack.store.database import Store
    from tvmstack.store.engine import connect

    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    fresh = path.with_name(f".{path.name}.salvaged")
    with file_lock(path, exclusive=True):
        try:
            if _is_whole(path):
                return
            _copy(path, aside)
            _remove(fresh)
            kept, lost = _readable(aside)
            with contextlib.closing(
                Store(connect(sa.URL.create("sqlite", database=str(fresh)), None), shipped=False)
            ) as mended:
                mended.add(kept)
            _copy(fresh, path)
        except (OSError, sqlite3.Error) as err:
            raise TuningError(
                f"the store {path} is damaged and cannot be mended: {err}; --store names another"
            ) from err
        finally:
            _remove(fresh)
    words = f"kept {len(kept)} readable records" + (f", lost {lost}" if lost else "")
    _log.warning("the store %s was damaged: %s; the file as it was is %s", path, words, aside)


def _is_whole(path: Path) -> bool:
    """Whether the whole file reads well, which another process may have seen to."""
    with _opened(path) as db:
        try:
            return bool(db.execute("pragma integrity_check(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError as err:
            if is_damage(err):
                return False
            raise


def _copy(source: Path, target: Path) -> None:
    """Copy page by page, what is still in the write-ahead log included, in one transaction of the target."""
    with _opened(source) as one, _opened(target) as other:
        one.backup(other)


def _remove(path: Path) -> None:
    for tail in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + tail).unlink(missing_ok=True)


def _readable(path: Path) -> tuple[list[Record], int]:
    """Return every record that can be read whole, and how many there are of which that is not so."""
    good, bad = [], 0
    with _opened(path) as db:
        db.row_factory = sqlite3.Row
        texts = {r["digest"]: r["text"] for r in _rows(db, "workloads") if r}
        old = "device" in {row["name"] for row in _try(db, "pragma table_info(records)")}
        keys = {} if old else _contexts(db)
        for row in _rows(db, "records"):
            if row is None:
                bad += 1
                continue
            try:
                fields = {name: row[name] for name in FIELDS} if old else keys[row["context"]]
                good.append(record_from_row(dict(row), fields, texts[row["workload"]]))
            except (TypeError, KeyError, ValueError, IndexError) as err:
                _log.debug("skipping a record: %s", err)
                bad += 1
    return good, bad


def _contexts(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """Return the keys' fields by digest, from their table and from the copies in `info`."""
    found = {row["digest"]: {n: row[n] for n in FIELDS} for row in _rows(db, "contexts") if row}
    for row in _rows(db, "info"):
        if row and str(row["name"]).startswith("context "):
            with contextlib.suppress(ValueError):
                found.setdefault(row["name"].removeprefix("context "), json.loads(row["value"]))
    return found


def _rows(db: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row | None]:
    """Yield each row, None for one that is there and cannot be read.

    Rows are looked up one by one, so that a bad page costs only its own; their numbers come from walks over the table
    and its indexes, in both directions, as far as each gets.
    """
    walks = [f"select rowid from {table} not indexed order by rowid {way}" for way in ("asc", "desc")]
    for (index,) in _try(db, f"select name from pragma_index_list('{table}') where partial = 0"):
        for (column,) in _try(db, f"select name from pragma_index_info('{index}') where seqno = 0"):
            walks += [
                f'select rowid from {table} indexed by "{index}" order by "{column}" {way}' for way in ("asc", "desc")
            ]
    numbers: set[int] = set()
    for walk in walks:
        with contextlib.suppress(sqlite3.DatabaseError):
            for (number,) in db.execute(walk):
                numbers.add(number)
    for number in range(min(numbers, default=1), max(numbers, default=0) + 1):
        found = _try(db, f"select * from {table} where rowid = {number}")
        if found or number in numbers:
            yield found[0] if found else None


def _try(db: sqlite3.Connection, query: str) -> list[Any]:
    try:
        return db.execute(query).fetchall()
    except sqlite3.DatabaseError as err:
        _log.debug("skipping what cannot be read: %s", err)
        return []
