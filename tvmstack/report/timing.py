"""Tables of `tvmstack bench` and `tvmstack profile`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.words import duration, few, size

__all__ = ["bench_page", "figures", "profile_page", "profile_title", "worth_lines"]


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


_WIDTHS = {"kernel": 26, "schedule": 16, "nodes": 20}


def profile_page(data: Mapping[str, Any], top: int | None) -> RenderableType:
    """Return a row a kernel, the costliest first, and what to tune."""
    table = Table(title=profile_title(data), title_justify="left")
    words = ("kernel", "schedule", "bound", "nodes")
    for name in ("kernel", "schedule", "time", "share", "calls", "GFLOP/s", "GB/s", "bound", "of roof", "nodes"):
        # long kernel names give way, numbers are shown whole
        table.add_column(
            name,
            justify="left" if name in words else "right",
            overflow="ellipsis",
            no_wrap=True,
            max_width=_WIDTHS.get(name),
            min_width=None if name in words else len("GFLOP/s"),
        )
    rows = data["kernels"][:top]
    for row in rows:
        table.add_row(*_profile_row(row))
    hidden = len(data["kernels"]) - len(rows)
    notes = [Text(f"{hidden} more; leave out --top to see them")] if hidden else []
    return Group(table, *notes, *(Text(line) for line in worth_lines(data)))


def profile_title(data: Mapping[str, Any]) -> str:
    """Return the times of the whole model and the peaks in one line."""
    title = f"{duration(data['run_s'])} an inference, {duration(data['total_s'])} in kernels"
    peaks = data["peaks"]
    if peaks:
        title += f"; peaks {peaks['gflops']:.0f} GFLOP/s, {peaks['gbytes']:.1f} GB/s at {peaks['threads']} threads"
    return title


def worth_lines(data: Mapping[str, Any]) -> list[str]:
    """Return the kernels worth tuning, one a line, or that there are none; nothing where peaks were not measured."""
    if not data["peaks"]:
        return []
    rows = {row["name"]: row for row in data["kernels"]}
    found = [rows[name] for name in data["worth_tuning"]]
    if not found:
        return ["No kernel that was not tuned yet could win 1 % of the time."]
    lines = [
        f"  {row['name']}: up to {row['headroom']:.0%} of the time; it takes {row['share']:.0%} "
        f"at {row['peak_share']:.0%} of its roof"
        for row in found[:5]
    ]
    return ["Worth tuning, by share of time x distance from the roof:", *lines]


def figures(row: Mapping[str, Any]) -> list[str]:
    """Return a kernel's time, share, calls, GFLOP/s, GB/s, what bounds it and how near its roof it is, as words."""
    return [
        duration(row["seconds"]),
        f"{row['share']:.1%}",
        str(row["calls"]),
        f"{row['gflops']:.1f}" if row["gflops"] else "",
        f"{row['gbytes']:.1f}" if row["gbytes"] else "",
        row["bound"],
        f"{row['peak_share']:.0%}" if row["peak_share"] is not None else "",
    ]


def _profile_row(row: Mapping[str, Any]) -> list[str]:
    return [
        row["name"],
        f"{row['template']}, {row['source']}".strip(", ") or row["owner"],
        *figures(row),
        few(row["nodes"], 2),
    ]
