"""How much a store holds, and how it gets smaller."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tvmstack.core.errors import UsageError
from tvmstack.store.database import Store
from tvmstack.store.record import OK
from tvmstack.store.schema import contexts, info, leases, records, workloads

__all__ = ["PruneRule", "Pruned", "prune", "stats"]

_DAY_S = 86_400.0
_CHUNK = 5000
# Shrinking to a quota is by estimate, so it may take more than one turn.
_QUOTA_TURNS = 4


def stats(store: Store) -> dict[str, Any]:
    """Return how much the store holds, as plain data."""
    count, good = sa.func.count(), records.c.status == OK
    groups = sa.select(records.c.context, good, count).group_by(records.c.context, good)
    held = sa.select(count).select_from(records).where(records.c.quarantine != "")

    def work(db: sa.Connection) -> dict[str, Any]:
        names = {row.digest: row.device for row in db.execute(sa.select(contexts.c.digest, contexts.c.device))}
        devices: dict[str, int] = {}
        failed = 0
        for context, is_good, number in db.execute(groups):
            devices[names[context]] = devices.get(names[context], 0) + number
            failed += 0 if is_good else number
        kernels = db.execute(sa.select(count).select_from(workloads)).scalar()
        return {"kernels": kernels, "failed": failed, "quarantined": db.execute(held).scalar(), "devices": devices}

    data = store.database.read(work)
    return {
        "store": store.name,
        "records": sum(data["devices"].values()),
        **data,
        "shipped": len(store.shipped or ()),
        "size_bytes": _size(store),
    }


def _size(store: Store) -> int:
    """Return the bytes of the file with its log, or of the tables on the server; 0 for a store in memory."""
    if store.database.is_server:
        tables = [t.name for t in (records, workloads, contexts, leases, info)]
        each = [sa.func.pg_total_relation_size(sa.cast(name, sa.Text)) for name in tables]
        return store.database.read(lambda db: sum(int(v) for v in db.execute(sa.select(*each)).one()))
    if store.path is None:
        return 0
    return sum(p.stat().st_size for p in (store.path, store.path.with_name(store.path.name + "-wal")) if p.exists())


@dataclass(frozen=True)
class PruneRule:
    """Which records may go. Conditions narrow each other; the quota then takes more, the least valuable first.

    Attributes:
        older_than_days: measured longer ago than this.
        superseded: of a key that has finalists, those that are neither that nor the default; and all of an older TVM,
            pipeline or template version where the same kernel has finalists on the same device under a later one.
        devices: measured on one of these.
        quarantined: in quarantine.
        quota_bytes: what the store may take.
    """

    older_than_days: float | None = None
    superseded: bool = False
    devices: Collection[str] = ()
    quarantined: bool = False
    quota_bytes: int | None = None

    @property
    def narrows(self) -> bool:
        """Whether a condition besides the quota is given."""
        return bool(self.older_than_days is not None or self.superseded or self.devices or self.quarantined)


@dataclass(frozen=True)
class Pruned:
    """What went, or would go: records, kernels nothing is known of any more, sizes before and after (estimated)."""

    records: int
    kernels: int
    before_bytes: int
    after_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "records": self.records,
            "kernels": self.kernels,
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
        }


def prune(store: Store, rule: PruneRule, dry_run: bool = False) -> Pruned:
    """Remove records and give their room back.

    Raises:
        UsageError: the rule says nothing.
        TuningError: the store cannot be written.
    """
    if not rule.narrows and rule.quota_bytes is None:
        raise UsageError("say what may go: --older-than, --superseded, --device, --quarantined or --quota")
    before = _size(store)
    numbers = store.database.read(lambda db: _chosen(db, rule)) if rule.narrows else []
    if dry_run:
        return _estimate(store, rule, numbers, before)
    kernels = _remove(store, numbers)
    gone = len(numbers)
    # A server's tables shrink when it sees fit, so that there the first estimate stands.
    turns = 1 if store.database.is_server else _QUOTA_TURNS
    for _ in range(turns if rule.quota_bytes is not None else 0):
        least = _over_quota(store, rule.quota_bytes or 0)
        kernels += _remove(store, least) if least else 0
        gone += len(least)
    return Pruned(gone, kernels, before, _size(store))


def _over_quota(store: Store, quota: int) -> list[int]:
    size = _size(store)
    return store.database.read(lambda db: _least(db, 1 - quota / size, ())) if size > quota else []


def _chosen(db: sa.Connection, rule: PruneRule) -> list[int]:
    query = sa.select(records.c.id).join(contexts, contexts.c.digest == records.c.context)
    if rule.older_than_days is not None:
        query = query.where(records.c.when < time.time() - rule.older_than_days * _DAY_S)
    if rule.devices:
        query = query.where(contexts.c.device.in_(rule.devices))
    if rule.quarantined:
        query = query.where(records.c.quarantine != "")
    if rule.superseded:
        query = query.where(_is_superseded())
    return list(db.execute(query.order_by(records.c.id)).scalars())


def _is_superseded() -> Any:
    final, key = records.alias(), contexts.alias()
    good = sa.and_(
        final.c.is_final, final.c.status == OK, final.c.quarantine == "", final.c.workload == records.c.workload
    )
    same_key = sa.and_(good, final.c.context == records.c.context)
    by_final = sa.and_(sa.not_(records.c.is_final | records.c.is_default), sa.exists().where(same_key))
    later = sa.and_(
        good,
        final.c.context == key.c.digest,
        final.c.context != records.c.context,
        key.c.device == contexts.c.device,
        key.c.target == contexts.c.target,
        final.c.when > records.c.when,
    )
    return sa.or_(by_final, sa.exists().where(later).correlate(records, contexts))


def _least(db: sa.Connection, share: float, without: Collection[int]) -> list[int]:
    """Return this share of the records, the least valuable: failures, then trials, then finalists; old ones first."""
    failed = sa.or_(records.c.quarantine != "", records.c.status != OK)
    value = sa.case((failed, 0), (sa.not_(records.c.is_final), 1), else_=2)
    every = db.execute(sa.select(records.c.id).order_by(value, records.c.when, records.c.id)).scalars()
    left = [number for number in every if number not in without]
    return left[: max(1, round(len(left) * min(share, 1.0)))] if left else []


def _estimate(store: Store, rule: PruneRule, numbers: Sequence[int], before: int) -> Pruned:
    total = store.database.read(lambda db: db.execute(sa.select(sa.func.count()).select_from(records)).scalar_one())
    gone = set(numbers)
    after = before * (1 - len(gone) / max(total, 1))
    if rule.quota_bytes is not None and after > rule.quota_bytes:
        share = 1 - rule.quota_bytes / after
        gone.update(store.database.read(lambda db: _least(db, share, gone)))
    kernels = store.database.read(lambda db: _orphans(db, gone))
    return Pruned(len(gone), kernels, before, round(before * (1 - len(gone) / max(total, 1))))


def _orphans(db: sa.Connection, gone: Collection[int]) -> int:
    """Count the kernels that no record is left of once `gone` are."""
    rows = db.execute(sa.select(records.c.id, records.c.workload)).all()
    kept = {row.workload for row in rows if row.id not in gone}
    return len({row.workload for row in rows} - kept)


def _remove(store: Store, numbers: Sequence[int]) -> int:
    """Delete records, then what nothing refers to any more; return how many kernels went."""

    def clean(db: sa.Connection) -> int:
        for start in range(0, len(numbers), _CHUNK):
            db.execute(records.delete().where(records.c.id.in_(numbers[start : start + _CHUNK])))
        held = sa.exists().where(records.c.workload == workloads.c.digest)
        gone = db.execute(workloads.delete().where(sa.not_(held))).rowcount
        used = list(db.execute(sa.select(records.c.context).distinct()).scalars())
        db.execute(contexts.delete().where(contexts.c.digest.not_in(used)))
        copies = [f"context {digest}" for digest in used]
        db.execute(info.delete().where(info.c.name.like("context %"), info.c.name.not_in(copies)))
        return int(gone)

    gone = store.database.write(clean)
    store.database.shrink()
    return gone
