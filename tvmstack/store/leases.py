"""Claims on candidates: two tuning jobs on one store do not measure the same choice twice.

A claim is a row with an end. One that has ended counts for nothing, so a job that was killed blocks nobody for long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from tvmstack.core.kernel import Choice
from tvmstack.store.record import Record
from tvmstack.store.schema import insert, leases, records

__all__ = ["Claim", "claim", "release"]


@dataclass(frozen=True)
class Claim:
    """What a job may measure now.

    Attributes:
        choices: those it has claimed.
        measured: records of those that need no measuring any more; the rest is another job's at the moment.
    """

    choices: list[Choice]
    measured: list[Record] = field(default_factory=list)


def claim(
    db: sa.Connection, key: tuple[str, str], wanted: Sequence[str], owner: str, seconds: float
) -> tuple[set[str], set[str]]:
    """Claim choices by digest for `owner`; return those it has, and those that were measured already."""
    now = _now(db)
    workload, context = key
    held = sa.and_(records.c.workload == workload, records.c.context == context, records.c.choice_digest.in_(wanted))
    known = set(db.execute(sa.select(records.c.choice_digest).where(held)).scalars())
    open_ = [digest for digest in wanted if digest not in known]
    if open_:
        rows = [
            {"workload": workload, "context": context, "choice_digest": d, "owner": owner, "until": now + seconds}
            for d in open_
        ]
        statement = insert(db, leases)
        free = sa.or_(leases.c.until < now, leases.c.owner == owner)
        values = {"owner": statement.excluded.owner, "until": statement.excluded.until}
        keys = ["workload", "context", "choice_digest"]
        db.execute(statement.on_conflict_do_update(index_elements=keys, set_=values, where=free), rows)
    mine = sa.select(leases.c.choice_digest).where(
        leases.c.workload == workload, leases.c.context == context, leases.c.owner == owner
    )
    return set(db.execute(mine.where(leases.c.choice_digest.in_(open_))).scalars()), known


def release(db: sa.Connection, owner: str) -> None:
    """Drop the claims of `owner`, and all that have ended."""
    db.execute(leases.delete().where(sa.or_(leases.c.owner == owner, leases.c.until < _now(db))))


def _now(db: sa.Connection) -> float:
    """Return the time of the one clock that all jobs on this store share."""
    if db.dialect.name == "postgresql":
        return float(db.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())
    return time.time()
