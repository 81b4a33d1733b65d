"""Pages about artifacts: what was built, what one says of itself, whether it fits, is right, and what it gave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvmstack.report.plan import choice_lines
from tvmstack.report.words import count, duration, few, size

__all__ = [
    "build_page",
    "check_page",
    "manifest_page",
    "memory_line",
    "outputs_page",
    "package_page",
    "verification_page",
]


def build_page(report: Mapping[str, Any]) -> RenderableType:
    """Return what `compile` did: the file, who runs what, where schedules came from, how the comparison went."""
    table = _pairs()
    table.add_row("artifact", f"{report['path']} ({size(report['size_bytes'])})")
    table.add_row("model", f"{report['source']}; {count(report['nodes'], 'node')} after repair")
    table.add_row("device", f"{report['device']}, {count(report['threads'], 'thread')}")
    table.add_row("nodes", _owners(report["tvm_nodes"], report["regions"]))
    table.add_row("kernels", f"{report['kernels']} ({_counted(report['sources'])})")
    table.add_row("memory", memory_line(report["memory"]))
    if report.get("choice"):
        table.add_row("plan", "\n".join(choice_lines(report["choice"])) or report["choice"]["chosen"])
    if report["tuning"]:
        tuning = report["tuning"]
        table.add_row("tuning", f"{tuning['trials']} trials in {duration(tuning['seconds'])}")
    on_gpu = str(report["device"]).startswith("cuda-")
    table.add_row("compared", "no (that needs the GPU)" if on_gpu else verification_line(report["verification"]))
    table.add_row("time", ", ".join(f"{stage} {duration(s)}" for stage, s in report["seconds"].items()))
    return table


def _owners(tvm_nodes: int, regions: Sequence[Mapping[str, Any]]) -> str:
    if not regions:
        return f"all {tvm_nodes} by TVM"
    nodes: Counter[str] = Counter()
    for region in regions:
        nodes[_owner(region)] += len(region["nodes"])
    owners = ", ".join(f"{number} by {owner}" for owner, number in nodes.items())
    return f"{tvm_nodes} by TVM, {owners} in {count(len(regions), 'region')}"


def _owner(region: Mapping[str, Any]) -> str:
    """Return who runs a region: the back end, and the target where it is not the plain CPU."""
    target = region.get("target", "cpu")
    name = str(region.get("backend", "onnxruntime"))
    return name if target == "cpu" else f"{name}:{target}"


def _counted(sources: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {source}" for source, number in sources.items()) or "none"


def verification_line(result: Mapping[str, Any] | None) -> str:
    """Return one line on how a comparison went."""
    if not result:
        return "no (--no-verify)"
    sets, worst = count(result.get("cases", 0), "input set"), result.get("worst", 0.0)
    words = f"{sets}, largest difference {worst:.2g} of the largest output"
    return f"{words}, allowed {result['tolerance']:.0e}" if "tolerance" in result else words


def memory_line(memory: Mapping[str, int]) -> str:
    """Return what a run needs beside its inputs: weights, arena and how good its plan is, outputs."""
    words = f"weights {size(memory['weights_bytes'])}, arena {size(memory['arena_bytes'])}"
    if not memory.get("live_bytes"):
        return words
    ratio = memory["arena_bytes"] / memory["live_bytes"]
    return (
        f"{words} ({ratio:.2f} of the {size(memory['live_bytes'])} alive at once; "
        f"{count(memory['tensors'], 'tensor')} of {size(memory['tensors_bytes'])} in all, "
        f"{count(memory['views'], 'reshape')} in place), outputs {size(memory['output_bytes'])}"
    )


def manifest_page(data: Mapping[str, Any], kernels: bool) -> RenderableType:
    """Return an artifact's manifest for people, with every kernel where asked."""
    table = _pairs()
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(data["created"]))
    table.add_row("made", f"{made} by tvmstack {data['versions'].get('tvmstack', '?')}")
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in data["versions"].items() if k != "tvmstack"))
    table.add_row("model", f"{data['source']['name']} (sha256 {data['source']['digest'][:16]}…)")
    table.add_row(
        "device", f"{data['device']['name']}; id {data['device']['id']}; needs {' '.join(data['device']['features'])}"
    )
    table.add_row("inputs", _specs(data["inputs"]))
    table.add_row("outputs", _specs(data["outputs"]))
    table.add_row("nodes", _owners(data["plan"]["tvm_nodes"], data["plan"]["regions"]))
    table.add_row("kernels", f"{len(data['kernels'])} ({_counted(Counter(k['source'] for k in data['kernels']))})")
    table.add_row("memory", memory_line(data["memory"]))
    table.add_row("threads", str(data["threads"]))
    table.add_row("compared", verification_line(data["verification"]))
    parts: list[RenderableType] = [table]
    parts += [_region(region) for region in data["plan"]["regions"]]
    parts += [Text(f"changed: {line}") for line in data["changes"]]
    if kernels:
        parts.append(_kernels(data["kernels"]))
    return Group(*parts)


