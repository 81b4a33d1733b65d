"""A damaged SQLite file: how it is found, and how every record that can still be read is kept.

The file is mended by one transaction that overwrites all its pages: processes that have it open go on with the mended
one, and a kill half-way leaves it as it was. Only where SQLite cannot even begin one does another file take its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tvmstack.core.errors import TuningError
from tvmstack.store.key import FIELDS, context_digest, workload_digest
from tvmstack.store.pages import pages_of, rows_of
from tvmstack.store.record import Record
from tvmstack.store.rows import record_from_row
from tvmstack.store.schema import records

__all__ = ["file_lock", "is_damage", "require_sound", "salvage"]

_log = logging.getLogger(__name__)
# Larger files are not read through at each opening: their damage is found by the first look-up that meets it.
_READ_THROUGH_BYTES = 16 << 20
_DAMAGE = ("malformed", "not a database", "database corruption")
_COLUMNS = tuple(column.name for column in records.columns)
_MEASURED = ("status", "median_s", "spread_s", "is_default", "is_final", "when")
_COLUMNS_1 = ("id", "workload", "template", "choice", *FIELDS, *_MEASURED)


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
        TuningError: it is no store, a folder, not readable, or locked.
    """
    if path.is_dir():
        raise TuningError(f"cannot open the store {path}: it is a folder; name a file")
    if not path.exists() or not path.stat().st_size:
        return
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        raise TuningError(
            f"cannot open the store {path}: this user may not write to it and its folder, which even reading takes; "
            "copy it and name the copy with --store"
        )
    try:
        sound = _reads_well(path, "quick_check" if path.stat().st_size <= _READ_THROUGH_BYTES else None)
    except sqlite3.DatabaseError as err:
        raise TuningError(f"the store {path} cannot be opened: {err}; try again or use --store") from err
    if not sound:
        salvage(path)


def _reads_well(path: Path, check: str | None) -> bool:
    with _opened(path) as db:
        try:
            db.execute("select count(*) from sqlite_master").fetchone()
            return check is None or bool(db.execute(f"pragma {check}(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError as err:
            if is_damage(err):
                return False
            raise


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(path, timeout=10.0, isolation_level=None))


def salvage(path: Path) -> None:
    """Set a copy of a damaged file aside and keep every record that can still be read in the file itself.

    Raises:
        TuningError: it is no store at all, or the disk is full; the file is left as it is.
    """
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    with file_lock(path, exclusive=True):
        # Another process may have mended it while we waited.
        if _reads_well(path, "integrity_check"):
            return
        try:
            _copy(path, aside)
            kept = _readable(aside)
            if not kept and not _is_sqlite(aside):
                _remove(aside)
                raise TuningError(f"{path} is not a store and is left as it is; --store names another file")
            _mend(path, kept)
        except (OSError, sqlite3.Error, subprocess.SubprocessError) as err:
            _remove(aside)
            raise TuningError(f"the store {path} is damaged and cannot be mended: {_reason(err)}") from err
    _log.warning("the store %s was damaged: kept %d readable records, the file as it was is %s", path, len(kept), aside)


def _reason(err: Exception) -> str:
    if isinstance(err, subprocess.CalledProcessError):
        return " ".join(str(err.stderr).split())
    return str(err)


def _copy(path: Path, aside: Path) -> None:
    """Copy the file and its log as they are, by another process: see `require_sound`."""
    for tail in ("", "-wal"):
        source = path.with_name(path.name + tail)
        if source.exists():
            command = ["cp", "--", str(source), str(aside) + tail]
            subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _mend(path: Path, kept: list[Record]) -> None:
    """Write the records to a new file beside `path`, then its pages over those of `path`."""
    from tvmstack.store.database import Store
    from tvmstack.store.engine import connect

    fresh = path.with_name(f".{path.name}.salvaged")
    _remove(fresh)
    try:
        with contextlib.closing(Store(connect(sa.URL.create("sqlite", database=str(fresh)), None), False)) as mended:
            mended.take(kept)
        try:
            with _opened(fresh) as source, _opened(path) as target:
                source.backup(target)
        except sqlite3.DatabaseError as err:
            if not is_damage(err):
                raise
            for tail in ("-wal", "-shm"):
                path.with_name(path.name + tail).unlink(missing_ok=True)
            os.replace(fresh, path)
    finally:
        _remove(fresh)


def _remove(path: Path) -> None:
    for tail in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + tail).unlink(missing_ok=True)


def _readable(path: Path) -> list[Record]:
    """Return every record of a file that can be read whole, from whatever page it is on; each matches its digests."""
    images = pages_of(path, path.with_name(path.name + "-wal"))
    rows = [row for image in images for row in rows_of(image)]
    texts, keys = _texts(rows), _contexts(rows)
    found: dict[tuple[str, ...], Record] = {}
    for row in rows:
        try:
            record = _record(row, texts, keys)
        except (TypeError, KeyError, ValueError, AttributeError):
            continue
        place = (record.digest, record.choice.text, *record.fields.values())
        if place not in found or (record.is_final, record.when) >= (found[place].is_final, found[place].when):
            found[place] = record
    return list(found.values())


def _texts(rows: list[list[Any]]) -> dict[str, str]:
    """Return the texts of kernels by digest, from rows of `workloads` in this schema and the first."""
    pairs = [row[1:3] if len(row) == 5 else row for row in rows if len(row) in (2, 5)]
    return {digest: text for digest, text in pairs if isinstance(text, str) and workload_digest(text) == digest}


def _contexts(rows: list[list[Any]]) -> dict[str, dict[str, str]]:
    """Return the keys' fields by digest, from rows of `contexts` and from the copies in `info`."""
    found = [dict(zip(FIELDS, row[1:], strict=True)) for row in rows if len(row) == 1 + len(FIELDS)]
    for row in rows:
        if len(row) == 2 and str(row[0]).startswith("context "):
            with contextlib.suppress(ValueError, TypeError):
                found.append(json.loads(row[1]))
    keys = [{name: str(fields.get(name)) for name in FIELDS} for fields in found if isinstance(fields, dict)]
    return {context_digest(fields): fields for fields in keys}


def _record(row: list[Any], texts: dict[str, str], keys: dict[str, dict[str, str]]) -> Record:
    """Rebuild a record from a row of `records`, whose numbers SQLite may have stored in a shorter form."""
    old = len(row) == len(_COLUMNS_1)
    named: dict[str, Any] = dict(zip(_COLUMNS_1 if old else _COLUMNS, row, strict=True))
    for name in ("median_s", "spread_s", "when"):
        named[name] = None if named[name] is None else float(named[name])
    fields = {name: str(named[name]) for name in FIELDS} if old else keys[named["context"]]
    return record_from_row(named, fields, texts[named["workload"]])
