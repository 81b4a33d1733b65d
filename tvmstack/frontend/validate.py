"""Is the graph whole? Undefined values, doubled names, cycles and types no program can take are found here, once."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from tvmstack.core.errors import ModelError, nearest
from tvmstack.graph.values import is_defined, subgraphs_of

__all__ = ["validate"]


def validate(model: onnx_ir.Model, source: str) -> list[str]:
    """Check the graph and put it into order; return one line for each thing that was mended.

    Raises:
        ModelError: naming the node and the value.
    """
    changes = []
    listed = [v.name for v in model.graph.inputs if v.is_initializer()]
    if listed:
        RemoveInitializersFromInputsPass()(model)
        changes.append(f"took {len(listed)} initializers off the list of inputs")
    if not model.graph.outputs:
        raise ModelError(f"{source}: the graph has no outputs")
    if not model.graph.opset_imports:
        model.graph.opset_imports[""] = 1
    _check_values(model.graph, source)
    _check_names(model.graph, source)
    changes += _sort(model, source)
    _check_signature(model.graph, source)
    _name_nodes(model.graph)
    return changes


def _check_values(graph: onnx_ir.Graph, source: str) -> None:
    for node in _nodes(graph):
        for value in node.inputs:
            if value is not None and value.name != "" and not is_defined(value):
                raise ModelError(
                    f"{source}: {_label(node)} uses {value.name}, which nothing defines{_hint(graph, value)}"
                )
    for value in graph.outputs:
        if not is_defined(value):
            raise ModelError(f"{source}: output {value.name} is given by no node{_hint(graph, value)}")


def _hint(graph: onnx_ir.Graph, value: onnx_ir.Value) -> str:
    names = {v.name or "" for n in _nodes(graph) for v in n.outputs} | {v.name or "" for v in graph.inputs}
    names |= set(graph.initializers)
    hint = nearest(value.name or "", names)
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _check_names(graph: onnx_ir.Graph, source: str) -> None:
    seen: dict[str, str] = dict.fromkeys(graph.initializers, "an initializer")
    seen.update({v.name or "": "an input" for v in graph.inputs})
    for node in graph:
        for value in node.outputs:
            if value.name and value.name in seen:
                raise ModelError(
                    f"{source}: {value.name} is defined twice: by {_label(node)} and as {seen[value.name]}"
                )
            if value.name:
                seen[value.name] = f"an output of {_label(node)}"


def _sort(model: onnx_ir.Model, source: str) -> list[str]:
    before = list(model.graph)
    try:
        model.graph.sort()
    except ValueError as err:
        inside = ", ".join(_label(n) for n in _cycle(model.graph)[:4])
        raise ModelError(f"{source}: the graph has a cycle through {inside}") from err
    return [] if before == list(model.graph) else ["sorted the nodes"]


def _cycle(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """Return the nodes that never become ready, from which those merely behind the cycle are left out."""
    rest = set(graph)
    while ready := [n for n in rest if not any(p in rest for p in n.predecessors())]:
        rest -= set(ready)
    while ends := [n for n in rest if not any(s in rest for s in n.successors())]:
        rest -= set(ends)
    return [n for n in graph if n in rest]


def _check_signature(graph: onnx_ir.Graph, source: str) -> None:
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if value.type is not None and not isinstance(value.type, onnx_ir.TensorType):
                what = type(value.type).__name__.removesuffix("Type").lower()
                raise ModelError(
                    f"{source}: {kind} {value.name} is a {what}; only tensors can go in and out of a program"
                )
            if value.dtype == onnx_ir.DataType.STRING:
                raise ModelError(
                    f"{source}: {kind} {value.name} holds strings; only numbers can go in and out of a program"
                )
            if value.dtype is None and kind == "input":
                raise ModelError(f"{source}: {kind} {value.name} has no type")


def _name_nodes(graph: onnx_ir.Graph) -> None:
    """Give each node of the main graph a name of its own; verdicts and regions are kept by it."""
    taken: set[str] = set()
    for number, node in enumerate(graph):
        base = node.name or f"{node.op_type}_{number}"
        name, again = base, 0
        while name in taken:
            again += 1
            name = f"{base}_{again}"
        node.name = name
        taken.add(name)


def _nodes(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Node]:
    for node in graph:
        yield node
        for body in subgraphs_of(node):
            yield from _nodes(body)


def _label(node: onnx_ir.Node) -> str:
    return f"node {node.name} ({node.op_type})" if node.name else f"a {node.op_type} node"
