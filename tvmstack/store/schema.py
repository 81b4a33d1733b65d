"""The tables of a store, and how one of an older version becomes one of this version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from tvmstack.core.errors import TuningError
from tvmstack.store.key import FIELDS, choice_digest, context_digest, shape_signature, structure_digest

__all__ = [
    "SCHEMA",
    "contexts",
    "held_schema",
    "info",
    "insert",
    "leases",
    "prepare_schema",
    "put_context",
    "put_workloads",
    "records",
    "workloads",
]

SCHEMA = 2
_ADVISORY_LOCK = 7361

_meta = sa.MetaData()
info = sa.Table("info", _meta, sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.Text))
contexts = sa.Table(
    "contexts",
    _meta,
    sa.Column("digest", sa.String, primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in FIELDS),
)
workloads = sa.Table(
    "workloads",
    _meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.String, nullable=False, unique=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("structure", sa.String, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Index("workload_structure", "structure"),
)
records = sa.Table(
    "records",
    _meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("workload", sa.String, nullable=False),
    sa.Column("context", sa.String, nullable=False),
    sa.Column("choice_digest", sa.String, nullable=False),
    sa.Column("template", sa.String, nullable=False),
    sa.Column("choice", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("median_s", sa.Double),
    sa.Column("spread_s", sa.Double, nullable=False),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("when", sa.Double, nullable=False),
    sa.Column("proven", sa.Boolean, nullable=False),
    sa.Column("quarantine", sa.Text, nullable=False),
    sa.Column("seal", sa.String, nullable=False),
)
# Look-ups are by workload, then context; `neighbours` needs the finalists of a template. More indexes tempt a planner
# to walk one of them in its order instead, which made look-ups many times as slow.
sa.Index("record_key", records.c.workload, records.c.context, records.c.choice_digest, unique=True)
sa.Index(
    "record_finals",
    records.c.template,
    records.c.context,
    sqlite_where=records.c.is_final,
    postgresql_where=records.c.is_final,
)
leases = sa.Table(
    "leases",
    _meta,
    sa.Column("workload", sa.String, primary_key=True),
    sa.Column("context", sa.String, primary_key=True),
    sa.Column("choice_digest", sa.String, primary_key=True),
    sa.Column("owner", sa.String, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
)


def prepare_schema(db: sa.Connection, name: str) -> None:
    """Make the tables, or bring those of an older version up to date, within the transaction of `db`.

    Raises:
        TuningError: the database is not a store, or one of a newer tvmstack.
    """
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    held = held_schema(db)
    if held is None:
        strangers = sorted(sa.inspect(db).get_table_names())
        if strangers:
            raise TuningError(
                f"{name} is a database of something else (tables {', '.join(strangers[:4])}) and is left as it is; "
                "--store names another"
            )
        _meta.create_all(db, checkfirst=False)
        db.execute(info.insert().values(name="schema", value=str(SCHEMA)))
        return
    if held > SCHEMA:
        raise TuningError(
            f"the store {name} has schema {held}, this tvmstack knows {SCHEMA}: "
            "upgrade tvmstack, or name another --store"
        )
    for version in range(held, SCHEMA):
        _MIGRATIONS[version](db)
        db.execute(info.update().where(info.c.name == "schema").values(value=str(version + 1)))


def held_schema(db: sa.Connection) -> int | None:
    """Return the version of the tables, None where there are none."""
    if not sa.inspect(db).has_table("info"):
        return None
    value = db.execute(sa.select(info.c.value).where(info.c.name == "schema")).scalar()
    return None if value is None else int(value)


def put_workloads(db: sa.Connection, texts: Mapping[str, str]) -> None:
    """Keep the texts of workloads by digest; those held already stay."""
    rows = [
        {"digest": digest, "text": text, "structure": structure_digest(text), "signature": shape_signature(text)}
        for digest, text in sorted(texts.items())
    ]
    db.execute(insert(db, workloads).on_conflict_do_nothing(index_elements=["digest"]), rows)


def put_context(db: sa.Connection, fields: Mapping[str, str]) -> str:
    """Keep the fields of a key under their digest, and return it.

    They are written twice, on different pages: a page of this table is the only one whose loss would cost all records.
    """
    digest = context_digest(fields)
    row = {name: fields[name] for name in FIELDS}
    db.execute(insert(db, contexts).on_conflict_do_nothing(index_elements=["digest"]), [{"digest": digest, **row}])
    copy = {"name": f"context {digest}", "value": json.dumps(row, sort_keys=True)}
    db.execute(insert(db, info).on_conflict_do_nothing(index_elements=["name"]), [copy])
    return digest


def insert(db: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT of the connection's dialect, which knows ON CONFLICT."""
    from sqlalchemy.dialects import postgresql, sqlite

    return (postgresql if db.dialect.name == "postgresql" else sqlite).insert(table)


def _from_1(db: sa.Connection) -> None:
    """Give each key's fields a row of their own, seal records; where an old one came from is unknown: not proven."""
    from tvmstack.store.record import OK, seal

    for table in ("records", "workloads"):
        db.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {table}_1")
    _meta.create_all(db, tables=[contexts, workloads, records, leases], checkfirst=False)
    texts = {row.digest: row.text for row in db.execute(sa.text("SELECT digest, text FROM workloads_1"))}
    if texts:
        put_workloads(db, texts)
    known: dict[tuple[str, ...], str] = {}
    old = db.execute(sa.text("SELECT * FROM records_1 ORDER BY id")).mappings().all()
    for held in old:
        key = tuple(held[name] for name in FIELDS)
        if key not in known:
            known[key] = put_context(db, dict(zip(FIELDS, key, strict=True)))
        names = ("workload", "template", "choice", "status", "median_s", "spread_s", "is_default", "is_final", "when")
        row = {name: held[name] for name in names}
        row |= {"context": known[key], "choice_digest": choice_digest(row["choice"]), "proven": False, "quarantine": ""}
        row |= {"is_default": bool(row["is_default"]), "is_final": bool(row["is_final"])}
        row["median_s"] = row["median_s"] if row["status"] == OK else None
        db.execute(records.insert().values(**row, seal=seal(row)))
    for table in ("records_1", "workloads_1"):
        db.exec_driver_sql(f"DROP TABLE {table}")


_MIGRATIONS: Mapping[int, Callable[[sa.Connection], None]] = {1: _from_1}
