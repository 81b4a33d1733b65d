"""Small ONNX models as artifacts, through the rooms themselves."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx

from tvmstack.artifact import Manifest, write_artifact
from tvmstack.core.device import detect_device


def make_artifact(model: onnx.ModelProto, path: Path, regions: Collection[str] = (), **fields: Any) -> Path:
    """Compile a model with default schedules to `path`; `regions` names nodes for onnxruntime."""
    from tvmstack.frontend import load_model
    from tvmstack.graph import repair
    from tvmstack.lower import lower
    from tvmstack.lower.build import build_library
    from tvmstack.partition import make_plan

    plan = make_plan(repair(load_model(model)), regions)
    device = detect_device()
    lowered = lower(plan.model, device)
    library = path.with_suffix(".bare")
    build_library(lowered, {}, library)
    manifest = Manifest.describe(
        device=device,
        inputs=plan.model.inputs,
        outputs=plan.model.outputs,
        source={"name": "test", "digest": "0" * 64},
        changes=(),
        pipeline={"text": "", "digest": ""},
        plan={
            "tvm_nodes": 0,
            "regions": [
                {
                    "digest": r.digest,
                    "nodes": list(r.nodes),
                    "reasons": list(r.reasons),
                    "inputs": [s.to_json() for s in r.inputs],
                    "outputs": [s.to_json() for s in r.outputs],
                }
                for r in plan.regions
            ],
        },
        kernels=[],
        memory={},
        threads=fields.pop("threads", 2),
    )
    write_artifact(path, library, lowered.weights, [(r.digest, r.model) for r in plan.regions], manifest)
    library.unlink()
    return path
