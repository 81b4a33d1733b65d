"""Why onnxruntime does not take a node either, in words."""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir

from tvmstack.core.errors import nearest
from tvmstack.graph.evaluate import refusal_of

__all__ = ["first_line", "operator_of", "refusal"]


def refusal(node: onnx_ir.Node, model: onnx_ir.Model) -> str:
    """Return the reason, empty where onnxruntime takes the node or the node alone cannot tell."""
    reason = refusal_of(node, model.graph.opset_imports)
    if not reason:
        return ""
    if node.domain in ("", "ai.onnx") and node.op_type not in _operators():
        return f"ONNX has no operator {node.op_type}; {nearest(node.op_type, _operators())}"
    if "not a registered function/op" in reason or "No Op registered" in reason:
        return f"onnxruntime has no operator {operator_of(node)}"
    return first_line(reason)


def operator_of(node: onnx_ir.Node) -> str:
    """Return the operator's name, with its domain where that is not the standard one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def first_line(problem: object) -> str:
    """Return what onnxruntime says without its error codes, at most 300 characters."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0].split(" : ")[-1][:300]


@cache
def _operators() -> frozenset[str]:
    return frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == "")
