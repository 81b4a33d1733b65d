"""Nodes that pass their input through: Identity, Dropout, a Cast to the same type, a Reshape to the same shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import onnx_ir

from tvmstack.graph.values import attribute, constant, present, replace_value, scalar, static_shape

__all__ = ["name", "run"]

name = "remove-no-ops"


def run(model: onnx_ir.Model) -> list[str]:
    """Bypass such nodes of the main graph; return a count for each operator."""
    counts: Counter[str] = Counter()
    for node in list(model.graph):
        test = _TESTS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        source = present(node, 0)
        if test is None or source is None or not test(node) or any(v.uses() for v in node.outputs[1:]):
            continue
        if any(v.is_graph_output() for v in node.outputs[1:]) or not replace_value(node.outputs[0], source):
            continue
        model.graph.remove(node, safe=True)
        counts[node.op_type] += 1
    return [f"removed {count} {op} node{'s' if count > 1 else ''} that did nothing" for op, count in counts.items()]


def _same_shape(node: onnx_ir.Node) -> bool:
    shape = static_shape(node.inputs[0])
    return shape is not None and shape == static_shape(node.outputs[0])


def _same_type(node: onnx_ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype is not None and source.dtype == node.outputs[0].dtype


def _dropout(node: onnx_ir.Node) -> bool:
    mode = present(node, 2)
    return mode is None or scalar(mode) == 0


def _transpose(node: onnx_ir.Node) -> bool:
    perm = attribute(node, "perm")
    return isinstance(perm, (list, tuple)) and list(perm) == sorted(perm)


def _pad(node: onnx_ir.Node) -> bool:
    pads = constant(present(node, 1))
    return pads is not None and not pads.any() and _same_shape(node)


def _single(node: onnx_ir.Node) -> bool:
    return len(node.inputs) == 1


def _slice(node: onnx_ir.Node) -> bool:
    steps = present(node, 4)
    known = constant(steps)
    return _same_shape(node) and (steps is None or (known is not None and bool((known == 1).all())))


_TESTS: Mapping[str, Callable[[onnx_ir.Node], bool]] = {
    "Identity": lambda node: True,
    "Dropout": _dropout,
    "Cast": _same_type,
    "CastLike": _same_type,
    "Reshape": _same_shape,
    "Flatten": _same_shape,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Expand": _same_shape,
    "Tile": _same_shape,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
}
