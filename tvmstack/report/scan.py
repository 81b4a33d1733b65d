"""The page of `tvmstack scan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import count

__all__ = ["scan_page"]

_SHOWN = 40


def scan_page(data: Mapping[str, Any], every: bool) -> RenderableType:
    """Return totals, the nodes TVM does not run (or all), and what is still open."""
    totals = data["totals"]
    owners = ", ".join(f"{number} {owner}" for owner, number in totals.items() if number)
    head = f"{data['source']}: {count(len(data['nodes']), 'node')} after repair ({owners})"
    if data["regions"]:
        head += f"; {count(data['regions'], 'region')} for onnxruntime"
    parts: list[RenderableType] = [Text(head)]
    rows = [row for row in data["nodes"] if every or row["owner"] != "tvm"]
    if data["open_dims"] and not every:
        parts.append(Text("Dims are open, which TVM needs fixed; the nodes will read differently once they are."))
    elif rows:
        parts.append(_table(rows if every else rows[:_SHOWN]))
        if not every and len(rows) > _SHOWN:
            parts.append(Text(f"{len(rows) - _SHOWN} more; --all shows them"))
    elif data["nodes"]:
        operators = Counter(row["op"] for row in data["nodes"])
        parts.append(Text("TVM takes them all: " + ", ".join(f"{n} {op}" for op, n in operators.most_common())))
    parts += [Text(f"fix them with {option}", style="yellow") for option in data["open_dims"]]
    return Group(*parts)


def _table(rows: list[Mapping[str, Any]]) -> Table:
    table = Table()
    for name in ("node", "operator", "who", "why not TVM", "what would help"):
        table.add_column(name, overflow="fold")
    for row in rows:
        operator = f"{row['domain']}.{row['op']}" if row["domain"] else row["op"]
        table.add_row(row["name"], operator, row["owner"], row["reason"], row["hint"])
    return table
