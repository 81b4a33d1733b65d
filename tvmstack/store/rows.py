"""Records as rows of the database, and back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from tvmstack.core.kernel import Choice
from tvmstack.store.key import FIELDS, choice_digest, context_digest, workload_digest
from tvmstack.store.record import OK, Record, seal

__all__ = ["record_from_row", "row_from_record"]


def row_from_record(record: Record) -> dict[str, Any]:
    """Return a record as it stands in the database; its workload's text and its key's fields are rows elsewhere."""
    text = record.choice.text
    row = {
        "workload": record.digest,
        "context": context_digest(record.fields),
        "choice_digest": choice_digest(text),
        "template": record.template,
        "choice": text,
        "status": record.status,
        "median_s": float(record.median_s) if record.status == OK else None,
        "spread_s": float(record.spread_s),
        "is_default": record.is_default,
        "is_final": record.is_final,
        "when": float(record.when or time.time()),
        "proven": record.proven,
        "quarantine": record.quarantine,
    }
    return {**row, "seal": seal(row)}


def record_from_row(row: Mapping[str, Any], fields: Mapping[str, str], workload: str) -> Record:
    """Rebuild a record.

    Raises:
        ValueError: what the row says is not what was written; something damaged it.
    """
    flags: dict[str, Any] = {name: bool(row[name]) for name in ("is_default", "is_final")}
    plain: dict[str, Any] = {name: row[name] for name in ("template", "status", "spread_s", "when")}
    key: dict[str, Any] = {name: fields[name] for name in FIELDS}
    if workload_digest(workload) != row["workload"] or ("seal" in row and seal({**row, **flags}) != row["seal"]):
        raise ValueError("it does not match its seal")
    return Record(
        workload=workload,
        choice=Choice.from_json(json.loads(row["choice"])),
        median_s=math.inf if row["median_s"] is None else float(row["median_s"]),
        proven=bool(row.get("proven", False)),
        quarantine=row.get("quarantine", ""),
        **key,
        **plain,
        **flags,
    )
