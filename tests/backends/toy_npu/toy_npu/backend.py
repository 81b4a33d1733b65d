"""The compiler of the toy NPU: a chain of int8 convolutions and activations, weights turned to its own layout."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Samples, Support, Target
from tvmstack.core.errors import BackendError
from tvmstack.core.region import Region

_GROUP = 16
# Seconds: what a step costs by itself, and a multiply-accumulate or an element of the imagined hardware.
_COSTS = {"step": 2e-6, "QLinearConv": 1e-10, "Relu": 1e-9, "Add": 1e-9}


class ToyNpu:
    name = "toy_npu"
    in_process = False

    def probe(self) -> Capability:
        compiler = shutil.which("cc") or shutil.which("gcc")
        missing = "" if compiler else "a C compiler is missing"
        return Capability("0.1", bool(compiler), bool(compiler), False, missing, "apt-get install gcc", "none")

    def targets(self) -> Sequence[Target]:
        return (Target("npu1", "npu", True, 0.0, 1.0),)

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        graph = _graph(model)
        return {node.name: _verdict(node, graph) for node in graph.node}

    def estimate(self, region: Region, target: Target, options: Options) -> Cost:
        seconds = 0.0
        for step, arrays in _steps(region):
            macs = arrays["weights"].size if "weights" in arrays else 1
            seconds += _COSTS["step"] + _COSTS[step["op"]] * macs * float(np.prod(region.outputs[0].shape[2:]))
        return Cost(seconds, "estimated")

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        refused = [(n, v) for n, v in self.query(region.model, target).items() if v.support is not Support.SUPPORTED]
        if refused:
            raise BackendError(f"toy_npu refuses node {refused[0][0]}: {refused[0][1].reason}")
        stream, steps, arrays = io.BytesIO(), [], {}
        for index, (step, held) in enumerate(_steps(region)):
            steps.append(step)
            arrays.update({f"{index}_{key}": value for key, value in held.items()})
        np.savez(stream, steps=np.frombuffer(json.dumps(steps).encode(), np.uint8), **arrays)
        versions = {"toy-npu": "0.1"}
        return Blob(stream.getvalue(), self.name, target.name, self.name, region.inputs, region.outputs, versions)


def _graph(model: bytes) -> Any:
    import onnx

    try:
        return onnx.load_from_string(model).graph
    except Exception as err:
        raise BackendError(f"toy_npu cannot read the model: {err}") from err


def _weights(graph: Any) -> dict[str, np.ndarray]:
    from onnx import numpy_helper

    return {t.name: numpy_helper.to_array(t) for t in graph.initializer}


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _verdict(node: Any, graph: Any) -> NodeVerdict:
    if node.op_type == "Relu":
        kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
        is_int8 = 3 in (kinds.get(node.input[0]), kinds.get(node.output[0]))
        return NodeVerdict(Support.SUPPORTED) if is_int8 else _no("Relu of int8 only")
    if node.op_type == "Add":
        added = _weights(graph).get(node.input[1])
        if added is None or added.dtype != np.int8 or added.ndim < 3 or added.size != added.shape[-3]:
            return _no("Add of one constant int8 value for each channel only")
        if added.size % _GROUP:
            return _no(f"{added.size} channels: they must be a multiple of {_GROUP}")
        return NodeVerdict(Support.SUPPORTED)
    if node.op_type != "QLinearConv":
        return _no(f"the NPU has no {node.op_type}")
    weights, attributes = _weights(graph), _attributes(node)
    weight, zero = weights.get(node.input[3]), weights.get(node.input[5])
    if weight is None or weight.dtype != np.int8 or zero is None or np.any(zero):
        return _no("weights must be constant, int8 and symmetric")
    if weight.shape[0] % _GROUP or weight.shape[1] % _GROUP:
        return _no(f"{weight.shape[1]} to {weight.shape[0]} channels: both must be multiples of {_GROUP}")
    if len(set(attributes.get("pads", [0]))) != 1 or len(set(attributes.get("strides", [1]))) != 1:
        return _no("pads and strides must be the same at each side")
    if attributes.get("group", 1) != 1 or set(attributes.get("dilations", [1])) != {1}:
        return _no("no groups, no dilations")
    return NodeVerdict(Support.SUPPORTED)


def _no(reason: str) -> NodeVerdict:
    return NodeVerdict(Support.UNSUPPORTED, reason)


def _steps(region: Region) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    graph = _graph(region.model)
    weights, value, steps = _weights(graph), graph.input[0].name if graph.input else "", []
    for node in graph.node:
        if node.input[0] != value:
            raise BackendError(f"toy_npu runs chains only; node {node.name} does not follow the one before it")
        value = node.output[0]
        if node.op_type == "Relu":
            steps.append(({"op": "Relu"}, {}))
            continue
        if node.op_type == "Add":
            steps.append(({"op": "Add"}, {"added": np.ascontiguousarray(weights[node.input[1]].reshape(-1))}))
            continue
        x_scale, x_zero, weight, w_scale, _, y_scale, y_zero = (weights[n] for n in node.input[1:3] + node.input[3:8])
        attributes, count = _attributes(node), weight.shape[0]
        scale = np.broadcast_to(x_scale * w_scale / y_scale, (count,)).astype(np.float32)
        bias = weights[node.input[8]] if len(node.input) > 8 else np.zeros(count, np.int32)
        facts = {"pad": attributes.get("pads", [0])[0], "stride": attributes.get("strides", [1])[0]}
        step = {"op": "QLinearConv", "x_zero": int(x_zero), "y_zero": int(y_zero), **facts}
        held = {"weights": np.ascontiguousarray(weight.transpose(0, 2, 3, 1)), "scale": scale, "bias": bias}
        steps.append((step, held))
    return steps
