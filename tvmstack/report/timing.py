"""Tables of `tvmstack bench` and `tvmstack profile`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import duration, size

__all__ = ["bench_page", "profile_page"]


def bench_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row a peer: median, spread, its time over ours, peak memory."""
    table = Table(title=f"{data['threads']} threads on {data['device'] or 'this machine'}", title_justify="left")
    for name in ("program", "median", "10 %", "90 %", "runs", "its time / ours", "peak memory"):
        table.add_column(name, justify="left" if name == "program" else "right", no_wrap=True)
    for peer in data["peers"]:
        table.add_row(*_bench_row(peer))
    notes = [Text(note) for note in data["notes"]]
    missing = [Text(peer["reason"], style="yellow") for peer in data["missing"]]
    return Group(table, *missing, *notes)


def _bench_row(peer: Mapping[str, Any]) -> list[str]:
    times, ratio = peer["summary"], peer.get("ratio")
    return [
        f"{peer['name']} {peer['version']}".strip(),
        duration(times["median_s"]),
        duration(times["p10_s"]),
        duration(times["p90_s"]),
        str(times["count"]),
        f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "",
        size(peer["peak_rss_bytes"]),
    ]


def profile_page(data: Mapping[str, Any], top: int | None) -> RenderableType:
    """Return a row a kernel, the costliest first."""
    peaks = data["peaks"]
    title = f"{duration(data['total_s'])} in kernels"
    if peaks:
        title += f"; peaks {peaks['gflops']:.0f} GFLOP/s, {peaks['gbytes']:.1f} GB/s at {peaks['threads']} threads"
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "owner", "schedule", "time", "share", "calls", "GFLOP/s", "GB/s", "of peak", "nodes"):
        if name == "nodes" and not any(row["nodes"] for row in data["kernels"]):
            continue
        words = name in ("kernel", "owner", "schedule", "nodes")
        # long kernel names give way, numbers are shown whole
        table.add_column(
            name,
            justify="left" if words else "right",
            overflow="ellipsis",
            no_wrap=True,
            max_width=32 if name in ("kernel", "nodes") else None,
            min_width=None if words else 5,
        )
    rows = data["kernels"][:top]
    for row in rows:
        table.add_row(*_profile_row(row)[: len(table.columns)])
    hidden = len(data["kernels"]) - len(rows)
    return Group(table, Text(f"{hidden} more; leave out --top to see them")) if hidden else table


def _profile_row(row: Mapping[str, Any]) -> list[str]:
    return [
        row["name"],
        row["owner"],
        f"{row['template']}, {row['source']}".strip(", "),
        duration(row["seconds"]),
        f"{row['share']:.1%}",
        str(row["calls"]),
        f"{row['gflops']:.1f}" if row["gflops"] else "",
        f"{row['gbytes']:.1f}" if row["gbytes"] else "",
        f"{row['peak_share']:.0%}" if row["peak_share"] is not None else "",
        ", ".join(row["nodes"]),
    ]
