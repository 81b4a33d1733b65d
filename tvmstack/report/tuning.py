"""The page about a tuning run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from tvmstack.report.words import count, duration

__all__ = ["tuning_page"]


def tuning_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a task: what it gained, and why it got no more."""
    title = f"{count(data['trials'], 'trial')} in {duration(data['seconds'])}"
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "calls", "trials", "default", "best", "gain", "note"):
        table.add_column(name, justify="left" if name in ("kernel", "note") else "right", overflow="fold")
    for task in (t for t in data["tasks"] if t["trials"]):
        start, best = task.get("start_s"), task.get("best_s")
        gain = f"{start / best:.2f}x" if start and best else ""
        times = [duration(t) if t else "" for t in (start, best)]
        table.add_row(task["name"], str(task["calls"]), str(task["trials"]), *times, gain, task.get("note", ""))
    if not data.get("fleet"):
        return table
    return Group(_fleet(data), "", table)


def _fleet(data: Mapping[str, Any]) -> Table:
    """Return a row a model: what it gained, or why it was left out."""
    table = Table(title=f"fleet of {count(len(data['fleet']), 'model')}", title_justify="left")
    for name in ("model", "kernels", "default", "best", "gain", "note"):
        table.add_column(name, justify="left" if name in ("model", "note") else "right", overflow="fold")
    for row in data["fleet"]:
        start, best = data["models"].get(row["name"], (0.0, 0.0))
        times = [duration(t) if t else "" for t in (start, best)]
        gain = f"{start / best:.2f}x" if start and best else ""
        table.add_row(row["path"], str(row["kernels"]), *times, gain, row["error"] or "")
    return table
