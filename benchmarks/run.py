"""`make bench`: our time against onnxruntime's on well-known models; writes docs/benchmarks.md and JSON.

Each model is compiled untuned and benched, then tuned and benched again: same threads, each program in its own
process, in turns.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS, write
from benchmarks.wheels import CACHE, WHEEL_MODELS, fetch
from tvmstack import driver
from tvmstack.core.device import detect_device
from tvmstack.core.errors import TvmstackError
from tvmstack.measure.machine import examine
from tvmstack.measure.stats import geometric_mean

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("mobilenet_v2", "ppocrv4_det", "minilm_l6_1x32")


def main() -> int:
    options = _options()
    names = options.models or (QUICK if options.quick else [*MODELS, "ppocrv4_det", "ppocrv4_rec"])
    logging.getLogger("tvmstack").addHandler(logging.StreamHandler())
    logging.getLogger("tvmstack").setLevel(logging.INFO)
    rows = []
    for name in names:
        rows.append(_measure(name, options))
        print(_page_row(rows[-1]), flush=True)
    result = {
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "threads": options.threads,
        "machine": examine(with_peaks=True),
        "models": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.page:
        options.page.write_text(page(result))
    print(page(result))
    return 1 if any("error" in row for row in rows) else 0


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"which: {', '.join([*MODELS, *WHEEL_MODELS])}")
    parser.add_argument("--quick", action="store_true", help="the small models, tuned one minute each")
    parser.add_argument("--tune", default=None, help="time to tune each model for: 10m; none: untuned only")
    parser.add_argument("--threads", type=int, default=detect_device().cores)
    parser.add_argument("--json", type=Path, default=CACHE / "benchmarks" / "result.json")
    parser.add_argument("--page", type=Path, default=None, help="the page to rewrite")
    parser.add_argument("--store", type=Path, default=CACHE / "benchmarks" / "store.db")
    options = parser.parse_args()
    if options.quick and options.tune is None:
        options.tune = "60s"
    if not options.models and not options.quick and options.page is None:
        options.page = ROOT / "docs" / "benchmarks.md"
    return options


def _measure(name: str, options: Any) -> dict[str, Any]:
    """Return a model's row; a model that cannot be had or compiled gives its reason instead of times."""
    row: dict[str, Any] = {"model": name}
    try:
        wheel = WHEEL_MODELS.get(name)
        path = fetch(name) if wheel else write(name, CACHE / "benchmarks" / f"{name}.onnx")
        shapes = wheel.shapes if wheel else {}
        row["untuned"] = _compile_and_bench(path, shapes, options, None)
        if options.tune:
            row["tuned"] = _compile_and_bench(path, shapes, options, options.tune)
    except (OSError, TvmstackError) as err:
        row["error"] = f"{type(err).__name__}: {err}"
        print(f"{name}: {row['error']}", file=sys.stderr)
    return row


def _compile_and_bench(
    path: Path, shapes: dict[str, tuple[int, ...]], options: Any, tune: str | None
) -> dict[str, Any]:
    # The untuned build must not find what tuning left behind.
    store = options.store if tune else ":memory:"
    artifact = driver.compile(path, shapes=shapes, tune=tune, store=store, threads=options.threads)
    file = artifact.save(CACHE / "benchmarks" / f"{path.stem}-{'tuned' if tune else 'untuned'}.so")
    report = driver.bench(file, path, against=["onnxruntime"], threads=options.threads, rounds=9).to_json()
    ours, theirs = report["peers"]
    return {
        "ours_ms": ours["summary"]["median_s"] * 1e3,
        "onnxruntime_ms": theirs["summary"]["median_s"] * 1e3,
        "ratio": theirs["ratio"],
        "peak_rss_bytes": [ours["peak_rss_bytes"], theirs["peak_rss_bytes"]],
        "compile_s": artifact.report["seconds"],
        "tuning": artifact.report["tuning"] and {k: artifact.report["tuning"][k] for k in ("trials", "seconds")},
    }


def page(result: dict[str, Any]) -> str:
    """Return the page: where, how, a row a model, geometric means."""
    machine, peaks = result["machine"], result["machine"]["peaks"]
    versions = machine["versions"]
    device = machine["device"]
    lines = [
        "# Benchmarks",
        "",
        f"`{result['command']}`, {result['when']}.",
        "",
        f"{device['name']} (`{device['id']}`), {result['threads']} threads, {platform.machine()}; "
        f"measured peaks {peaks['gflops']:.0f} GFLOP/s and {peaks['gbytes']:.1f} GB/s at the time. "
        f"apache-tvm {versions['apache-tvm']}, onnxruntime {versions['onnxruntime']}. fp32, batch 1.",
        "",
        "Medians; each program in its own process, in turns (docs/explanation/how-it-measures.md). "
        "The ratio is our time over onnxruntime's, the median of the rounds with the lowest and the "
        "highest in brackets: below 1 we are faster.",
        "",
        "| model | onnxruntime ms | untuned ms | ratio | tuned ms | ratio | trials |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_page_row(row) for row in result["models"]]
    for stage in ("untuned", "tuned"):
        ratios = [row[stage]["ratio"]["median"] for row in result["models"] if stage in row]
        if ratios:
            lines += [
                "",
                f"Geometric mean of the ratios, {stage}: **{geometric_mean(ratios):.2f}** over {len(ratios)} models.",
            ]
    return "\n".join(lines) + "\n"


def _page_row(row: dict[str, Any]) -> str:
    if "untuned" not in row:
        return f"| {row['model']} | {row['error']} | | | | | |"
    cells = [row["model"], f"{row['untuned']['onnxruntime_ms']:.2f}"]
    for stage in ("untuned", "tuned"):
        cells += _stage_cells(row[stage]) if stage in row else ["", ""]
    tuning = row.get("tuned", {}).get("tuning")
    return "| " + " | ".join([*cells, f"{tuning['trials']} in {tuning['seconds']:.0f} s" if tuning else ""]) + " |"


def _stage_cells(stage: dict[str, Any]) -> list[str]:
    ratio = stage["ratio"]
    return [f"{stage['ours_ms']:.2f}", f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"]


if __name__ == "__main__":
    sys.exit(main())
