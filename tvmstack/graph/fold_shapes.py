"""Shape arithmetic becomes constants, and an If on a constant the branch taken, in one sweep of onnxscript's folder.

Only small tensors and plain operators are computed here: for the rest onnx's reference evaluator is not exact enough.
"""

from __future__ import annotations

import logging

import onnx_ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, LiftSubgraphInitializersToMainGraphPass
from onnxscript.optimizer import fold_constants

__all__ = ["name", "run"]

name = "fold-shapes"
_SMALL = 1024
_PLAIN = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Concat",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Expand",
        "Flatten",
        "Gather",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Range",
        "ReduceProd",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)


def run(model: onnx_ir.Model) -> list[str]:
    """Fold; return how many nodes went."""
    before, branches = _count(model)
    quiet = logging.getLogger("onnxscript.optimizer")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        fold_constants(
            model,
            onnx_shape_inference=True,
            input_size_limit=_SMALL,
            output_size_limit=_SMALL,
            should_fold=_should_fold,
        )
    finally:
        quiet.setLevel(level)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    LiftSubgraphInitializersToMainGraphPass()(model)
    after, branches_left = _count(model)
    changes = [f"folded {before - after} nodes of shape arithmetic and constants"] if after < before else []
    if branches_left < branches:
        changes.append(f"inlined {branches - branches_left} If nodes on a constant condition")
    _name_nodes(model.graph)
    return changes


def _should_fold(node: onnx_ir.Node) -> bool | None:
    small = all(v is None or v.const_value is None or v.const_value.size <= _SMALL for v in node.inputs)
    return None if node.domain == "" and node.op_type in _PLAIN and small else False


def _count(model: onnx_ir.Model) -> tuple[int, int]:
    nodes = [n.op_type for n in model.graph.all_nodes()]
    return len(nodes), nodes.count("If")


def _name_nodes(graph: onnx_ir.Graph) -> None:
    """Nodes that came out of a branch bring their names; each must stay the only one of its name."""
    taken: set[str] = set()
    for number, node in enumerate(graph):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_folded_{number}"
        taken.add(node.name)
