"""Pages about the tuning store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import count, duration, size

__all__ = ["blobs_page", "moved_page", "pruned_page", "records_page", "stats_page", "why_page"]

_REFUSED_SHOWN = 10


def records_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a record."""
    shown, total = len(data["records"]), data["total"]
    table = Table(
        title=f"{count(total, 'record')} in {data['store']}" + (f", {shown} shown" if shown < total else ""),
        title_justify="left",
    )
    for name in ("when", "device", "template", "median", "kind", "workload"):
        table.add_column(name, justify="right" if name == "median" else "left", overflow="fold")
    for r in data["records"]:
        median = duration(r["median_s"]) if r["median_s"] is not None else r["status"]
        table.add_row(r["when"], r["device"], r["template"], median, Text(_kind(r)), r["workload"])
    return table


def blobs_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a compiled region: who made it with what, how large it is, when it was last used."""
    shown, total = len(data["blobs"]), data["total"]
    title = f"{count(total, 'compiled region')} beside {data['store']}" + (f", {shown} shown" if shown < total else "")
    table = Table(title=title, title_justify="left")
    for name in ("last used", "back end", "made with", "size", "key"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for row in data["blobs"]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
        made = ", ".join(f"{k} {v}".strip() for k, v in row["versions"].items())
        table.add_row(when, f"{row['backend']}:{row['target']}", made, size(row["bytes"]), row["key"])
    return table


def _kind(record: Mapping[str, Any]) -> str:
    if record["quarantine"]:
        return f"quarantined: {record['quarantine']}"
    kind = "default" if record["is_default"] else "final" if record["is_final"] else "trial"
    return kind if record["proven"] else f"{kind}, not yet replayed here"


def stats_page(data: Mapping[str, Any]) -> RenderableType:
    """Return the store's facts, one a line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in data.items():
        if name.endswith("_bytes"):
            table.add_row(name.removesuffix("_bytes"), size(value))
        elif isinstance(value, Mapping):
            table.add_row(name, ", ".join(f"{k}: {v}" for k, v in value.items()))
        else:
            table.add_row(name, str(value))
    return table


def why_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a kernel: has it a record, and if not, which is nearest and what differs."""
    table = Table(title=data["line"], title_justify="left")
    for name in ("kernel", "calls", "answer", "time", "why"):
        table.add_column(name, justify="right" if name in ("calls", "time") else "left", overflow="fold")
    for row in data["kernels"]:
        known = row["record"] and math.isfinite(row["record"]["median_s"])
        time = duration(row["record"]["median_s"]) if known and row["answer"] in ("found", "missing") else ""
        table.add_row(row["name"], str(row["calls"]), row["answer"], time, Text(row["why"]))
    return table


def moved_page(data: Mapping[str, Any]) -> RenderableType:
    """Return how many records went where, and the first of those that were refused."""
    lines = [f"{count(data['records'], 'record')} {data['what']} {data['file']}"]
    if "new" in data:
        lines[0] += f", {data['new']} of them new"
    if data.get("blobs"):
        lines[0] += f"; {count(data['blobs'], 'file')} of compiled regions as well"
    if data.get("blobs_left_out"):
        left = count(data["blobs_left_out"], "file")
        lines[0] += f"; {left} of compiled regions left out (cache merge carries them)"
    refused = data.get("refused", [])
    if refused:
        lines[0] += f"; {count(len(refused), 'line')} refused:"
        lines += [f"  {line}" for line in refused[:_REFUSED_SHOWN]]
        lines += [f"  and {len(refused) - _REFUSED_SHOWN} more (--json has all)"] * (len(refused) > _REFUSED_SHOWN)
    return Text("\n".join(lines))


def pruned_page(data: Mapping[str, Any]) -> RenderableType:
    """Return what went, or would go."""
    gone = f"{count(data['records'], 'record')} and {count(data['kernels'], 'kernel')}"
    sizes = f"{size(data['before_bytes'])} to {'about ' if data['dry_run'] else ''}{size(data['after_bytes'])}"
    verb = "would be removed from" if data["dry_run"] else "removed from"
    blobs = f"; {count(data['blobs'], 'file')} of compiled regions as well" if data["blobs"] else ""
    return Text(f"{gone} {verb} {data['store']}: {sizes}{blobs}")
