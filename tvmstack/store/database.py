"""The store: records in one SQLite file or on a PostgreSQL server, and the look-ups that a build and a tuner make."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.store.engine import Database, connect
from tvmstack.store.key import (
    FIELDS,
    KeyContext,
    choice_digest,
    shape_distance,
    shape_signature,
    structure_digest,
    workload_digest,
)
from tvmstack.store.leases import Claim, claim, release
from tvmstack.store.record import OK, Explanation, Record
from tvmstack.store.rows import record_from_row, row_from_record
from tvmstack.store.salvage import require_sound
from tvmstack.store.schema import contexts, insert, put_context, put_workloads, records, workloads
from tvmstack.store.shipped import Shipped

__all__ = ["Store", "open_store"]

_log = logging.getLogger(__name__)

# A choice must beat the default by this much to be used before both were measured in turns.
_NOISE = 0.03
_CHUNK = 1000
# How many finished records of other shapes are compared by shape.
_SHAPES = 400
_WHOLE = (
    sa.select(records, workloads.c.text, *(contexts.c[name] for name in FIELDS))
    .join(workloads, workloads.c.digest == records.c.workload)
    .join(contexts, contexts.c.digest == records.c.context)
)
_BY_NUMBER = (records.c.id,)
_USABLE = sa.and_(records.c.status == OK, records.c.quarantine == "")


def _contenders() -> sa.Select[Any]:
    """Return the query for what `best` decides between: of a key the finalists, the default and the fastest."""
    key = (records.c.workload == sa.bindparam("workload"), records.c.context == sa.bindparam("context"))
    fastest = sa.select(sa.func.min(records.c.median_s)).where(*key, _USABLE).scalar_subquery()
    return _WHOLE.where(
        *key, _USABLE, sa.or_(records.c.is_final, records.c.is_default, records.c.median_s == fastest)
    ).order_by(records.c.id)


# Made once: SQLAlchemy takes longer to put a query together than a database to answer it.
_CONTENDERS = _contenders()


def open_store(url: str | Path | None = None, shipped: bool = True) -> Store:
    """Open the store; a file is made where there is none, and mended where it is damaged.

    Args:
        url: a file, or a URL like postgresql://user@host/name; None for $TVMSTACK_STORE or ~/.cache/tvmstack/store.db.
        shipped: whether to read the shipped records as well.

    Raises:
        UsageError: the URL is not understood.
        SetupError: the driver for PostgreSQL is not installed.
        TuningError: the store cannot be opened, is locked, or is of a newer schema.
    """
    text = str(url or os.environ.get("TVMSTACK_STORE") or Path.home() / ".cache" / "tvmstack" / "store.db")
    if "://" in text:
        return Store(connect(text, None), shipped)
    if text == ":memory:":
        return Store(connect("sqlite://", None), shipped)
    path = Path(text).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise TuningError(f"cannot open the store {path}: {err.strerror}; --store names another") from err
    require_sound(path)
    return Store(connect(sa.URL.create("sqlite", database=str(path)), path), shipped)


class Store:
    """A database of records. Made by `open_store`.

    Look-ups see the shipped records as well; a damaged record is left aside and told once.
    """

    def __init__(self, database: Database, shipped: bool) -> None:
        self.database = database
        self.name = database.name
        self.shipped = Shipped() if shipped else None
        self._told = False

    @property
    def path(self) -> Path | None:
        """The file; None on a server and in memory."""
        return self.database.path

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def add(self, records_: Iterable[Record]) -> int:
        """Write records in one transaction; one of the same key and choice is replaced. Return how many.

        Raises:
            TuningError: locked, full, or unreadable; none of these records is written then.
        """
        batch = list(records_)
        self._write(batch, keep_better=False)
        return len(batch)

    def take(self, records_: Iterable[Record]) -> tuple[int, int]:
        """Write records from elsewhere, a thousand in a transaction; return how many there were and how many are new.

        Of two records of the same key and choice the finalist stays, else the later one.
        """
        total, before = 0, self._count()
        for batch in _chunks(records_):
            self._write(batch, keep_better=True)
            total += len(batch)
        return total, self._count() - before

    def _write(self, batch: Sequence[Record], keep_better: bool) -> None:
        if not batch:
            return
        rows = {(r["workload"], r["context"], r["choice_digest"]): r for r in map(row_from_record, batch)}
        # Everybody writes in the same order, so that two writers on a server do not wait for each other in a ring.
        ordered = [rows[key] for key in sorted(rows)]
        texts = {r.digest: r.workload for r in batch}
        keys = {tuple(r.fields.values()): r.fields for r in batch}

        def work(db: sa.Connection) -> None:
            put_workloads(db, texts)
            for key in sorted(keys):
                put_context(db, keys[key])
            statement = insert(db, records)
            new = {c.name: statement.excluded[c.name] for c in records.c if c.name != "id"}
            later = sa.tuple_(new["is_final"], new["when"]) > sa.tuple_(records.c.is_final, records.c.when)
            db.execute(
                statement.on_conflict_do_update(
                    index_elements=["workload", "context", "choice_digest"],
                    set_=new,
                    where=later if keep_better else None,
                ),
                ordered,
            )

        self.database.write(work)

    def trials(self, kernel: Kernel, context: KeyContext) -> list[Record]:
        """Return every record of exactly this key, failed ones included; a quarantined one counts as failed."""
        return [
            replace(r, status=f"quarantined: {r.quarantine}", median_s=math.inf) if r.quarantine else r
            for r in self._find(*_key(kernel, context))
            if r.workload == kernel.workload
        ]

    def best(self, kernel: Kernel, context: KeyContext) -> Record | None:
        """Return the record to build with, or None: the fastest of the finalists, else of all that beat the default."""
        key = {"workload": workload_digest(kernel.workload), "context": context.digest}
        found = [record for _, record in self._rows(_CONTENDERS, key)]
        mine = [r for r in found if r.workload == kernel.workload]
        return _best(mine) or _best(
            [
                r
                for r in self._shipped_alike(kernel)
                if r.workload == kernel.workload and r.status == OK and not r.differs_in(context.fields)
            ]
        )

    def neighbours(self, kernel: Kernel, context: KeyContext, limit: int = 8) -> list[Record]:
        """Return good records to start a search from, the most alike first.

        These are of this kernel under another key (another device, an older TVM, other names of variables,
        MetaSchedule's own), then of other shapes of its template on this device.
        """
        structure = structure_digest(kernel.workload)
        alike = sa.select(workloads.c.digest).where(workloads.c.structure == structure)
        # Two queries instead of one: a server that has no statistics yet would walk all records for the one.
        digests = self.database.read(lambda db: db.execute(alike).scalars().all())
        others = (records.c.workload.in_(digests), _USABLE, sa.not_(sa.and_(*_key(kernel, context))))
        elsewhere = self._find(*others, order=(records.c.is_final.desc(), records.c.median_s), limit=200)
        elsewhere += [r for r in self._shipped_alike(kernel) if r.status == OK and r.differs_in(context.fields)]
        elsewhere.sort(key=lambda r: (len(r.differs_in(context.fields)), not r.is_final, r.median_s))
        missing = limit - len(elsewhere)
        return elsewhere[:limit] + (self._other_shapes(kernel, context, structure, missing) if missing > 0 else [])

    def _other_shapes(self, kernel: Kernel, context: KeyContext, structure: str, limit: int) -> list[Record]:
        here = sa.select(contexts.c.digest).where(contexts.c.device == context.device.id)
        latest = (
            sa.select(records.c.id, records.c.workload, records.c.is_default, records.c.median_s)
            .where(records.c.template == kernel.template, records.c.is_final, _USABLE, records.c.context.in_(here))
            .order_by(records.c.when.desc())
            .limit(_SHAPES)
            .subquery()
        )
        query = sa.select(latest, workloads.c.signature).join(workloads, workloads.c.digest == latest.c.workload)
        mine = shape_signature(kernel.workload)
        rows = self.database.read(lambda db: db.execute(query.where(workloads.c.structure != structure)).all())
        # A default may be a finalist too: of one neighbour the winners come first, the fastest of them foremost.
        ranked = [
            (shape_distance(mine, row.signature), row.workload, row.is_default, row.median_s, row) for row in rows
        ]
        near = [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])[:limit]]
        return self._by_number([row.id for row in near])

    def explain(self, kernel: Kernel, context: KeyContext) -> Explanation:
        """Say why a look-up gives what it gives."""
        record = self.best(kernel, context)
        if record is not None:
            first = "" if record.proven else ", to be replayed before it is used"
            return Explanation(record, None, (), f"hit ({record.source}){first}")
        bad = self._find(*_key(kernel, context), records.c.quarantine != "", limit=1)
        if bad:
            return Explanation(None, bad[0], (), f"quarantined: {bad[0].quarantine}")
        near = next(iter(self.neighbours(kernel, context, 1)), None)
        if near is None:
            return Explanation(None, None, (), "never measured, nor any other shape of its template")
        if structure_digest(near.workload) != structure_digest(kernel.workload):
            return Explanation(
                None, near, ("workload",), f"never measured; nearest: another shape of {kernel.template}"
            )
        names = tuple(near.differs_in(context.fields))
        words = [f"other {n}: {getattr(near, n)} -> {context.fields[n]}" for n in names]
        if near.workload != kernel.workload:
            names, words = ("workload", *names), ["other names in its text", *words]
        return Explanation(None, near, names, "same kernel, " + "; ".join(words))

    def quarantine(self, record: Record, reason: str) -> None:
        """Keep a record from being used, with the reason; measuring its choice again takes it out."""
        self._mark(record, {"quarantine": reason, "proven": False})

    def prove(self, record: Record) -> None:
        """Note that a record was replayed here and ran."""
        self._mark(record, {"proven": True})

    def _mark(self, record: Record, values: Mapping[str, Any]) -> None:
        row = row_from_record(record)
        place = sa.and_(*(records.c[n] == row[n] for n in ("workload", "context", "choice_digest", "seal")))
        self.database.write(lambda db: db.execute(records.update().where(place).values(**values)))

    def claim(
        self, kernel: Kernel, context: KeyContext, choices: Sequence[Choice], owner: str, seconds: float
    ) -> Claim:
        """Take choices to measure, so that nobody else measures them meanwhile.

        Args:
            kernel: whose choices they are.
            context: the rest of the key.
            choices: what the caller would measure next.
            owner: a name of the caller that nobody else has.
            seconds: how long the claim holds; it ends with `release_claims` or with the process at the latest then.

        Returns:
            The choices the caller has now, and the records of those that were measured meanwhile.
        """
        if not choices:
            return Claim([])
        by_digest = {choice_digest(c.text): c for c in choices}
        key = (workload_digest(kernel.workload), context.digest)
        mine, known = self.database.write(lambda db: claim(db, key, sorted(by_digest), owner, seconds))
        measured = self._find(*_key(kernel, context), records.c.choice_digest.in_(known)) if known else []
        return Claim([c for d, c in by_digest.items() if d in mine], measured)

    def release_claims(self, owner: str) -> None:
        """Give up everything `owner` has claimed."""
        self.database.write(lambda db: release(db, owner))

    def records(self, limit: int | None = None, quarantined: bool = False) -> list[Record]:
        """Return records, the newest first; or those in quarantine only."""
        conditions = [records.c.quarantine != ""] if quarantined else []
        return self._find(*conditions, order=(records.c.when.desc(), records.c.id.desc()), limit=limit)

    def walk(self, *conditions: Any) -> Iterator[Record]:
        """Yield records in an order that depends on nothing but their keys, without holding them all."""
        key = (records.c.template, records.c.workload, records.c.context, records.c.choice_digest)
        query = sa.select(records.c.id, *key).join(contexts, contexts.c.digest == records.c.context).where(*conditions)
        rows = self.database.read(lambda db: db.execute(query).all())
        # Sorted here, since servers sort text by the rules of some language.
        numbers = [row[0] for row in sorted(rows, key=lambda row: tuple(row[1:]))]
        for start in range(0, len(numbers), _CHUNK):
            yield from self._by_number(numbers[start : start + _CHUNK])

    def _by_number(self, numbers: Sequence[int]) -> list[Record]:
        """Return the records of these numbers in this order."""
        found = dict(self._rows(_WHOLE.where(records.c.id.in_(numbers))))
        return [found[number] for number in numbers if number in found]

    def _find(self, *conditions: Any, order: Sequence[Any] = _BY_NUMBER, limit: int | None = None) -> list[Record]:
        query = _WHOLE.where(*conditions).order_by(*order).limit(limit)
        return [record for _, record in self._rows(query)]

    def _rows(self, query: sa.Select[Any], values: Mapping[str, Any] | None = None) -> list[tuple[int, Record]]:
        """Return numbers and records of a query on `_WHOLE`; what does not match its seal is left out."""
        rows = self.database.read(lambda db: db.execute(query, values).mappings().all())
        found = []
        for row in rows:
            plain = dict(row)
            try:
                found.append((plain["id"], record_from_row(plain, plain, plain["text"])))
            except (ValueError, TypeError, KeyError) as err:
                self._tell_damaged(err)
        return found

    def _tell_damaged(self, err: Exception) -> None:
        if not self._told:
            _log.warning("the store %s holds damaged records, which are left aside: %s", self.name, err)
        self._told = True

    def shipped_records(self) -> list[Record]:
        """Return the records that come with tvmstack; none where the store was opened without them."""
        return self.shipped.all() if self.shipped else []

    def _shipped_alike(self, kernel: Kernel) -> list[Record]:
        return self.shipped.alike(structure_digest(kernel.workload)) if self.shipped else []

    def _count(self) -> int:
        query = sa.select(sa.func.count()).select_from(records)
        return int(self.database.read(lambda db: db.execute(query).scalar_one()))


def _key(kernel: Kernel, context: KeyContext) -> tuple[Any, Any]:
    return records.c.workload == workload_digest(kernel.workload), records.c.context == context.digest


def _best(usable: Sequence[Record]) -> Record | None:
    if not usable:
        return None
    finals = [r for r in usable if r.is_final]
    if finals:
        return min(finals, key=lambda r: r.median_s)
    best = min(usable, key=lambda r: r.median_s)
    default = next((r for r in usable if r.is_default), None)
    if default is not None and best.median_s > default.median_s * (1 - _NOISE):
        return default
    return best


def _chunks(items: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
