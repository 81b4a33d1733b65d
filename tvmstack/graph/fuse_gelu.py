"""x * 0.5 * (1 + erf(x / sqrt(2))), in the spellings of exporters, becomes Gelu.

Below opset 20, where the standard has no Gelu yet, it is onnxruntime's com.microsoft.Gelu, which computes the same.
"""

from __future__ import annotations

import math

import onnx_ir

from tvmstack.graph.values import opset_of, replace_value, scalar

__all__ = ["name", "run"]

name = "fuse-gelu"
_CLOSE = 1e-5


def run(model: onnx_ir.Model) -> list[str]:
    """Fuse; return how many."""
    count = sum(_fuse(model, node) for node in list(model.graph) if node.op_type == "Erf" and node.domain == "")
    return [f"fused {count} Gelu{'s' if count > 1 else ''}"] if count else []


def _fuse(model: onnx_ir.Model, erf: onnx_ir.Node) -> bool:
    x = _argument(erf.inputs[0])
    plus_one = _only_user(erf.outputs[0], "Add")
    if (
        x is None
        or x.dtype != onnx_ir.DataType.FLOAT
        or plus_one is None
        or not _is(_other(plus_one, erf.outputs[0]), 1.0)
    ):
        return False
    end = _product(plus_one, x)
    if end is None:
        return False
    standard = opset_of(model) >= 20
    domain = "" if standard else "com.microsoft"
    gelu = onnx_ir.node("Gelu", [x], domain=domain, name=f"{erf.name}_gelu")
    result = gelu.outputs[0]
    result.name, result.type, result.shape = f"{end.outputs[0].name}_gelu", end.outputs[0].type, end.outputs[0].shape
    model.graph.insert_before(end, gelu)
    if not replace_value(end.outputs[0], result):
        model.graph.remove(gelu, safe=True)
        return False
    if not standard:
        model.graph.opset_imports.setdefault("com.microsoft", 1)
    return True


def _product(plus_one: onnx_ir.Node, x: onnx_ir.Value) -> onnx_ir.Node | None:
    """Return the node that ends the product of x, 0.5 and (1 + erf): in any order, each step used by the next only."""
    value = plus_one.outputs[0]
    first = _only_user(value, "Mul")
    if first is None:
        return None
    other = _other(first, value)
    if _is_half_of(other, x):
        return first
    second = _only_user(first.outputs[0], "Mul")
    if second is None:
        return None
    last = _other(second, first.outputs[0])
    return second if (other is x and _is(last, 0.5)) or (_is(other, 0.5) and last is x) else None


def _is_half_of(value: onnx_ir.Value | None, x: onnx_ir.Value) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type == "Mul":
        return x in node.inputs and _is(_other(node, x), 0.5)
    return node.op_type == "Div" and node.inputs[0] is x and _is(node.inputs[1], 2.0)


def _argument(value: onnx_ir.Value | None) -> onnx_ir.Value | None:
    """Return x of x / sqrt(2)."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in ("Div", "Mul"):
        return None
    if node.op_type == "Div":
        return node.inputs[0] if _is(node.inputs[1], math.sqrt(2)) else None
    for index in (0, 1):
        if _is(node.inputs[index], math.sqrt(0.5)):
            return node.inputs[1 - index]
    return None


def _only_user(value: onnx_ir.Value, op_type: str) -> onnx_ir.Node | None:
    users = value.consumers()
    fits = len(users) == 1 and not value.is_graph_output() and users[0].op_type == op_type and users[0].domain == ""
    return users[0] if fits else None


def _other(node: onnx_ir.Node, value: onnx_ir.Value) -> onnx_ir.Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _is(value: onnx_ir.Value | None, number: float) -> bool:
    known = scalar(value)
    return known is not None and math.isclose(known, number, rel_tol=_CLOSE)
