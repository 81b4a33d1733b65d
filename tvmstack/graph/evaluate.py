"""Asking onnxruntime about one node: what it computes for constants, and what shapes it infers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir
import onnxruntime

from tvmstack.graph.values import captured_values

__all__ = ["evaluate_node", "infer_node", "is_accepted", "refusal_of"]

_LOG = logging.getLogger(__name__)
# Newest file version that the oldest onnxruntime we allow reads.
_IR_VERSION = 10


def evaluate_node(
    node: onnx_ir.Node, arrays: Sequence[np.ndarray | None], opsets: Mapping[str, int]
) -> list[np.ndarray] | None:
    """Compute a node's outputs from its inputs; None where onnxruntime will not.

    Constants are fed as inputs, so that large weights are not copied into a model.
    """
    feeds = {f"i{k}": a for k, a in enumerate(arrays) if a is not None}
    if any(a.dtype.type.__module__ != "numpy" for a in feeds.values()):
        return None
    types = {
        n: onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    }
    session = _session(node, types, opsets)
    if isinstance(session, str):
        _LOG.debug("not folded: %s (%s): %s", node.name, node.op_type, session)
        return None
    try:
        return [np.asarray(r) for r in session.run(None, feeds)]
    except Exception as err:  # noqa: BLE001  (border: onnxruntime's errors share no class)
        _LOG.debug("not folded: %s (%s): %s", node.name, node.op_type, err)
        return None


def infer_node(
    node: onnx_ir.Node, opsets: Mapping[str, int]
) -> list[tuple[onnx_ir.DataType | None, tuple[int | None, ...] | None]]:
    """Return type and dims of each output as onnxruntime infers them from the inputs' shapes; empty where it cannot."""
    session = _session(node, _types(node), opsets)
    if isinstance(session, str):
        return []
    return [(_dtype(o.type), _dims(o.shape)) for o in session.get_outputs()]


def is_accepted(model: onnx_ir.Model) -> bool:
    """Whether onnxruntime takes the graph when the shapes of inputs, outputs and inner values are left open."""
    proto = onnx_ir.to_proto(model)
    del proto.graph.value_info[:]
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.ClearField("shape")
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), session_options(), providers=["CPUExecutionProvider"])
    except ValueError as err:  # over protobuf's 2 GB: not to be asked this way
        _LOG.info("not asked whether onnxruntime takes the graph: %s", err)
    except Exception as err:  # noqa: BLE001  (border: onnxruntime's errors share no class)
        _LOG.info("onnxruntime refuses the repaired graph: %s", str(err).splitlines()[0])
        return False
    return True


def refusal_of(node: onnx_ir.Node, opsets: Mapping[str, int]) -> str:
    """Return onnxruntime's reason for not taking a node, empty where it takes it or the node alone cannot tell."""
    if any(v is not None and v.name != "" and v.dtype is None for v in node.inputs) or captured_values(node):
        return ""
    session = _session(node, _types(node), opsets)
    return session if isinstance(session, str) else ""


def _types(node: onnx_ir.Node) -> dict[str, onnx.ValueInfoProto]:
    types = {}
    for number, value in enumerate(node.inputs):
        if value is not None and value.name != "":
            dims = None if value.shape is None else [d if isinstance(d, int) else None for d in value.shape]
            kind = 1 if value.dtype is None else int(value.dtype)
            types[f"i{number}"] = onnx.helper.make_tensor_value_info(f"i{number}", kind, dims)
    return types


def _session(
    node: onnx_ir.Node, types: Mapping[str, onnx.ValueInfoProto], opsets: Mapping[str, int]
) -> onnxruntime.InferenceSession | str:
    proto = onnx_ir.serde.serialize_node(node)
    proto.input[:] = [f"i{k}" if f"i{k}" in types else "" for k in range(len(node.inputs))]
    proto.output[:] = [f"o{k}" if v.name else "" for k, v in enumerate(node.outputs)]
    outputs = [onnx.ValueInfoProto(name=n) for n in proto.output if n]
    graph = onnx.helper.make_graph([proto], "one_node", list(types.values()), outputs)
    imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as err:  # noqa: BLE001  (border: onnxruntime's errors share no class)
        return str(err)


def session_options() -> onnxruntime.SessionOptions:
    """Return the options of a session that computes as the operators say: nothing optimised, one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


_ORT_NAMES = {
    "tensor(float)": onnx_ir.DataType.FLOAT,
    "tensor(double)": onnx_ir.DataType.DOUBLE,
    "tensor(bool)": onnx_ir.DataType.BOOL,
    "tensor(string)": onnx_ir.DataType.STRING,
}


def _dtype(text: str) -> onnx_ir.DataType | None:
    if text in _ORT_NAMES:
        return _ORT_NAMES[text]
    return getattr(onnx_ir.DataType, text.removeprefix("tensor(").removesuffix(")").upper(), None)


def _dims(dims: Sequence[object] | None) -> tuple[int | None, ...] | None:
    # onnxruntime says [] for a scalar and for an unknown rank alike.
    return None if not dims else tuple(d if isinstance(d, int) else None for d in dims)
