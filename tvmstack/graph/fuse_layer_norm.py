"""LayerNormalization written out (ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add) becomes the operator.

Only in float32: in half precision the written-out form overflows where the operator does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir

from tvmstack.graph.values import attribute, constant, opset_of, present, replace_value, scalar, static_shape

__all__ = ["name", "run"]

name = "fuse-layer-norm"


@dataclass(frozen=True)
class _Found:
    x: onnx_ir.Value
    scale: onnx_ir.Value
    bias: onnx_ir.Value
    axis: int
    epsilon: float
    end: onnx_ir.Node


def run(model: onnx_ir.Model) -> list[str]:
    """Fuse; return how many."""
    if opset_of(model) < 17:
        return []
    count = 0
    for node in list(model.graph):
        found = _match(node) if node.op_type == "Div" and node.domain == "" else None
        count += found is not None and _replace(model.graph, found)
    return [f"fused {count} LayerNormalization{'s' if count > 1 else ''}"] if count else []


def _replace(graph: onnx_ir.Graph, found: _Found) -> bool:
    old = found.end.outputs[0]
    node = onnx_ir.node(
        "LayerNormalization",
        [found.x, found.scale, found.bias],
        {"axis": found.axis, "epsilon": found.epsilon},
        name=f"{found.end.name}_layer_norm",
    )
    result = node.outputs[0]
    result.name, result.type, result.shape = f"{old.name}_layer_norm", old.type, old.shape
    graph.insert_before(found.end, node)
    if replace_value(old, result):
        return True
    graph.remove(node, safe=True)
    return False


def _match(div: onnx_ir.Node) -> _Found | None:
    centred, deviation = div.inputs[0], div.inputs[1]
    centre = _producer(centred, "Sub")
    if centre is None or centred is None or centred.dtype != onnx_ir.DataType.FLOAT:
        return None
    x = centre.inputs[0]
    mean = _producer(centre.inputs[1], "ReduceMean")
    variance, epsilon = _variance(deviation)
    if (
        x is None
        or mean is None
        or mean.inputs[0] is not x
        or variance is None
        or not _squares(variance.inputs[0], centred)
    ):
        return None
    axis = _trailing_axis(mean, x)
    if axis is None or axis != _trailing_axis(variance, x):
        return None
    return _affine(div, x, axis, epsilon)


def _variance(deviation: onnx_ir.Value | None) -> tuple[onnx_ir.Node | None, float]:
    """Return the ReduceMean and epsilon of Sqrt(ReduceMean + epsilon)."""
    root = _producer(deviation, "Sqrt")
    total = None if root is None else _producer(root.inputs[0], "Add")
    if total is None:
        return None, 0.0
    for index in (0, 1):
        epsilon = scalar(total.inputs[index])
        if epsilon is not None and epsilon > 0:
            return _producer(total.inputs[1 - index], "ReduceMean"), epsilon
    return None, 0.0


def _squares(value: onnx_ir.Value | None, centred: onnx_ir.Value) -> bool:
    power = _producer(value, "Pow")
    if power is not None:
        return power.inputs[0] is centred and scalar(power.inputs[1]) == 2
    product = _producer(value, "Mul")
    return product is not None and product.inputs[0] is centred and product.inputs[1] is centred


def _affine(div: onnx_ir.Node, x: onnx_ir.Value, axis: int, epsilon: float) -> _Found | None:
    shape = static_shape(x)
    multiply = _only_user(div.outputs[0], "Mul")
    add = None if multiply is None else _only_user(multiply.outputs[0], "Add")
    if shape is None or multiply is None or add is None:
        return None
    scale, bias = _other(multiply, div.outputs[0]), _other(add, multiply.outputs[0])
    wanted = shape[axis:]
    if scale is None or bias is None or static_shape(scale) != wanted or static_shape(bias) != wanted:
        return None
    return _Found(x, scale, bias, axis, epsilon, add)


def _trailing_axis(mean: onnx_ir.Node, x: onnx_ir.Value) -> int | None:
    """Return the first of the axes, as a negative number, when they are the last ones and are kept."""
    shape = static_shape(x)
    axes = attribute(mean, "axes")
    if axes is None:
        known = constant(present(mean, 1))
        axes = None if known is None else [int(a) for a in known.reshape(-1)]
    if shape is None or not attribute(mean, "keepdims", 1) or not isinstance(axes, (list, tuple)) or not axes:
        return None
    sorted_axes = sorted(int(a) % len(shape) for a in axes)
    trailing = sorted_axes == list(range(len(shape) - len(sorted_axes), len(shape)))
    return -len(sorted_axes) if trailing else None


def _producer(value: onnx_ir.Value | None, op_type: str) -> onnx_ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _only_user(value: onnx_ir.Value, op_type: str) -> onnx_ir.Node | None:
    users = value.consumers()
    fits = len(users) == 1 and not value.is_graph_output() and users[0].op_type == op_type and users[0].domain == ""
    return users[0] if fits else None


def _other(node: onnx_ir.Node, value: onnx_ir.Value) -> onnx_ir.Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]
