"""Build models for several GPUs and write what their kernels take as a table for docs/explanation/gpu.md.

`python -m scripts.gpu_report [MODEL.onnx ...]`: the benchmark models, and the files given.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

import tvmstack
from benchmarks.models import MODELS
from tvmstack.artifact.manifest import read_manifest
from tvmstack.core.errors import TvmstackError

SMS = ("sm_80", "sm_89", "sm_90")


def models(files: list[str]) -> Iterator[tuple[str, Any]]:
    for name, make in MODELS.items():
        yield name, onnx.shape_inference.infer_shapes(make())
    for file in files:
        yield Path(file).stem, file


def row(name: str, model: Any, sm: str, folder: Path) -> str:
    path = folder / "model.so"
    try:
        tvmstack.compile(model, device=f"cuda:{sm}").save(path)
    except TvmstackError as err:
        return f"| {name} | {sm} | not built: {str(err).splitlines()[0][:160]} | | | | |"
    kernels = read_manifest(path).kernels
    steps = Counter(k["template"] for k in kernels)
    taken = [r for k in kernels for r in k.get("resources", {}).values()]
    spills = sum(r["spill_bytes"] > 0 for r in taken)
    refused = sum("refused" in k for k in kernels)
    served = ", ".join(f"{n} {t}" for t, n in steps.most_common())
    most, shared = max(r["registers"] for r in taken), max(r["shared_bytes"] for r in taken)
    return f"| {name} | {sm} | {served} | {most} | {shared} | {spills} | {refused} |"


def main(files: list[str]) -> None:
    print(
        "| model | SM | kernels by the step that serves them | most registers | most shared bytes | spill | refused |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models(files):
            for sm in SMS:
                print(row(name, model, sm, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
