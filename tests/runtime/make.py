"""Small ONNX models as artifacts, through the rooms themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tvmstack.artifact import Manifest, write_artifact
from tvmstack.core.device import Device, detect_device
from tvmstack.core.region import Region


def make_artifact(
    model: onnx.ModelProto,
    path: Path,
    regions: Collection[str] = (),
    device: Device | None = None,
    hand: Callable[[Region], tuple[dict[str, Any], bytes]] | None = None,
    **fields: Any,
) -> Path:
    """Compile a model with default schedules to `path`; `regions` names nodes for onnxruntime.

    `hand` returns more fields of a region's row and its bytes, for another engine.
    """
    from tvmstack.frontend import load_model
    from tvmstack.graph import repair
    from tvmstack.lower import lower
    from tvmstack.lower.build import build_library
    from tvmstack.partition import make_plan

    plan = make_plan(repair(load_model(model)), regions)
    device = device or detect_device()
    handed = [hand(r) if hand else ({}, r.model) for r in plan.regions]
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
                    **more,
                }
                for r, (more, _) in zip(plan.regions, handed, strict=True)
            ],
        },
        kernels=[],
        memory={},
        threads=fields.pop("threads", 2),
    )
    write_artifact(
        path,
        library,
        lowered.weights,
        [(r.digest, b) for r, (_, b) in zip(plan.regions, handed, strict=True)],
        manifest,
    )
    library.unlink()
    return path


TYPES = {
    "f16": TensorProto.FLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "b": TensorProto.BOOL,
}


def many_types() -> onnx.ModelProto:
    """Return a model that turns NAME: TYPE [2, 3] into out_NAME of the same type, plus a scalar, a passed-on input."""
    node, values = helper.make_node, {"in": [], "out": []}
    nodes = []
    for name, kind in TYPES.items():
        operator = "Not" if name == "b" else "Add"
        nodes.append(node(operator, [name] if name == "b" else [name, name], [f"out_{name}"]))
        values["in"].append(helper.make_tensor_value_info(name, kind, (2, 3)))
        values["out"].append(helper.make_tensor_value_info(f"out_{name}", kind, (2, 3)))
    nodes += [node("Mul", ["scalar", "scalar"], ["square"]), node("Identity", ["large"], ["same"])]
    values["in"] += [_float("scalar", ()), _float("large", (64, 256))]
    values["out"] += [_float("square", ()), _float("same", (64, 256))]
    graph = helper.make_graph(nodes, "types", values["in"], values["out"])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _float(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
