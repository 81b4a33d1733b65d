"""The page about a tuning run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
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
    return table
