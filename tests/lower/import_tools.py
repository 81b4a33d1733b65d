"""Tools of the importer's tests: tiny nodes in, compiled and compared with onnxruntime, many in one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from onnx import helper, numpy_helper

from tvmstack.core.device import detect_device
from tvmstack.core.model import Model, TensorSpec
from tvmstack.lower.support import supported


@dataclass(frozen=True)
class NodeCase:
    """One node. Inputs: arrays are fed, `fixed` ones become initializers, None is left out."""

    op: str
    inputs: Sequence[np.ndarray | None]
    fixed: Sequence[int] = ()
    outputs: int = 1
    domain: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ["-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs]
        return f"{self.op}({', '.join(shapes)}; {dict(self.attrs)})"


def node(
    op: str, *inputs: np.ndarray | None, fixed: Sequence[int] = (), outputs: int = 1, domain: str = "", **attrs: Any
) -> NodeCase:
    """Return a case; `fixed` lists the inputs that become constants of the model."""
    return NodeCase(op, inputs, tuple(fixed), outputs, domain, attrs)


def graph_of(cases: Sequence[NodeCase], opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one model that holds all cases side by side, shapes inferred, and what to feed it."""
    nodes, inputs, initializers, outputs = [], [], [], []
    feed: dict[str, np.ndarray] = {}
    for number, case in enumerate(cases):
        names = []
        for i, value in enumerate(case.inputs):
            array = None if value is None else np.asarray(value)
            name = "" if array is None else f"c{number}_i{i}"
            names.append(name)
            if array is None:
                continue
            if i in case.fixed:
                initializers.append(numpy_helper.from_array(np.asarray(array), name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
                feed[name] = array
        results = [f"c{number}_o{k}" for k in range(case.outputs)]
        outputs.extend(results)
        nodes.append(helper.make_node(case.op, names, results, name=f"case{number}", domain=case.domain, **case.attrs))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "cases", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], initializers)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=min(10, 8 if opset <= 18 else 10))
    return model, feed


def expected_of(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime computes with its optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


def with_shapes(model: onnx.ModelProto, results: Sequence[np.ndarray]) -> Model:
    """Return the model as the importer takes it; the outputs carry the shapes onnxruntime gave."""
    for value, array in zip(model.graph.output, results, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    return as_model(model)


def as_model(proto: onnx.ModelProto) -> Model:
    """Return a proto with static shapes as a `Model`."""
    graph = onnx_ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    inputs = tuple(_spec(v) for v in graph.graph.inputs if v.const_value is None)
    return Model(graph, inputs, tuple(_spec(v) for v in graph.graph.outputs), "0" * 64, "<test>")


def _spec(value: onnx_ir.Value) -> TensorSpec:
    dtype = "float32" if value.dtype is None else str(value.dtype.numpy().name)
    return TensorSpec(value.name or "", dtype, tuple(d if isinstance(d, int) else str(d) for d in value.shape or ()))


def refusals(model: Model) -> dict[str, str]:
    """Return node name to reason for the nodes that support refuses."""
    verdicts = {
        n.name or n.op_type: supported(n, model.graph.opset_imports.get(n.domain, 1)) for n in model.graph.graph
    }
    return {name: v.reason for name, v in verdicts.items() if not v}


def compute(model: Model, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Lower, build with default schedules and run."""
    from tvmstack._tvm import relax, tvm
    from tvmstack.lower import lower
    from tvmstack.lower.build import build_executable

    lowered = lower(model, detect_device())
    machine = relax.VirtualMachine(build_executable(lowered, {})[0], tvm.cpu())
    arrays = [feed[spec.name] for spec in model.inputs] + list(lowered.weights)
    result = machine["main"](*[tvm.runtime.tensor(np.asarray(a, order="C")) for a in arrays])
    return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]


def compare(cases: Sequence[NodeCase], opset: int, rtol: float = 1e-4, atol: float = 1e-5) -> list[str]:
    """Return one line for each case that is refused, or whose values, shape or type differ from onnxruntime's."""
    proto, feed = graph_of(cases, opset)
    wanted = expected_of(proto, feed)
    model = with_shapes(proto, wanted)
    refused = refusals(model)
    if refused:
        return [f"refused: {cases[int(n.removeprefix('case'))]}: {why}" for n, why in refused.items()]
    owners = [case for case in cases for _ in range(case.outputs)]
    return [
        f"{case}: {problem}"
        for case, got, want in zip(owners, compute(model, feed), wanted, strict=True)
        if (problem := difference(got, want, rtol, atol))
    ]


def difference(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
    """Say how two arrays differ, empty where they do not: integers exactly, NaN at the same places."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind in "iub":
        return "" if np.array_equal(got, want) else f"{np.sum(got != want)} of {want.size} values differ"
    if want.dtype == np.float16:
        rtol, atol = max(rtol, 2e-3), max(atol, 2e-3)
    a, b = got.astype(np.float64), want.astype(np.float64)
    if np.allclose(a, b, rtol, atol, equal_nan=True):
        return ""
    largest = np.nanmax(np.abs(a - b)) if a.size else 0
    return f"largest difference {largest:.3g}, first values {a.ravel()[:4]} and {b.ravel()[:4]}"
