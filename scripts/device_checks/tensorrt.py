"""Build engines of TensorRT, run them on this machine's GPU, compare them with onnxruntime and time them; JSON out.

`--dry-run` does what needs no GPU: it builds for sm86 and loads nothing. The comparison is `hand_over`'s own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from benchmarks.models import MODELS
from tvmstack.backends.base import Options
from tvmstack.backends.registry import open_backend
from tvmstack.core.errors import BackendError
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region
from tvmstack.driver.handoff import hand_over, price
from tvmstack.runtime.engines.cuda import gpu_targets

NAMES = ("resnet50", "bert_base_1x128")


def region_of(model: onnx.ModelProto) -> Region:
    data = model.SerializeToString()
    names = tuple(n.name for n in model.graph.node)
    inputs, outputs = (tuple(_spec(v) for v in values) for values in (model.graph.input, model.graph.output))
    return Region(hashlib.sha256(data).hexdigest()[:16], data, inputs, outputs, names, ())


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return TensorSpec(value.name, dtype, tuple(d.dim_value for d in kind.shape.dim))


def samples_of(region: Region) -> dict[str, list[np.ndarray]]:
    random = np.random.default_rng(0)
    return {
        s.name: [
            random.standard_normal(s.shape).astype(s.dtype)
            if s.dtype.startswith("float")
            else random.integers(0, 2, s.shape).astype(s.dtype)
        ]
        for s in region.inputs
    }


def one(name: str, target: str, folder: Path) -> dict[str, Any]:
    region = region_of(MODELS[name]())
    samples, records, options = samples_of(region), SimpleNamespace(name=str(folder / "store.db")), Options()
    row: dict[str, Any] = {"model": name, "target": target}
    backend, wanted = open_backend(f"tensorrt:{target}")
    start = time.perf_counter()
    try:
        blob = hand_over(region, backend, wanted, options, samples, records)
    except BackendError as err:
        return {**row, "ok": False, "error": str(err)}
    row |= {"ok": True, "build_s": round(time.perf_counter() - start, 2), "bytes": len(blob.data)}
    row |= {"versions": dict(blob.versions), "compared": wanted.runs_here}
    if wanted.runs_here:
        cost = price(region, blob, backend, wanted, options, samples, records)
        row["seconds"] = cost.seconds if cost else None
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--models", nargs="*", default=NAMES)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    gpus = gpu_targets()
    if not gpus and not asked.dry_run:
        parser.error("there is no NVIDIA GPU here; --dry-run does what needs none")
    backend_target = "sm86" if asked.dry_run else gpus[0]
    with tempfile.TemporaryDirectory() as folder:
        rows = [one(name, backend_target, Path(folder)) for name in asked.models]
    text = json.dumps({"gpus": gpus, "rows": rows}, indent=2)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
