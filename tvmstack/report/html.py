"""A profile as one HTML page: text, a roofline drawn as SVG, a table. It loads nothing from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tvmstack.report.timing import figures, profile_title, worth_lines

__all__ = ["html_page", "profile_html"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 860, 420, 60, 44, 14
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2530;background:#fff;max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}small,.dim{color:#66717f}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#66717f}
table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:.3rem .55rem;border-bottom:1px solid #e6eaef}
th{text-align:left;position:sticky;top:0;background:#fff}td.n{text-align:right;font-variant-numeric:tabular-nums}
td.best{font-weight:600}td.k{max-width:22rem;overflow-wrap:anywhere}.bar{background:#dce8f7;display:block;height:.45rem;border-radius:2px}
.warn{background:#fdf1dc;padding:.5rem .8rem;border-left:4px solid #d9822b}
.default{fill:#d9822b}.tuned{fill:#2f7d4f}.shipped{fill:#2f7d4f}.fixed{fill:#7d8896}.region{fill:#8a4fbf}
"""
_SOURCES = {"default": "not tuned", "tuned": "tuned", "shipped": "shipped record", "fixed": "one schedule only"}


def profile_html(data: Mapping[str, Any], name: str) -> str:
    """Return the page for a profile as plain data (`ProfileReport.to_json`) of the artifact called `name`."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in worth_lines(data))
    chart = _roofline(data) if data["peaks"] else ""
    body = (
        f"<p>{escape(profile_title(data))}</p>"
        f"{chart}<h2>What to do next</h2>{lines or '<p>Peaks were not measured.</p>'}"
        f"<h2>Kernels</h2>{_table(data['kernels'])}"
    )
    return html_page(f"{name}: profile", name, body)


def html_page(title: str, heading: str, body: str) -> str:
    """Return a whole page that loads nothing from anywhere; `body` is HTML, the rest is text."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(heading)}</h1>{body}</body></html>\n"
    )


def _roofline(data: Mapping[str, Any]) -> str:
    """Return operations per byte against GFLOP/s, both logarithmic, with the roof of this machine."""
    peaks = data["peaks"]
    points = [row for row in data["kernels"] if row["gflops"] > 0 and row["gbytes"] > 0]
    ridge = peaks["gflops"] / peaks["gbytes"]
    intensities = [ridge, *(row["gflops"] / row["gbytes"] for row in points)]
    rates = [peaks["gflops"], *(row["gflops"] for row in points)]
    across, up = _Axis(intensities, _LEFT, _WIDTH - _MARGIN), _Axis(rates, _HEIGHT - _BOTTOM, _MARGIN)
    parts = [*_grid(across, up), *_roof(across, up, peaks, ridge), *(_point(row, across, up) for row in points)]
    legend = " ".join(
        f'<tspan class="{source}">●</tspan> {label}' + ("" if source == "fixed" else " ·")
        for source, label in _SOURCES.items()
        if source == "fixed" or any(row["source"] == source for row in points)
    )
    parts.append(f'<text x="{_LEFT + 8}" y="{_MARGIN + 12}">{legend}; the area is the share of time</text>')
    return (
        f"<h2>Roofline</h2><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' "
        f"aria-label='Roofline of the kernels'>{''.join(parts)}</svg>"
    )


class _Axis:
    """A logarithmic axis over whole decades that hold all values, drawn from `start` to `end` in pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 0.05)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def decades(self) -> list[float]:
        return [10.0**n for n in range(self.low, self.high + 1)]


def _grid(across: _Axis, up: _Axis) -> list[str]:
    parts = []
    for value in across.decades:
        x = across(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up.start}" y2="{up.end}" stroke="#e6eaef"/>')
        parts.append(f'<text x="{x:.1f}" y="{up.start + 16}" text-anchor="middle">{value:g}</text>')
    for value in up.decades:
        y = up(value)
        parts.append(f'<line x1="{across.start}" x2="{across.end}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e6eaef"/>')
        parts.append(f'<text x="{across.start - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (across.start + across.end) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">operations per byte of arguments</text>')
    parts.append(f'<text transform="translate(14 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>')
    return parts


def _roof(across: _Axis, up: _Axis, peaks: Mapping[str, Any], ridge: float) -> list[str]:
    """Return the roof: the memory peak's slope as far as the ridge, the compute peak from there."""
    lowest = max(10.0**across.low, 10.0**up.low / peaks["gbytes"])
    corners = [(lowest, lowest * peaks["gbytes"]), (ridge, peaks["gflops"]), (10.0**across.high, peaks["gflops"])]
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in corners)
    at, over = across(10.0**across.high) - 6, up(peaks["gflops"]) - 6
    words = f"{peaks['gflops']:.0f} GFLOP/s, {peaks['gbytes']:.1f} GB/s"
    return [
        f'<polyline points="{line}" fill="none" stroke="#1c2530" stroke-width="1.6"/>',
        f'<text x="{at:.1f}" y="{over:.1f}" text-anchor="end">{words}</text>',
    ]


def _point(row: Mapping[str, Any], across: _Axis, up: _Axis) -> str:
    x, y = across(row["gflops"] / row["gbytes"]), up(row["gflops"])
    radius = 3 + 40 * math.sqrt(row["share"]) / 2
    about = f"{row['name']}: {row['share']:.1%} of the time, {row['gflops']:.1f} GFLOP/s, {', '.join(row['nodes'])}"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="{escape(row["source"] or "region")}" '
        f'fill-opacity=".6" stroke="#fff"><title>{escape(about)}</title></circle>'
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("kernel", "ONNX nodes", "schedule", "time", "share", "calls", "GFLOP/s", "GB/s", "bound", "of roof")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(row: Mapping[str, Any]) -> str:
    schedule = ", ".join(part for part in (row["template"], _SOURCES.get(row["source"], row["source"])) if part)
    words = [row["name"], ", ".join(row["nodes"]), schedule or row["owner"]]
    bar = f'<span class="bar" style="width:{100 * row["share"]:.1f}%"></span>'
    numbers = figures(row)
    numbers[1] += bar
    cells = [f'<td class="k">{escape(word)}</td>' for word in words] + [f'<td class="n">{n}</td>' for n in numbers]
    return f"<tr>{''.join(cells)}</tr>"
