"""Equal nodes on equal inputs are computed once."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, DeduplicateInitializersPass

__all__ = ["name", "run"]

name = "merge-equal"
# Small constants are compared by value, so that equal arithmetic on them is seen to be equal.
_SMALL = 64
_RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)


def run(model: onnx_ir.Model) -> list[str]:
    """Merge; return how many nodes went."""
    if any(node.op_type in _RANDOM for node in model.graph.all_nodes()):
        return []
    before = len(model.graph)
    DeduplicateInitializersPass(size_limit=_SMALL)(model)
    CommonSubexpressionEliminationPass(size_limit=_SMALL)(model)
    gone = before - len(model.graph)
    return [f"merged {gone} repeated nodes"] if gone > 0 else []
