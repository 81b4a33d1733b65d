"""`tvmstack cache`: look into the tuning store, carry records in and out, and keep it small."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
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
from tvmstack.core.errors import UsageError

if TYPE_CHECKING:
    from tvmstack.store import Record, Store

__all__ = ["cache"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DAYS = {"d": 1.0, "w": 7.0, "m": 30.0, "y": 365.0}


@click.group()
def cache() -> None:
    """Look into the tuning store, carry records in and out, and keep it small."""


@cache.command("ls")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Records to list at most.")
@click.option("--quarantined", is_flag=True, help="Only records in quarantine, with the reason.")
@click.option("--blobs", is_flag=True, help="Regions that back ends compiled, the last used first.")
@store_option
@json_option
def ls(limit: int, quarantined: bool, blobs: bool, store: str | None, as_json: bool) -> None:
    """List records, the newest first."""
    from tvmstack.cli.output import emit
    from tvmstack.report.store import blobs_page, records_page
    from tvmstack.store import stats

    if blobs and quarantined:
        raise UsageError("--blobs and --quarantined exclude each other: compiled regions are never in quarantine")
    with _opened(store) as records:
        if blobs:
            from tvmstack.driver.handoff import kept_blobs

            kept = kept_blobs(records)
            emit({"store": records.name, "total": len(kept), "blobs": kept[:limit]}, as_json, blobs_page)
            return
        rows = [_row(record) for record in records.records(limit, quarantined)]
        facts = stats(records)
    total = facts["quarantined" if quarantined else "records"]
    emit({"store": records.name, "total": total, "records": rows}, as_json, records_page)


@cache.command("stats")
@store_option
@json_option
def stats_(store: str | None, as_json: bool) -> None:
    """Say how much the store holds, by device."""
    from tvmstack.cli.output import emit
    from tvmstack.report.store import stats_page
    from tvmstack.store import stats
    from tvmstack.store.blobs import blob_folder

    with _opened(store) as records:
        emit({**stats(records), **blob_folder(records).stats()}, as_json, stats_page)


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
    from tvmstack.report.store import why_page

    rows = driver.why(model, shapes_from_texts(shapes), device=device, store=store, freeze=frozen_from_texts(freeze))
    emit(rows, as_json, why_page)


@cache.command("export")
@click.argument("file", metavar="FILE.jsonl")
@click.option("--finals", is_flag=True, help="Only the finalists, which a build would use.")
@click.option("--device", "devices", multiple=True, metavar="ID", help="Only records of this device.")
@store_option
@json_option
def export(file: str, finals: bool, devices: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Write records to FILE as JSON lines, each with its digest, in an order that depends on nothing but their keys.

    Two exports differ where the records do. Quarantined records are left out, and so are regions that back ends
    compiled: `cache merge` carries these.
    """
    from tvmstack.cli.output import emit
    from tvmstack.report.store import moved_page
    from tvmstack.store import export_records
    from tvmstack.store.blobs import blob_folder

    with _opened(store) as records:
        number = export_records(records, Path(file), finals, devices)
        left = blob_folder(records).stats()["blobs"]
    emit({"records": number, "what": "written to", "file": file, "blobs_left_out": left}, as_json, moved_page)


@cache.command("import")
@click.argument("file", metavar="FILE")
@store_option
@json_option
def import_(file: str, store: str | None, as_json: bool) -> None:
    """Read records from FILE; bad lines are refused one by one and told.

    FILE is an export of ours (.jsonl), or the folder of a MetaSchedule database (database_workload.json and
    database_tuning_record.json). Records of ours are replayed in a process of their own before a build uses them;
    MetaSchedule's start a search, and are used once they were measured here.
    """
    from tvmstack.cli.output import emit
    from tvmstack.driver.metaschedule import import_metaschedule
    from tvmstack.report.store import moved_page
    from tvmstack.store import import_records

    path = Path(file)
    with _opened(store) as records:
        taken = import_metaschedule(records, path) if path.is_dir() else import_records(records, path)
    emit({**taken.to_json(), "what": "read from", "file": file}, as_json, moved_page)


