"""Who runs what, and what that was measured to cost: for a terminal, and as an HTML page that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from tvmstack.report.html import html_page
from tvmstack.report.words import count, duration, size

__all__ = ["border_line", "choice_lines", "owner_lines", "plan_html"]

_COLOURS = ("#2f6fb3", "#d9822b", "#2f7d4f", "#8a4fbf", "#b3402f", "#7d8896")
# Borders that take more than this share of a plan's time are warned about.
_FRAGMENTED = 0.05


def owner_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return one line for TVM and one for each region: who has how many nodes, and what passes in and out."""
    lines = [f"tvm: {count(plan['tvm_nodes'], 'node')}"]
    for row in plan["regions"]:
        into, out = _bytes(row["inputs"]), _bytes(row["outputs"])
        what = f"{count(len(row['nodes']), 'node')} from {row['nodes'][0]}"
        lines.append(f"{_owner(row)}: {what}, {size(into)} in, {size(out)} out")
    return lines


def choice_lines(choice: Mapping[str, Any]) -> list[str]:
    """Return how a plan was found: the plans that were timed, the winner first named, and who refused what."""
    lines = []
    for row in sorted(choice.get("finalists", ()), key=lambda r: r["median_s"]):
        mark = "taken" if row["plan"] == choice["chosen"] else ""
        spread = f"{duration(row['best_s'])} to {duration(row['worst_s'])}"
        lines.append(f"{duration(row['median_s'])} ({spread})  {row['plan']}  {mark}".rstrip())
    for owner, refused in choice.get("refused", {}).items():
        if refused["nodes"]:
            name, why = next(iter(refused["nodes"].items()))
            lines.append(f"{owner} does not take {count(len(refused['nodes']), 'node')}: {name}: {why}")
        lines += [f"{owner}: {words}" for words in refused["regions"]]
    return lines


def border_line(plan: Mapping[str, Any]) -> str:
    """Return a warning where the borders of a plan take much of its time, else nothing."""
    choice = plan.get("choice") or {}
    borders = choice.get("borders", {})
    chosen = next((f["median_s"] for f in choice.get("finalists", ()) if f["plan"] == choice.get("chosen")), None)
    if chosen is None:
        return ""
    cost = sum(_crossing(row, borders) for row in plan["regions"])
    if cost < _FRAGMENTED * chosen:
        return ""
    words = f"{count(len(plan['regions']), 'region')}: calls and copies at their borders take about {duration(cost)}"
    return f"{words}, {cost / chosen:.0%} of the whole; --min-region makes fewer"


def _crossing(row: Mapping[str, Any], borders: Mapping[str, Mapping[str, float]]) -> float:
    border = borders.get(_owner(row))
    if border is None:
        return 0.0
    return border["call_s"] + border["byte_s"] * (_bytes(row["inputs"]) + _bytes(row["outputs"]))


def plan_html(plan: Mapping[str, Any], name: str) -> str:
    """Return the page for the plan of the artifact called `name`."""
    choice = plan.get("choice") or {}
    warning = border_line(plan)
    parts = (
        _paragraphs(owner_lines(plan)),
        f'<p class="warn">{escape(warning)}</p>' if warning else "",
        _drawing(plan),
        _finalists(choice),
        _chunks(choice),
        _refusals(choice),
    )
    return html_page(f"{name}: plan", f"{name}: who runs what", "".join(parts))


def _drawing(plan: Mapping[str, Any]) -> str:
    """Return the regions as boxes on the line that TVM's part of the graph is, with what crosses their borders."""
    rows = plan["regions"]
    if not rows:
        return "<h2>Regions</h2><p>None: TVM runs the whole model.</p>"
    colours = _colours([_owner(r) for r in rows])
    height, parts = 96 * len(rows) + 24, ['<rect x="20" y="8" width="150" height="100%" fill="#eef2f6"/>']
    parts.append('<text x="32" y="28">tvm</text>')
    for index, row in enumerate(rows):
        top, colour = 16 + 96 * index, colours[_owner(row)]
        into, out = _tensors(row["inputs"]), _tensors(row["outputs"])
        label = f"{_owner(row)}: {count(len(row['nodes']), 'node')}"
        span = f"{row['nodes'][0]} … {row['nodes'][-1]}"
        parts += [
            f'<rect x="470" y="{top}" width="380" height="72" rx="6" fill="{colour}" fill-opacity=".18"'
            f' stroke="{colour}"/>',
            f'<text x="484" y="{top + 30}">{escape(label)}</text>',
            f'<text x="484" y="{top + 50}">{escape(span[:58])}</text>',
            f'<line x1="170" x2="470" y1="{top + 26}" y2="{top + 26}" stroke="{colour}"/>',
            f'<text x="182" y="{top + 20}">→ {escape(into)}</text>',
            f'<line x1="170" x2="470" y1="{top + 60}" y2="{top + 60}" stroke="{colour}"/>',
            f'<text x="182" y="{top + 54}">← {escape(out)}</text>',
        ]
    drawing = f"<svg viewBox='0 0 870 {height}' role='img' aria-label='Regions'>{''.join(parts)}</svg>"
    return f"<h2>Regions</h2>{drawing}"


