"""Control flow that stays until run time, kept out of the passes' way with its bodies as the exporter wrote them.

With fixed input dims a body that never runs can become contradictory (a branch for another sample rate); folding in it
makes a graph onnxruntime refuses. While hidden, a node is an opaque one that reads everything its bodies capture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir

from tvmstack.graph.values import captured_values, subgraphs_of

__all__ = ["Hidden", "control_flow", "hide", "restore"]

_DOMAIN = "tvmstack"


@dataclass(frozen=True)
class Hidden:
    """A node taken out of the graph, what stands for it, and the outer values its bodies read."""

    node: onnx_ir.Node
    stand_in: onnx_ir.Node
    captured: tuple[onnx_ir.Value, ...]


def control_flow(model: onnx_ir.Model) -> list[onnx_ir.Node]:
    """Return the nodes of the main graph that have bodies."""
    return [node for node in model.graph if any(True for _ in subgraphs_of(node))]


def hide(model: onnx_ir.Model, names: Iterable[str]) -> list[Hidden]:
    """Replace the named nodes by opaque ones."""
    wanted, found = set(names), []
    for node in control_flow(model):
        if node.name not in wanted:
            continue
        captured = tuple(dict.fromkeys(captured_values(node)))
        stand_in = onnx_ir.Node(
            _DOMAIN, "Hidden", [*node.inputs, *captured], num_outputs=len(node.outputs), name=node.name
        )
        for old, new in zip(node.outputs, stand_in.outputs, strict=True):
            new.name, new.dtype, new.shape = old.name, old.dtype, None
        model.graph.insert_before(node, stand_in)
        _take_over(model, node, stand_in)
        found.append(Hidden(node, stand_in, captured))
    return found


def restore(model: onnx_ir.Model, hidden: Iterable[Hidden]) -> None:
    """Put the nodes back, their bodies reading what the graph has now for each value they captured."""
    for item in hidden:
        own, now = len(item.node.inputs), item.stand_in.inputs
        moved = dict(zip(item.captured, now[own:], strict=True))
        for body in subgraphs_of(item.node):
            for inner in body.all_nodes():
                for index, value in enumerate(inner.inputs):
                    if value in moved:
                        inner.replace_input_with(index, moved[value])
        for index in range(own):
            item.node.replace_input_with(index, now[index])
        for old, new in zip(item.stand_in.outputs, item.node.outputs, strict=True):
            new.name, new.dtype, new.shape = old.name, old.dtype, old.shape
        model.graph.insert_before(item.stand_in, item.node)
        _take_over(model, item.stand_in, item.node)


def _take_over(model: onnx_ir.Model, old: onnx_ir.Node, new: onnx_ir.Node) -> None:
    outputs = dict(zip(old.outputs, new.outputs, strict=True))
    for before, after in outputs.items():
        for user, index in tuple(before.uses()):
            user.replace_input_with(index, after)
    for index, value in enumerate(model.graph.outputs):
        if value in outputs:
            model.graph.outputs[index] = outputs[value]
    model.graph.remove(old)
