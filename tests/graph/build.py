"""Small ONNX models and the comparison of a repaired model with the one it came from, by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from onnx import helper, numpy_helper

from tvmstack.core.model import Model
from tvmstack.frontend import load_model
from tvmstack.graph import repair

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def node(op: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: object) -> onnx.NodeProto:
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    return helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    types: Mapping[str, int] | None = None,
    **extra: object,
) -> onnx.ModelProto:
    """Return a model; inputs are float unless `types` says otherwise, shapes of outputs are left to inference."""
    kinds = types or {}
    ins = [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), None) for n in outputs]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", ins, outs, tensors)
    opsets = [helper.make_opsetid("", opset), *extra.pop("opsets", [])]  # type: ignore[misc]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 10, **extra)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(data: bytes, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def random_feeds(repaired: Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    feeds = {}
    for spec in repaired.inputs:
        shape = [d for d in spec.shape if isinstance(d, int)]
        feeds[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        if spec.dtype.startswith("int"):
            feeds[spec.name] = rng.integers(0, 3, shape).astype(spec.dtype)
    return feeds


def repaired_same(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray] | None = None, rtol: float = 1e-5) -> Model:
    """Repair; assert that onnxruntime computes the same as before, with the shapes the signature promises."""
    result = repair(load_model(proto))
    given = dict(feeds) if feeds is not None else random_feeds(result)
    wanted = run(proto.SerializeToString(), given)
    got = run(onnx_ir.to_proto(result.graph).SerializeToString(), given)
    for spec, a, b in zip(result.outputs, got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=spec.name)
        if spec.is_static:
            assert spec.shape == a.shape
    if all(v.shape is not None for v in result.graph.graph.outputs):
        onnx.checker.check_model(onnx_ir.to_proto(result.graph))
    return result


def ops(result: Model) -> list[str]:
    return [n.op_type for n in result.graph.graph]
