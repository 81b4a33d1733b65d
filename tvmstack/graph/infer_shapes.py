"""Shapes and types of all values: by onnx's inference, and by onnxruntime for operators onnx does not know."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import ShapeInferencePass

from tvmstack.graph.evaluate import infer_node
from tvmstack.graph.values import static_shape, subgraphs_of

__all__ = ["forget_declared", "name", "run"]

name = "infer-shapes"
_DECLARED = "tvmstack.declared_shape"
_ASKED = "tvmstack.asked"


def run(model: onnx_ir.Model) -> list[str]:
    """Infer; return a line when shapes became known that were not."""
    before = _unknown(model)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    _ask_onnxruntime(model)
    _restore_declared(model)
    found = before - _unknown(model)
    return [f"inferred {found} shapes"] if found > 0 else []


def forget_declared(model: onnx_ir.Model) -> None:
    """Take shapes the exporter wrote into the graph for a second source: they may be stale, what is inferred is not."""
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                if value.shape is not None and not list(subgraphs_of(node)):
                    value.meta[_DECLARED] = value.shape
                    value.shape = None


def _restore_declared(model: onnx_ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                declared = value.meta.pop(_DECLARED, None)
                if declared is not None and value.shape is None:
                    value.shape = declared


def _ask_onnxruntime(model: onnx_ir.Model) -> None:
    for node in model.graph:
        asked = tuple(static_shape(v) for v in node.inputs if v is not None)
        known = all(v.shape is not None and v.dtype is not None for v in node.outputs if v.name)
        if known or None in asked or node.meta.get(_ASKED) == asked:
            continue
        node.meta[_ASKED] = asked
        for value, (dtype, dims) in zip(node.outputs, infer_node(node, model.graph.opset_imports), strict=False):
            value.dtype = value.dtype or dtype
            value.shape = value.shape or (None if dims is None else onnx_ir.Shape(dims))


def _unknown(model: onnx_ir.Model) -> int:
    return sum(not _is_known(v) for n in model.graph for v in n.outputs if v.name)


def _is_known(value: onnx_ir.Value) -> bool:
    declared = value.meta.get(_DECLARED)
    return static_shape(value) is not None or (declared is not None and all(isinstance(d, int) for d in declared))
