"""Nodes whose inputs are all constants are computed by onnxruntime, so that folding gives what the model would.

Left alone: what would make the weights grow (an expanded scalar), random numbers, and the de-quantisation of weights,
which says how the model was quantised.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from tvmstack.graph.evaluate import evaluate_node
from tvmstack.graph.values import add_initializer, constant, replace_value, size_of, static_shape, subgraphs_of

__all__ = ["name", "run"]

name = "fold-constants"
_NEVER = frozenset(
    [
        "Bernoulli",
        "DequantizeLinear",
        "If",
        "Loop",
        "Multinomial",
        "QuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Scan",
        "SequenceMap",
    ]
)
_DOMAINS = ("", "ai.onnx", "com.microsoft")
# A result may take this much, or this many times what it is made from.
_FREE_BYTES = 1 << 24
_GROWTH = 2


def run(model: onnx_ir.Model) -> list[str]:
    """Fold the main graph's constant nodes; return how many."""
    folded = 0
    for node in list(model.graph):
        arrays = _shape_of(node) if node.op_type in ("Shape", "Size") else _computed(node, model)
        if arrays is None or len(arrays) != sum(bool(v.name) for v in node.outputs):
            continue
        folded += _replace(model.graph, node, arrays)
    return [f"folded {folded} constant nodes"] if folded else []


def _replace(graph: onnx_ir.Graph, node: onnx_ir.Node, arrays: list[np.ndarray]) -> bool:
    outputs = [v for v in node.outputs if v.name]
    if any(v.is_graph_output() for v in outputs):
        return False
    for value, array in zip(outputs, arrays, strict=True):
        replace_value(value, add_initializer(graph, value.name or "constant", array))
    graph.remove(node, safe=True)
    return True


def _shape_of(node: onnx_ir.Node) -> list[np.ndarray] | None:
    shape = static_shape(node.inputs[0])
    if shape is None:
        return None
    if node.op_type == "Size":
        return [np.asarray(np.prod(shape, dtype=np.int64))]
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    end = node.attributes["end"].as_int() if "end" in node.attributes else None
    return [np.asarray(shape[start:end], np.int64)]


def _computed(node: onnx_ir.Node, model: onnx_ir.Model) -> list[np.ndarray] | None:
    if node.op_type in _NEVER or node.domain not in _DOMAINS or any(True for _ in subgraphs_of(node)):
        return None
    inputs = [v if v is not None and v.name != "" else None for v in node.inputs]
    if any(v is not None and not v.is_initializer() for v in inputs) or not _fits(node):
        return None
    arrays = [constant(v) for v in inputs]
    if node.op_type == "Constant":
        known = onnx_ir.convenience.get_const_tensor(node.outputs[0])
        return None if known is None else [known.numpy()]
    return evaluate_node(node, arrays, model.graph.opset_imports)


def _fits(node: onnx_ir.Node) -> bool:
    given = sum(v.const_value.nbytes for v in node.inputs if v is not None and v.const_value is not None)
    sizes = [size_of(v) for v in node.outputs if v.name]
    if None in sizes:
        return given <= _FREE_BYTES
    wanted = sum(
        s * (v.dtype.bitwidth / 8 if v.dtype else 8) for s, v in zip(sizes, node.outputs, strict=False) if s is not None
    )
    return bool(wanted <= max(_FREE_BYTES, _GROWTH * given))
