"""The store: one SQLite file, safe with several processes and with a kill at any moment, or an SQLAlchemy URL."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import logging
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.store.key import KeyContext, workload_digest
from tvmstack.store.record import OK, Explanation, Record, record_from_line

__all__ = ["SCHEMA", "Store", "open_store"]

_log = logging.getLogger(__name__)

SCHEMA = 1
_BUSY_MS = 10_000
# A choice must beat the default by this much to be used before both were measured in turns.
_NOISE = 0.03

_meta = sa.MetaData()
_info = sa.Table("info", _meta, sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.String))
_workloads = sa.Table(
    "workloads", _meta, sa.Column("digest", sa.String, primary_key=True), sa.Column("text", sa.Text, nullable=False)
)
_records = sa.Table(
    "records",
    _meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("workload", sa.String, nullable=False, index=True),
    sa.Column("template", sa.String, nullable=False, index=True),
    sa.Column("choice", sa.Text, nullable=False),
    *(
        sa.Column(n, sa.String, nullable=False)
        for n in ("device", "target", "versions", "pipeline", "schedules", "protocol")
    ),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("median_s", sa.Float),
    sa.Column("spread_s", sa.Float, nullable=False),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("when", sa.Float, nullable=False),
)
_KEY = ("workload", "choice", "device", "target", "versions", "pipeline", "schedules", "protocol")
_unique = sa.Index("one_per_key", *(_records.c[n] for n in _KEY), unique=True)


def open_store(url: str | Path | None = None, shipped: bool = True) -> Store:
    """Open the store.

    Args:
        url: a file, or an SQLAlchemy URL; None for $TVMSTACK_STORE or ~/.cache/tvmstack/store.db.
        shipped: whether to read the shipped records as well.

    Raises:
        TuningError: the store cannot be opened, is locked, or is of a newer schema.
    """
    text = str(url or os.environ.get("TVMSTACK_STORE") or Path.home() / ".cache" / "tvmstack" / "store.db")
    path = None if "://" in text or text == ":memory:" else Path(text).expanduser()
    if path is not None:
        _prepare(path)
    return Store(text if "://" in text else f"sqlite:///{path or ':memory:'}", path, shipped)


def _prepare(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise TuningError(f"cannot open the store {path}: {err.strerror}; --store names another") from err
    if path.is_dir():
        raise TuningError(f"cannot open the store {path}: it is a folder; name a file")
    if path.exists() and path.stat().st_size and not _is_sqlite(path):
        raise TuningError(f"{path} is not a store and is left as it is; --store names another file")
    if path.exists() and path.stat().st_size and not _is_sound(path):
        _salvage(path)


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _is_sound(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_MS / 1e3)) as db:
            return bool(db.execute("pragma quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError as err:
        if "locked" in str(err):
            raise TuningError(f"the store {path} is locked by another process; try again or use --store") from err
        return "unable to open" in str(err) or "readonly" in str(err)
    except sqlite3.DatabaseError:
        return False


def _salvage(path: Path) -> None:
    """Set a damaged file aside and keep every record that can still be read."""
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    os.replace(path, aside)
    for tail in ("-wal", "-shm"):
        path.with_name(path.name + tail).unlink(missing_ok=True)
    saved = list(_readable(aside))
    with contextlib.closing(Store(f"sqlite:///{path}", path, shipped=False)) as fresh:
        fresh.add(saved)
    _log.warning("the store %s was damaged: kept %d readable records, the old file is %s", path, len(saved), aside)


def _readable(path: Path) -> Iterator[Record]:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            texts = dict(_rows(db, "select digest, text from workloads"))
            for (rowid,) in _rows(db, "select id from records"):
                for row in _rows(db, f"select * from records where id = {int(rowid)}"):
                    if workload_digest(texts.get(row["workload"], "")) == row["workload"]:
                        yield _record(dict(row), texts[row["workload"]])
    except (sqlite3.DatabaseError, ValueError, KeyError) as err:
        _log.warning("no more can be read from %s: %s", path, err)


def _rows(db: sqlite3.Connection, query: str) -> Iterator[Any]:
    try:
        yield from db.execute(query)
    except sqlite3.DatabaseError as err:
        _log.warning("skipping what cannot be read: %s", err)


def _record(row: Mapping[str, Any], text: str, source: str = "tuned") -> Record:
    fields = {k: row[k] for k in Record.__dataclass_fields__ if k in row and k not in ("workload", "choice", "source")}
    fields["median_s"] = float("inf") if row["median_s"] is None else float(row["median_s"])
    fields["is_default"], fields["is_final"] = bool(row["is_default"]), bool(row["is_final"])
    return Record(workload=text, choice=Choice.from_json(json.loads(row["choice"])), source=source, **fields)


class Store:
    """A database of records. Made by `open_store`."""

    def __init__(self, url: str, path: Path | None, shipped: bool) -> None:
        self.path = path
        self.name = str(path or url)
        self._shipped = _shipped_records() if shipped else {}
        options = {"connect_args": {"timeout": _BUSY_MS / 1e3}} if url.startswith("sqlite") else {}
        self._engine = sa.create_engine(url, **options)
        if url.startswith("sqlite"):
            sa.event.listen(self._engine, "connect", _configure)
        with self._words("opened"):
            _meta.create_all(self._engine)
            self._check_schema()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _words(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OperationalError as err:
            reason = str(err.orig)
            if "locked" in reason or "busy" in reason:
                reason = "it is locked by another process; try again or use --store"
            elif "full" in reason:
                reason = "the disk is full; what was measured before is safe"
            raise TuningError(f"the store {self.name} cannot be {doing}: {reason}") from err
        except DatabaseError as err:
            raise TuningError(f"the store {self.name} cannot be {doing}: {err.orig}") from err

    def _check_schema(self) -> None:
        with self._engine.begin() as db:
            held = db.execute(sa.select(_info.c.value).where(_info.c.name == "schema")).scalar()
            if held is None:
                db.execute(_info.insert().values(name="schema", value=str(SCHEMA)))
            elif int(held) > SCHEMA:
                raise TuningError(f"the store {self.name} has schema {held}, this tvmstack knows {SCHEMA}: upgrade")

    def add(self, records: Iterable[Record]) -> int:
        """Write records in one transaction; one of the same key and choice is replaced. Return how many.

        Raises:
            TuningError: locked, full, or unreadable; none of these records is written then.
        """
        batch = list(records)
        if not batch:
            return 0
        with self._words("written"), self._engine.begin() as db:
            for record in batch:
                row = _row(record)
                _put(db, _workloads, {"digest": row["workload"], "text": record.workload}, ("digest",))
                _put(db, _records, row, _KEY)
        return len(batch)

    def trials(self, kernel: Kernel, context: KeyContext) -> list[Record]:
        """Return every record of exactly this key, failed ones included."""
        return [r for r in self._of_workload(kernel) if not r.differs_in(context.fields)]

    def best(self, kernel: Kernel, context: KeyContext) -> Record | None:
        """Return the record to build with, or None: the fastest of the finalists, else of all that beat the default."""
        mine = [r for r in self.trials(kernel, context) if r.status == OK]
        shipped = [r for r in self._shipped.get(workload_digest(kernel.workload), ()) if r.workload == kernel.workload]
        mine = mine or [r for r in shipped if r.status == OK and not r.differs_in(context.fields)]
        if not mine:
            return None
        finals = [r for r in mine if r.is_final]
        if finals:
            return min(finals, key=lambda r: r.median_s)
        best = min(mine, key=lambda r: r.median_s)
        default = next((r for r in mine if r.is_default), None)
        if default is not None and best.median_s > default.median_s * (1 - _NOISE):
            return default
        return best

    def neighbours(self, kernel: Kernel, context: KeyContext, limit: int = 8) -> list[Record]:
        """Return good records to start a search from: this kernel elsewhere, then other shapes of its template here."""
        elsewhere = [r for r in self._of_workload(kernel) if r.status == OK and r.differs_in(context.fields)]
        query = (
            sa.select(_records, _workloads.c.text)
            .join(_workloads, _workloads.c.digest == _records.c.workload)
            .where(_records.c.template == kernel.template, _records.c.status == OK)
            .where(_records.c.device == context.device.id, _records.c.is_final)
            .where(_records.c.workload != workload_digest(kernel.workload))
            .order_by(_records.c.when.desc())
            .limit(limit)
        )
        with self._words("read"), self._engine.connect() as db:
            others = [_record(dict(row), row["text"]) for row in db.execute(query).mappings()]
        return (sorted(elsewhere, key=lambda r: r.median_s) + others)[:limit]

    def explain(self, kernel: Kernel, context: KeyContext) -> Explanation:
        """Say why a look-up gives what it gives."""
        record = self.best(kernel, context)
        if record is not None:
            return Explanation(record, None, (), f"hit ({record.source})")
        same = [r for r in self._of_workload(kernel) if r.status == OK]
        same += self._shipped.get(workload_digest(kernel.workload), [])
        if same:
            near = min(same, key=lambda r: (len(r.differs_in(context.fields)), r.median_s))
            names = near.differs_in(context.fields)
            words = "; ".join(f"other {n}: {getattr(near, n)} -> {context.fields[n]}" for n in names)
            return Explanation(None, near, tuple(names), f"same kernel, {words}")
        others = self.neighbours(kernel, context, 1)
        if others:
            return Explanation(
                None, others[0], ("workload",), f"never measured; nearest: another shape of {kernel.template}"
            )
        return Explanation(None, None, (), "never measured, nor any other shape of its template")

    def _of_workload(self, kernel: Kernel) -> list[Record]:
        digest = workload_digest(kernel.workload)
        query = (
            sa.select(_records, _workloads.c.text)
            .join(_workloads, _workloads.c.digest == _records.c.workload)
            .where(_records.c.workload == digest)
        )
        with self._words("read"), self._engine.connect() as db:
            rows = [dict(row) for row in db.execute(query).mappings()]
        return [_record(row, kernel.workload) for row in rows if row["text"] == kernel.workload]

    def records(self, limit: int | None = None) -> list[Record]:
        """Return records, the newest first."""
        query = (
            sa.select(_records, _workloads.c.text)
            .join(_workloads, _workloads.c.digest == _records.c.workload)
            .order_by(_records.c.when.desc(), _records.c.id.desc())
            .limit(limit)
        )
        with self._words("read"), self._engine.connect() as db:
            return [_record(dict(row), row["text"]) for row in db.execute(query).mappings()]

    def stats(self) -> dict[str, Any]:
        """Return how much the store holds, as plain data."""
        count = sa.func.count()
        with self._words("read"), self._engine.connect() as db:
            per_device = db.execute(sa.select(_records.c.device, count).group_by(_records.c.device))
            devices: dict[str, int] = {row[0]: row[1] for row in per_device}
            failed = db.execute(sa.select(count).select_from(_records).where(_records.c.status != OK)).scalar()
            kernels = db.execute(sa.select(count).select_from(_workloads)).scalar()
        return {
            "store": self.name,
            "records": sum(devices.values()),
            "kernels": kernels,
            "failed": failed,
            "devices": devices,
            "shipped": sum(len(v) for v in self._shipped.values()),
            "size_bytes": self.path.stat().st_size if self.path and self.path.exists() else 0,
        }

    def export(self, path: Path, finals_only: bool = False, devices: Collection[str] = ()) -> int:
        """Write records as JSON lines, oldest first, all or nothing; return how many.

        Raises:
            TuningError: the file cannot be written.
        """
        chosen = [
            r
            for r in reversed(self.records())
            if (r.is_final or not finals_only) and (not devices or r.device in devices)
        ]
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text("".join(f"{r.to_line()}\n" for r in chosen))
            os.replace(part, path)
        except OSError as err:
            part.unlink(missing_ok=True)
            raise TuningError(f"cannot write {path}: {err.strerror}") from err
        return len(chosen)

    def import_(self, path: Path) -> tuple[int, list[str]]:
        """Read records from JSON lines; return how many, and a line about each that was refused.

        Raises:
            TuningError: the file cannot be read.
        """
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError as err:
            raise TuningError(f"cannot read {path}: {err.strerror}") from err
        good, refused = _parse(lines, "tuned")
        return self.add(good), refused


def _parse(lines: Iterable[str], source: str) -> tuple[list[Record], list[str]]:
    good, refused = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            good.append(record_from_line(line, source))
        except TuningError as err:
            refused.append(f"line {number}: {err}")
    return good, refused


def _shipped_records() -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    folder = importlib.resources.files("tvmstack").joinpath("tuning_logs")
    for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
        if file.name.endswith(".jsonl"):
            good, refused = _parse(file.read_text().splitlines(), "shipped")
            for line in refused:
                _log.warning("shipped records %s, %s", file.name, line)
            for record in good:
                found.setdefault(record.digest, []).append(record)
    return found


def _row(record: Record) -> dict[str, Any]:
    return {
        "workload": record.digest,
        "template": record.template,
        "choice": record.choice.text,
        **{n: getattr(record, n) for n in ("device", "target", "versions", "pipeline", "schedules", "protocol")},
        "status": record.status,
        "median_s": record.median_s if record.status == OK else None,
        "spread_s": record.spread_s,
        "is_default": record.is_default,
        "is_final": record.is_final,
        "when": record.when or time.time(),
    }


def _put(db: sa.Connection, table: sa.Table, row: Mapping[str, Any], key: tuple[str, ...]) -> None:
    """Insert a row, or replace the one of the same key."""
    match = sa.and_(*(table.c[k] == row[k] for k in key))
    if db.execute(sa.update(table).where(match).values(**row)).rowcount == 0:
        db.execute(table.insert().values(**row))


def _configure(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode=wal")
    cursor.execute("pragma synchronous=normal")
    cursor.execute(f"pragma busy_timeout={_BUSY_MS}")
    cursor.close()