def _specs(specs: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{s['name']}: {s['dtype']} [{', '.join(map(str, s['shape']))}]" for s in specs)


def _region(region: Mapping[str, Any]) -> Text:
    reasons = "; ".join(region["reasons"]) or "asked for"
    versions = ", ".join(f"{package} {version}" for package, version in region["versions"].items() if version)
    engine = f"engine {region['engine']}" if region["engine"] else "no engine: it runs elsewhere"
    facts = engine + (f", needs {versions}" if versions else "")
    return Text(f"{_owner(region)} region {region['digest']} ({facts}): {', '.join(region['nodes'])} ({reasons})")


def _kernels(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table()
    for name in ("kernel", "calls", "schedule", "from", "measured", "MFLOP", "nodes"):
        table.add_column(name, justify="right" if name in ("calls", "measured", "MFLOP") else "left", overflow="fold")
    on_gpu = int(any("resources" in k for k in rows))
    if on_gpu:
        table.add_column("takes", overflow="fold")
    for k in rows:
        measured = f"{k['median_us']:.1f} µs" if k.get("median_us") else ""
        table.add_row(
            k["name"],
            str(k["calls"]),
            k["template"],
            k["source"],
            measured,
            f"{k['flops'] / 1e6:.2f}",
            few(k.get("nodes", ())),
            *(_resources(k) for _ in range(on_gpu)),
        )
    return table


def _resources(kernel: Mapping[str, Any]) -> str:
    """Return what a kernel's functions take of the GPU, and what its better schedules were refused for."""
    rows = [
        f"{r['registers']} registers, {r['shared_bytes']} B shared, {r['spill_bytes']} B spilled"
        for r in kernel.get("resources", {}).values()
    ]
    return "\n".join([*rows, *(f"refused {words}" for words in kernel.get("refused", ()))])


def check_page(data: Mapping[str, Any]) -> RenderableType:
    """Return one row for each thing checked, with its reason where it fails."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in data["rows"]:
        mark = Text("ok", style="green") if row["ok"] else Text("NO", style="red")
        table.add_row(mark, row["name"], ". ".join(w for w in (row.get("reason", ""), row.get("hint", "")) if w))
    return table


def package_page(data: Mapping[str, Any]) -> RenderableType:
    """Return what a package holds and what must be on the target besides."""
    table = _pairs()
    total = sum(row["size"] for row in data["files"])
    table.add_row("package", f"{data['folder']} for {data['arch']}: {count(len(data['files']), 'file')}, {size(total)}")
    if data["libraries_bytes"]:
        table.add_row("runtime", f"{size(data['libraries_bytes'])} of libraries")
    for note in data["notes"]:
        table.add_row("needs", note)
    return table


def verification_page(data: Mapping[str, Any]) -> RenderableType:
    """Return how a comparison went."""
    return Text(f"right: {verification_line(data)}", style="green")


def outputs_page(data: Mapping[str, Any]) -> RenderableType:
    """Return a row an output: type, shape, range and mean."""
    table = Table()
    for name in ("output", "type", "shape", "min", "mean", "max"):
        table.add_column(name, overflow="fold")
    for row in data["outputs"]:
        numbers = [f"{row[k]:.6g}" if row[k] is not None else "" for k in ("min", "mean", "max")]
        table.add_row(row["name"], row["dtype"], str(row["shape"]), *numbers)
    return table


def _pairs() -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table
