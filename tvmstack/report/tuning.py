"""Pages about tuning and its store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import count, duration

__all__ = ["moved_page", "records_page", "stats_page", "tuning_page", "why_page"]


def tuning_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a task: what it gained, and why it got no more."""
    title = f"{count(data['trials'], 'trial')} in {duration(data['seconds'])}"
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "calls", "trials", "default", "best", "gain", "note"):
        table.add_column(name, justify="left" if name in ("kernel", "note") else "right", overflow="fold")
    for task in data["tasks"]:
        start, best = task.get("start_s"), task.get("best_s")
        gain = f"{start / best:.2f}x" if start and best else ""
        times = [duration(t) if t else "" for t in (start, best)]
        table.add_row(task["name"], str(task["calls"]), str(task["trials"]), *times, gain, task.get("note", ""))
    return table


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
        kind = "default" if r["is_default"] else "final" if r["is_final"] else "trial"
        median = duration(r["median_s"]) if r["median_s"] is not None else r["status"]
        table.add_row(r["when"], r["device"], r["template"], median, kind, r["workload"])
    return table


def stats_page(data: Mapping[str, Any]) -> RenderableType:
    """Return the store's facts, one a line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in data.items():
        text = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        table.add_row(name.replace("_", " "), text)
    return table


def why_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a kernel: has it a record, and if not, why."""
    table = Table(title=data["line"], title_justify="left")
    for name in ("kernel", "calls", "answer", "why"):
        table.add_column(name, justify="right" if name == "calls" else "left", overflow="fold")
    for row in data["kernels"]:
        table.add_row(row["name"], str(row["calls"]), Text(row["answer"]), row["why"])
    return table


def moved_page(data: Mapping[str, Any]) -> RenderableType:
    """Return how many records went where."""
    words = f"{count(data['records'], 'record')} {data['what']} {data['file']}"
    return Text(words + (f"; refused: {'; '.join(data['refused'])}" if data.get("refused") else ""))
