"""How much a store holds, and how it gets smaller."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tvmstack.store.database import Store
from tvmstack.store.record import OK
from tvmstack.store.schema import contexts, records, workloads

__all__ = ["stats"]


def stats(store: Store) -> dict[str, Any]:
    """Return how much the store holds, as plain data."""
    count = sa.func.count()
    groups = sa.select(records.c.context, records.c.status == OK, count).group_by(
        records.c.context, records.c.status == OK
    )

    def work(db: sa.Connection) -> dict[str, Any]:
        names = dict(db.execute(sa.select(contexts.c.digest, contexts.c.device)).tuples().all())
        devices: dict[str, int] = {}
        failed = 0
        for context, good, number in db.execute(groups):
            devices[names[context]] = devices.get(names[context], 0) + number
            failed += 0 if good else number
        quarantined = db.execute(sa.select(count).select_from(records).where(records.c.quarantine != "")).scalar()
        kernels = db.execute(sa.select(count).select_from(workloads)).scalar()
        return {"kernels": kernels, "failed": failed, "quarantined": quarantined, "devices": devices}

    data = store.database.read(work)
    return {
        "store": store.name,
        "records": sum(data["devices"].values()),
        **data,
        "shipped": len(store.shipped or ()),
        "size_bytes": _size(store),
    }


def _size(store: Store) -> int:
    """Return the bytes of the file, of what is in memory, or of the tables on the server."""
    if store.database.is_server:
        query = sa.text(
            "SELECT sum(pg_total_relation_size(quote_ident(t)::regclass)) "
            "FROM unnest(ARRAY['records', 'workloads', 'contexts', 'leases', 'info']) AS t"
        )
        return int(store.database.read(lambda db: db.execute(query).scalar_one()))
    if store.path is None:
        return 0
    return sum(p.stat().st_size for p in (store.path, store.path.with_name(store.path.name + "-wal")) if p.exists())
