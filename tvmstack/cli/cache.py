"""`tvmstack cache`: look into the tuning store, and carry records in and out."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmstack.cli.options import (
    device_option,
    freeze_option,
    frozen_from_texts,
    json_option,
    model_argument,
    shape_option,
    shapes_from_texts,
    store_option,
)

if TYPE_CHECKING:
    from tvmstack.store import Record, Store

__all__ = ["cache"]


@click.group()
def cache() -> None:
    """Look into the tuning store, and carry records in and out."""


@cache.command("ls")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Records to list at most.")
@store_option
@json_option
def ls(limit: int, store: str | None, as_json: bool) -> None:
    """List records, the newest first."""
    from tvmstack.cli.output import emit
    from tvmstack.report.tuning import records_page
    from tvmstack.store import stats

    with _opened(store) as records:
        rows = [_row(record) for record in records.records(limit)]
        data = {"store": records.name, "total": stats(records)["records"], "records": rows}
    emit(data, as_json, records_page)


@cache.command("stats")
@store_option
@json_option
def stats_(store: str | None, as_json: bool) -> None:
    """Say how much the store holds, by device."""
    from tvmstack.cli.output import emit
    from tvmstack.report.tuning import stats_page
    from tvmstack.store import stats

    with _opened(store) as records:
        emit(stats(records), as_json, stats_page)


@cache.command()
@model_argument
@shape_option
@freeze_option
@device_option
@store_option
@json_option
def why(
    model: str, shapes: tuple[str, ...], freeze: tuple[str, ...], device: str | None, store: str | None, as_json: bool
) -> None:
    """Say for each kernel of MODEL whether the store has a record, and if not, which field differs."""
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.tuning import why_page

    rows = driver.why(model, shapes_from_texts(shapes), device=device, store=store, freeze=frozen_from_texts(freeze))
    emit(rows, as_json, why_page)


@cache.command("export")
@click.argument("file", metavar="FILE.jsonl")
@store_option
@json_option
def export(file: str, store: str | None, as_json: bool) -> None:
    """Write all records to FILE as JSON lines, each with its digest."""
    from tvmstack.cli.output import emit
    from tvmstack.report.tuning import moved_page
    from tvmstack.store import export_records

    with _opened(store) as records:
        number = export_records(records, Path(file))
    emit({"records": number, "what": "written to", "file": file}, as_json, moved_page)


@cache.command("import")
@click.argument("file", metavar="FILE.jsonl")
@store_option
@json_option
def import_(file: str, store: str | None, as_json: bool) -> None:
    """Read records from FILE; damaged lines are refused one by one and counted."""
    from tvmstack.cli.output import emit
    from tvmstack.report.tuning import moved_page
    from tvmstack.store import import_records

    with _opened(store) as records:
        taken = import_records(records, Path(file))
    emit({**taken.to_json(), "what": "read from", "file": file}, as_json, moved_page)


def _opened(store: str | None) -> contextlib.AbstractContextManager[Store]:
    from tvmstack.store import open_store

    return contextlib.closing(open_store(store))


def _row(record: Record) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.when))
    fields = ("device", "template", "status", "is_final", "is_default")
    return {
        "when": when,
        **{name: getattr(record, name) for name in fields},
        "median_s": record.median_s if record.status == "ok" else None,
        "workload": record.digest,
        "choice": record.choice.to_json(),
    }