@cache.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("-o", "--output", metavar="C", help="Where the merged store goes [default: into A].")
@json_option
def merge(first: str, second: str, output: str | None, as_json: bool) -> None:
    """Put the records of the stores A and B together. Each is a file or a URL like postgresql://user@host/name.

    Of two records of the same key and schedule the finalist stays, else the later one. Regions that back ends compiled
    are copied as well, from one store's folder to the other's.
    """
    from tvmstack.cli.output import emit
    from tvmstack.report.store import moved_page
    from tvmstack.store import merge_stores
    from tvmstack.store.blobs import blob_folder

    sources = [first, second] if output else [second]
    for source in sources:
        if "://" not in source and not Path(source).is_file():
            raise UsageError(f"there is no store {source}")
    target = output or first
    totals = {"records": 0, "new": 0, "blobs": 0}
    with _opened(target) as into:
        for source in sources:
            with _opened(source) as records:
                taken = merge_stores(into, records)
                blobs = blob_folder(into).merge(blob_folder(records))
            totals["records"] += taken.read
            totals["new"] += taken.new
            totals["blobs"] += blobs
    emit({**totals, "what": "merged into", "file": target}, as_json, moved_page)


@cache.command()
@click.option("--older-than", metavar="TIME", help="Only what was measured longer ago: 90d, 12w, 6m, 1y.")
@click.option("--superseded", is_flag=True, help="Only what finalists or later versions have made useless for builds.")
@click.option("--device", "devices", multiple=True, metavar="ID", help="Only records of this device.")
@click.option("--quarantined", is_flag=True, help="Only records in quarantine.")
@click.option("--quota", metavar="SIZE", help="Then the least valuable until the store is no larger: 500M, 2G.")
@click.option("--dry-run", is_flag=True, help="Remove nothing; say what would go.")
@store_option
@json_option
def prune(
    older_than: str | None,
    superseded: bool,
    devices: tuple[str, ...],
    quarantined: bool,
    quota: str | None,
    dry_run: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove records and give their room back.

    Conditions narrow each other. For a quota failed trials go first, then trials, then finalists, old ones before new.
    Regions that back ends compiled go by --older-than and --quota alone, the longest unused first.
    """
    from tvmstack.cli.output import emit
    from tvmstack.report.store import pruned_page
    from tvmstack.store import PruneRule
    from tvmstack.store import prune as prune_store
    from tvmstack.store.blobs import blob_folder

    days = _number(older_than, "--older-than", "90d", _DAYS) if older_than else None
    size = int(_number(quota, "--quota", "500M", _UNITS)) if quota else None
    rule = PruneRule(days, superseded, devices, quarantined, size)
    with _opened(store) as records:
        gone = prune_store(records, rule, dry_run)
        blobs = blob_folder(records).prune((days or 0) * 86400, size, dry_run)
    emit({"store": records.name, "dry_run": dry_run, **gone.to_json(), "blobs": blobs}, as_json, pruned_page)


def _number(text: str, option: str, example: str, units: Mapping[str, float]) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = found.group(2).removesuffix("iB").removesuffix("B") if found else ""
    if found is None or unit not in units:
        raise UsageError(f"{option} {text!r} is not a number with a unit, like {example}; units: {', '.join(units)}")
    return float(found.group(1)) * units[unit]


def _opened(store: str | None) -> contextlib.AbstractContextManager[Store]:
    from tvmstack.store import open_store

    return contextlib.closing(open_store(store))


def _row(record: Record) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.when))
    fields = ("device", "template", "status", "is_final", "is_default", "proven", "quarantine")
    return {
        "when": when,
        **{name: getattr(record, name) for name in fields},
        "median_s": record.median_s if record.status == "ok" else None,
        "workload": record.digest,
        "choice": record.choice.to_json(),
    }
