"""docs/benchmarks.md from the figures of `benchmarks.run`."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from tvmstack.measure.stats import geometric_mean

__all__ = ["means", "page", "row_line"]

OURS = "tvmstack"
_STAGES = ("untuned", "tuned")
_LABELS = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO f32"}


def page(result: Mapping[str, Any]) -> str:
    """Return the page: where, how, a row a model, geometric means, then spreads, memory and compile times."""
    peers, rows = result["settings"]["peers"], result["models"]
    stages = [stage for stage in _STAGES if any(stage in row for row in rows)]
    parts = [
        "# Benchmarks",
        _where(result),
        _HOW,
        _table(_heads(peers, stages), [_cells(row, peers, stages) for row in rows if "untuned" in row]),
        *_failures(rows),
        *_mean_lines(rows, peers, stages),
        *_call_line(result["call"]),
        "## Spread, memory and compile time",
        _DETAIL,
        _table(_DETAIL_HEADS, [line for row in rows for line in _details(row)]),
    ]
    return "\n\n".join(parts) + "\n"


_HOW = (
    "Medians of single inferences; each program alone in its own process, the processes in turns "
    "(docs/explanation/how-it-measures.md). A ratio is the peer's time over ours, the median of the rounds with the "
    "lowest and the highest in brackets: **above 1 we are ahead**."
)
_DETAIL = (
    "The tenth and the ninetieth percentile of all single inferences, the largest resident size of each process, and "
    "for ours the seconds to compile without tuning, the trials, and the memory plan."
)
_DETAIL_HEADS = ("model", "program", "median ms", "10 % to 90 %", "peak memory MB", "compile s", "trials", "arena MB")


def _where(result: Mapping[str, Any]) -> str:
    machine, settings = result["machine"], result["settings"]
    device, versions = machine["device"], settings["versions"]
    peaks = [machine["peaks"], *(row["peaks"] for row in result["models"])]
    gflops, gbytes = ([p[key] for p in peaks] for key in ("gflops", "gbytes"))
    packages = ", ".join(f"{name} {versions[name]}" for name in ("apache-tvm", *settings["peers"]) if versions[name])
    return (
        f"`{result['command'].strip()}`, {result['when']}, commit {result['commit'] or 'unknown'}.\n\n"
        f"{device['name']} (`{device['id']}`), {settings['threads']} threads, {platform.machine()}; measured peaks "
        f"{min(gflops):.0f} to {max(gflops):.0f} GFLOP/s and {min(gbytes):.1f} to {max(gbytes):.1f} GB/s while this "
        f"ran. {packages}. fp32, batch 1; tuned {settings['tune'] or 'not at all'} a model."
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _heads(peers: Sequence[str], stages: Sequence[str]) -> list[str]:
    heads = ["model", *(f"{stage} ms" for stage in stages)]
    for peer in peers:
        heads += [f"{_LABELS[peer]} ms", *(f"its time / {stage}" for stage in stages)]
    return heads


def _cells(row: Mapping[str, Any], peers: Sequence[str], stages: Sequence[str]) -> list[str]:
    cells = [row["model"], *(_ms(row, stage, OURS) for stage in stages)]
    for peer in peers:
        last = next((s for s in reversed(stages) if peer in row.get(s, {}).get("peers", ())), stages[-1])
        cells += [_ms(row, last, peer), *(_ratio(row, stage, peer) for stage in stages)]
    return cells


def _figures(row: Mapping[str, Any], stage: str, peer: str) -> Mapping[str, Any] | None:
    figures: Mapping[str, Any] | None = row.get(stage, {}).get("peers", {}).get(peer)
    return figures


def _ms(row: Mapping[str, Any], stage: str, peer: str) -> str:
    figures = _figures(row, stage, peer)
    return _number(figures["median_ms"]) if figures else "–"


def _number(ms: float) -> str:
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}"


def _ratio(row: Mapping[str, Any], stage: str, peer: str) -> str:
    figures = _figures(row, stage, peer)
    if not figures or not figures["ratio"]:
        return "–"
    ratio = figures["ratio"]
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def row_line(row: Mapping[str, Any], peers: Sequence[str]) -> str:
    """Return a model's figures as one line for the terminal."""
    if "untuned" not in row:
        return f"{row['model']}: {row['error']}"
    stages = [stage for stage in _STAGES if stage in row]
    return " | ".join(_cells(row, peers, stages)) + (f" | {row['error']}" if "error" in row else "")


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    lines += [
        f"- {row['model']}, {stage}: {missing['reason']}"
        for row in rows
        for stage in _STAGES
        for missing in row.get(stage, {}).get("missing", ())
    ]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def means(rows: Sequence[Mapping[str, Any]], stage: str, peer: str) -> tuple[float, int] | None:
    """Return the geometric mean of a peer's ratios at a stage and over how many models; None where it has none."""
    figures = [_figures(row, stage, peer) for row in rows]
    ratios = [f["ratio"]["median"] for f in figures if f and f["ratio"]]
    return (geometric_mean(ratios), len(ratios)) if ratios else None


def _mean_lines(rows: Sequence[Mapping[str, Any]], peers: Sequence[str], stages: Sequence[str]) -> list[str]:
    table = []
    for peer in peers:
        found = [means(rows, stage, peer) for stage in stages]
        cells = [f"**{mean[0]:.2f}** over {mean[1]} models" if mean else "–" for mean in found]
        table.append([_LABELS[peer], *cells])
    return ["Geometric means of the ratios:", _table(["against", *stages], table)] if stages else []


def _call_line(row: Mapping[str, Any]) -> list[str]:
    """Return what one call costs each program: a model of one Relu on four numbers."""
    peers = row.get("untuned", {}).get("peers", {})
    costs = [f"{_LABELS.get(name, 'ours')} {f['median_ms'] * 1e3:.1f} µs" for name, f in peers.items()]
    return [f"One call of a model of a single Relu on four numbers costs: {', '.join(costs)}."] if costs else []


def _details(row: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for stage in _STAGES:
        part = row.get(stage, {"peers": {}})
        for name, figures in part["peers"].items():
            ours = name == OURS
            spread = f"{_number(figures['p10_ms'])} to {_number(figures['p90_ms'])}"
            memory = f"{figures['peak_rss_bytes'] / 1e6:.0f}"
            program = f"{stage}" if ours else f"{_LABELS[name]} beside {stage}"
            own = _own(part) if ours else ["", "", ""]
            lines.append([row["model"], program, _number(figures["median_ms"]), spread, memory, *own])
    return lines


def _own(part: Mapping[str, Any]) -> list[str]:
    seconds = sum(s for stage, s in part["compile_s"].items() if stage != "tune")
    tuning = part["tuning"]
    trials = f"{tuning['trials']} in {tuning['seconds']:.0f} s" if tuning else ""
    return [f"{seconds:.1f}", trials, f"{part['memory']['arena_bytes'] / 1e6:.2f}"]
