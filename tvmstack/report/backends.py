"""The page of `tvmstack backend ls`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

__all__ = ["backends_page"]


def backends_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row for each back end."""
    table = Table()
    for name in ("back end", "version", "can", "targets (those that run here marked *)", "licence", "missing"):
        table.add_column(name, overflow="fold")
    for row in data["backends"]:
        can = [word for word in ("compile", "run", "simulate") if row[f"can_{word}"]]
        targets = ", ".join(t["name"] + ("*" if t["runs_here"] else "") for t in row["targets"])
        missing = f"{row['missing']}: {row['hint']}" if row["missing"] else ""
        table.add_row(row["name"], row["version"] or "–", ", ".join(can), targets, row["licence"], missing)
    return table