def _finalists(choice: Mapping[str, Any]) -> str:
    rows = sorted(choice.get("finalists", ()), key=lambda r: r["median_s"])
    if not rows:
        return ""
    best = rows[0]["median_s"]
    body = "".join(_finalist_row(row, best, choice["chosen"]) for row in rows)
    head = "<tr><th>plan</th><th>median</th><th>rounds from to</th><th>of the fastest</th><th>regions</th></tr>"
    return f"<h2>Plans that were built and timed in turns</h2><table>{head}{body}</table>"


def _finalist_row(row: Mapping[str, Any], best_s: float, chosen: str) -> str:
    kind = "best" if row["plan"] == chosen else ""
    spread = f"{duration(row['best_s'])} to {duration(row['worst_s'])}"
    figures = (duration(row["median_s"]), spread, f"{row['median_s'] / best_s:.2f}", row["regions"])
    cells = "".join(f'<td class="n">{figure}</td>' for figure in figures)
    return f'<tr><td class="{kind}">{escape(row["plan"])}</td>{cells}</tr>'


def _chunks(choice: Mapping[str, Any]) -> str:
    rows = [r for r in choice.get("chunks", ()) if r["seconds"]]
    if not rows:
        return ""
    owners = list(rows[0]["seconds"])
    head = "".join(f"<th>{escape(o)}</th>" for o in owners)
    body = "".join(_chunk_row(row, owners) for row in rows)
    return (
        "<h2>What each chunk of the graph costs each owner</h2><table>"
        f"<tr><th>from</th><th>nodes</th><th>bytes in</th>{head}</tr>{body}</table>"
    )


def _chunk_row(row: Mapping[str, Any], owners: Sequence[str]) -> str:
    times = {o: math.inf if row["seconds"].get(o) is None else row["seconds"][o] for o in owners}
    best = min(times.values())
    cells = "".join(
        f'<td class="n {"best" if t == best else ""}">{duration(t) if math.isfinite(t) else "no"}</td>'
        for t in times.values()
    )
    size_in = size(row["crossing_bytes"])
    return (
        f'<tr><td>{escape(row["first"])}</td><td class="n">{row["nodes"]}</td><td class="n">{size_in}</td>{cells}</tr>'
    )


def _refusals(choice: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(owner)}</td><td>{escape(name)}</td><td>{escape(why)}</td></tr>"
        for owner, refused in choice.get("refused", {}).items()
        for name, why in [*refused["nodes"].items(), *(("a region", words) for words in refused["regions"])]
    )
    head = "<tr><th>back end</th><th>node</th><th>reason</th></tr>"
    return f"<h2>What was refused</h2><table>{head}{rows}</table>" if rows else ""


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _colours(owners: Sequence[str]) -> dict[str, str]:
    return {owner: _COLOURS[i % len(_COLOURS)] for i, owner in enumerate(dict.fromkeys(owners))}


def _owner(row: Mapping[str, Any]) -> str:
    target = row.get("target", "")
    return f"{row.get('backend', 'onnxruntime')}{':' if target else ''}{target}"


def _tensors(specs: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(s["name"] for s in specs)
    return f"{size(_bytes(specs))} in {count(len(specs), 'tensor')}: {names}"[:44]


def _bytes(specs: Sequence[Mapping[str, Any]]) -> int:
    return sum(_tensor_bytes(s) for s in specs)


def _tensor_bytes(spec: Mapping[str, Any]) -> int:
    dims = [d for d in spec["shape"] if isinstance(d, int)]
    wide = 4 if spec["dtype"] in ("object", "str", "string") else np.dtype(spec["dtype"]).itemsize
    return math.prod(dims) * wide
