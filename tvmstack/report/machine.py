"""The page of `tvmstack doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import size

__all__ = ["machine_page"]


def machine_page(facts: Mapping[str, Any]) -> RenderableType:
    """Return versions, device, tools and problems as one page."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(facts):
        table.add_row(name, value)
    ending = [Text(f"problem: {line}", style="red") for line in facts["problems"]]
    return Group(table, *(ending or [Text("ready to compile", style="green")]))


def _rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    device = facts["device"]
    caches = ", ".join(
        f"{name} {size(value)}" for name, value in zip(("L1d", "L2", "L3"), device["caches"], strict=True) if value
    )
    rows = [
        ("tvmstack", f"{facts['tvmstack']}, Python {facts['python']}, {facts['system']}"),
        ("packages", ", ".join(f"{n} {v or 'MISSING'}" for n, v in facts["versions"].items())),
        ("device", f"{device['name']}; id {device['id']}"),
        ("", f"{device['cores']} cores, {caches or 'cache sizes unknown'}"),
        ("features", " ".join(device["features"]) or "none that matter"),
        ("compiler", facts["compiler"] or "MISSING"),
        ("linker", "works" if facts["linker_works"] else "DOES NOT WORK"),
    ]
    if facts["peaks"]:
        peaks = facts["peaks"]
        rows.append(
            (
                "peaks",
                f"{peaks['gflops']:.0f} GFLOP/s fp32 ({peaks['method']}), {peaks['gbytes']:.1f} GB/s, "
                f"{peaks['threads']} threads",
            )
        )
    for name, fact in facts["optional"].items():
        rows.append((name, fact["version"] or f"not installed; {fact['for']}"))
    for row in facts.get("backends", ()):
        words = f"{row['missing']}: {row['hint']}" if row["missing"] else row["version"]
        rows.append((f"back end {row['name']}", words))
    return rows
