"""Nodes, initializers, functions and operator sets that nothing uses."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

__all__ = ["name", "run"]

name = "remove-unused"


def run(model: onnx_ir.Model) -> list[str]:
    """Remove; return how many nodes went."""
    before = len(model.graph)
    RemoveUnusedNodesPass()(model)
    RemoveUnusedFunctionsPass()(model)
    RemoveUnusedOpsetsPass()(model)
    gone = before - len(model.graph)
    return [f"removed {gone} unused nodes"] if gone > 0 else []
