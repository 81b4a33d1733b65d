"""Calls of model-local functions become the nodes of their bodies."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import InlinePass

__all__ = ["name", "run"]

name = "inline-functions"


def run(model: onnx_ir.Model) -> list[str]:
    """Inline every function of the model."""
    if not model.functions:
        return []
    count = len(model.functions)
    InlinePass()(model)
    for number, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_inlined_{number}"
    return [f"inlined {count} model-local function{'s' if count > 1 else ''}"]
