"""Operators written out in simpler ones, for a back end that knows only these: done where it is asked for, no repair.

What an operator means is ONNX's own word: the function body that its specification gives. Einsum, which has none, is a
matrix product with its axes brought into place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx
import onnx.inliner
import onnx_ir

from tvmstack.core.model import Model
from tvmstack.graph.repair import tidy
from tvmstack.graph.values import attribute, static_shape

__all__ = ["decompose", "has_simpler_form"]


def has_simpler_form(node: onnx_ir.Node, opset: int) -> bool:
    """Whether `decompose` can write the node out."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Einsum":
        return _einsum_plan(node) is not None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def decompose(model: Model, kinds: Collection[str]) -> Model:
    """Return a copy in which all nodes of some operators of the standard are written out; their outputs keep names."""
    graph = model.graph.clone()
    if "Einsum" in kinds:
        for node in [n for n in graph.graph if n.op_type == "Einsum"]:
            _write_out_einsum(graph.graph, node)
    bodies = [("", kind) for kind in sorted(kinds) if kind != "Einsum"]
    if bodies:
        proto = onnx.inliner.inline_selected_functions(
            onnx_ir.to_proto(graph), bodies, exclude=False, inline_schema_functions=True
        )
        graph = onnx_ir.from_proto(proto)
        graph.graph.sort()
    _name_all(graph.graph)
    return tidy(replace(model, graph=graph, changes=(*model.changes, f"wrote out {', '.join(sorted(kinds))}")))


def _name_all(graph: onnx_ir.Graph) -> None:
    """Give every node a name of its own: what is inlined twice has the names of the body."""
    taken: set[str] = set()
    for node in graph:
        name = node.name or f"{node.op_type}_{next((v.name for v in node.outputs if v.name), '')}"
        unique, number = name, 0
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        node.name = unique
        taken.add(unique)


def _einsum_plan(node: onnx_ir.Node) -> tuple[list[int], list[int], list[int]] | None:
    """Return how a product of two factors becomes a MatMul: permutations of a, of b, and of the result.

    Batch letters come first, in the same order on both sides; one letter of each factor is free and one is summed.
    """
    text = str(attribute(node, "equation", "")).replace(" ", "")
    if "->" not in text or "." in text:
        return None
    left, result = text.split("->")
    factors = left.split(",")
    if len(factors) != 2 or any(len(set(part)) < len(part) for part in (*factors, result)):
        return None
    a, b = factors
    batch = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if [len(summed), len(rows), len(columns)] != [1, 1, 1] or set(result) != {*batch, *rows, *columns}:
        return None
    if any(static_shape(v) is None for v in node.inputs):
        return None
    made = [*batch, *rows, *columns]
    order_a = [a.index(c) for c in (*batch, *rows, *summed)]
    order_b = [b.index(c) for c in (*batch, *summed, *columns)]
    return order_a, order_b, [made.index(c) for c in result]


def _write_out_einsum(graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
    plan = _einsum_plan(node)
    if plan is None:
        return
    nodes: list[onnx_ir.Node] = []

    def moved(value: onnx_ir.Value | None, order: list[int]) -> onnx_ir.Value | None:
        if order == sorted(order):
            return value
        step = onnx_ir.node("Transpose", [value], {"perm": order})
        nodes.append(step)
        return step.outputs[0]

    factors = [moved(v, order) for v, order in zip(node.inputs, plan[:2], strict=True)]
    product = onnx_ir.node("MatMul", factors)
    nodes.append(product)
    result = moved(product.outputs[0], plan[2])
    assert result is not None
    for number, step in enumerate(nodes):
        step.name = f"{node.name}_{number}"
        for value in step.outputs:
            value.name = f"{node.name}_{number}_out"
            value.dtype = node.outputs[0].dtype
    old = node.outputs[0]
    name, result.shape = old.name, old.shape
    old.name = f"{name}__written_out"
    result.name = name
    graph.insert_before(node, nodes)
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
