"""`make bench`: our time and memory against onnxruntime's and OpenVINO's on well-known models.

Each model is compiled untuned and benched, then tuned and benched again: same threads, each program alone in its own
process, the processes in turns. What is measured is kept at once, so that a run that was killed goes on with --resume.
Writes docs/benchmarks.md and docs/benchmarks.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.catalog import CALL, DEFAULT, QUICK, Source, given, names, source
from benchmarks.page import page, row_line
from benchmarks.wheels import CACHE
from tvmstack import driver
from tvmstack.core.device import detect_device
from tvmstack.core.errors import TvmstackError
from tvmstack.measure.machine import examine
from tvmstack.measure.peaks import measure_peaks

ROOT = Path(__file__).resolve().parent.parent
FOLDER = CACHE / "benchmarks"
_ROUNDS, _SECONDS = 9, 0.5


def main() -> int:
    options = _options()
    logging.getLogger("tvmstack").addHandler(logging.StreamHandler())
    logging.getLogger("tvmstack").setLevel(logging.INFO)
    machine = examine(with_peaks=True)
    settings = _settings(options, machine)
    if not options.resume and options.store is None:
        for file in FOLDER.glob("store.db*"):
            file.unlink()
    call = measured(source(CALL), {**settings, "tune": None}, options)
    rows = []
    for model in options.sources:
        rows.append(measured(model, settings, options))
        print(row_line(rows[-1], settings["peers"]), flush=True)
    result = {
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
        "when": _now(),
        "commit": _commit(),
        "settings": settings,
        "machine": machine,
        "call": call,
        "models": rows,
    }
    _keep(options.json, result)
    if options.page:
        options.page.write_text(page(result))
    print(page(result))
    return 1 if any("error" in row for row in rows) else 0


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help=f"which: {', '.join(names())}")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH.onnx", help="a file of your own")
    parser.add_argument("--quick", action="store_true", help="the small models, tuned 45 s each; writes no page")
    parser.add_argument("--tune", default=None, metavar="TIME", help="tune each for so long: 10m; none: untuned only")
    parser.add_argument("--against", default="onnxruntime,openvino", help="peers, with commas")
    parser.add_argument("--threads", type=int, default=detect_device().cores)
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run with these settings measured")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go")
    parser.add_argument("--page", type=Path, default=None, help="the page to write")
    parser.add_argument("--store", type=Path, default=None, help="records to tune into [default: an empty store]")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in names()]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; known are {', '.join(names())}")
    try:
        own = given(options.model)
    except ValueError as err:
        parser.error(str(err))
    chosen = options.models or ([] if own else QUICK if options.quick else DEFAULT)
    options.sources = [*(source(name) for name in chosen), *own]
    if options.quick and options.tune is None:
        options.tune = "45s"
    whole = not options.quick and not options.models and not own
    options.page = options.page or (ROOT / "docs" / "benchmarks.md" if whole else None)
    options.json = options.json or (ROOT / "docs" if whole else FOLDER) / "benchmarks.json"
    return options


def _settings(options: Any, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that must be equal for a kept row to stand for a new one."""
    return {
        "tune": options.tune,
        "threads": options.threads,
        "peers": [name.strip() for name in options.against.split(",") if name.strip()],
        "rounds": _ROUNDS,
        "seconds": _SECONDS,
        "device": machine["device"]["id"],
        "versions": {**machine["versions"], "openvino": machine["optional"]["openvino"]["version"]},
    }


def measured(model: Source, settings: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """Return a model's row, measuring what is not kept from before; what fails gives its reason instead of times."""
    kept = FOLDER / "rows" / f"{model.name}.json"
    row = _kept_row(kept, settings) if options.resume else {}
    if not row:
        row = {"model": model.name, "settings": settings, "when": _now(), "commit": _commit()}
        row["peaks"] = measure_peaks(settings["threads"]).to_json()
    row.pop("error", None)
    try:
        for stage, tune in (("untuned", None), ("tuned", settings["tune"])):
            if stage not in row and (stage == "untuned" or tune):
                row[stage] = _compile_and_bench(model, settings, options, tune)
                _keep(kept, row)
    except (OSError, TvmstackError) as err:
        row["error"] = f"{type(err).__name__}: {err}"
        print(f"{model.name}: {row['error']}", file=sys.stderr)
    return row


def _kept_row(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row an earlier run kept, empty where there is none or it was measured in another way."""
    if not path.exists():
        return {}
    row: dict[str, Any] = json.loads(path.read_text())
    return row if row["settings"] == settings else {}


def _keep(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(path)


def _compile_and_bench(model: Source, settings: Mapping[str, Any], options: Any, tune: str | None) -> dict[str, Any]:
    path, threads = model.file(), settings["threads"]
    # The untuned build must not find what tuning left behind, nor what is shipped.
    store = (options.store or FOLDER / "store.db") if tune else ":memory:"
    artifact = driver.compile(
        path, model.shapes, tune=tune, store=store, threads=threads, freeze=model.freeze, shipped=False
    )
    file = artifact.save(FOLDER / f"{model.name}-{'tuned' if tune else 'untuned'}.so")
    report = driver.bench(
        file, path, settings["peers"], threads=threads, rounds=settings["rounds"], seconds=settings["seconds"]
    ).to_json()
    tuning = artifact.report["tuning"]
    return {
        "peers": {peer["name"]: _figures(peer) for peer in report["peers"]},
        "missing": report["missing"],
        "notes": report["notes"],
        "compile_s": artifact.report["seconds"],
        "sources": dict(Counter(kernel["source"] for kernel in artifact.manifest.kernels)),
        "memory": dict(artifact.manifest.memory),
        "tuning": tuning and {k: tuning[k] for k in ("trials", "seconds")},
    }


def _figures(peer: Mapping[str, Any]) -> dict[str, Any]:
    times = peer["summary"]
    return {
        "version": peer["version"],
        **{f"{name}_ms": times[f"{name}_s"] * 1e3 for name in ("median", "p10", "p90", "mad", "min")},
        "runs": times["count"],
        "peak_rss_bytes": peer["peak_rss_bytes"],
        "ratio": peer.get("ratio"),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _commit() -> str:
    """Return the commit of this checkout, "" outside of one; "+" says that files were changed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
