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
_ANSWERS = {"supported": "takes it", "vendor_cpu": "on the CPU", "unsupported": "refuses it"}


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
    for answers in data["backends"]:
        parts += _backend_parts(answers, every)
    if data["backends"] and data["assumed"]:
        parts.append(Text(f"Back ends were asked as with {' '.join(data['assumed'])}."))
    return Group(*parts)


def _backend_parts(answers: Mapping[str, Any], every: bool) -> list[RenderableType]:
    """Return one back end's count of nodes, then what it refuses, by operator and reason, or each node."""
    totals = answers["totals"]
    version = f" {answers['version']}" if answers["version"] else ""
    head = f"{answers['backend']}:{answers['target']}{version} takes {totals['supported']} of "
    head += count(len(answers["nodes"]), "node")
    if totals["vendor_cpu"]:
        head += f"; {totals['vendor_cpu']} would run on the CPU in the vendor's code"
    rows = [{**row, "nodes": [row["name"]]} for row in answers["nodes"]] if every else answers["refused"][:_SHOWN]
    parts: list[RenderableType] = [Text(head)]
    if rows:
        parts.append(_answers_table(rows, every))
    if not every and len(answers["refused"]) > _SHOWN:
        parts.append(Text(f"{len(answers['refused']) - _SHOWN} more answers; --all shows them"))
    return parts


def _answers_table(rows: list[Mapping[str, Any]], every: bool) -> Table:
    table = Table()
    for name in ("node" if every else "nodes", "operator", "answer", "reason", "what would help"):
        table.add_column(name, overflow="fold")
    for row in rows:
        nodes = row["nodes"]
        who = nodes[0] if len(nodes) == 1 else f"{len(nodes)}: {nodes[0]}, …"
        table.add_row(Text(who), _operator(row), _ANSWERS[row["support"]], Text(row["reason"]), Text(row["hint"]))
    return table


def _operator(row: Mapping[str, Any]) -> str:
    return f"{row['domain']}.{row['op']}" if row["domain"] else str(row["op"])


def _table(rows: list[Mapping[str, Any]]) -> Table:
    table = Table()
    for name in ("node", "operator", "who", "why not TVM", "what would help"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row["name"], _operator(row), row["owner"], row["reason"], row["hint"])
    return table
