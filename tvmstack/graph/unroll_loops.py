"""A Loop with a constant, small number of turns and no early end becomes its body, written out turn by turn."""

from __future__ import annotations

import numpy as np
import onnx_ir

from tvmstack.graph.values import add_initializer, constant, opset_of, present, replace_value, scalar

__all__ = ["name", "run"]

name = "unroll-loops"
_TURNS = 64
_NODES = 4096


def run(model: onnx_ir.Model) -> list[str]:
    """Unroll such loops of the main graph; return a line for each."""
    if opset_of(model) < 13:
        return []
    changes = []
    for node in list(model.graph):
        turns = _turns(node) if node.op_type == "Loop" and node.domain == "" else None
        if turns is not None and _unroll(model.graph, node, turns):
            changes.append(f"unrolled Loop {node.name} ({turns} turns)")
    return changes


def _turns(loop: onnx_ir.Node) -> int | None:
    count = scalar(present(loop, 0))
    start = present(loop, 1)
    if count is None or (start is not None and not scalar(start)):
        return None
    body = loop.attributes["body"].as_graph()
    going_on = body.outputs[0]
    while (node := going_on.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        going_on = node.inputs[0]
    endless = going_on is body.inputs[1] or bool(_known(going_on))
    turns = int(count)
    return turns if endless and 1 <= turns <= _TURNS and turns * len(body) <= _NODES else None


def _known(value: onnx_ir.Value) -> bool:
    array = constant(value, limit=1)
    return array is not None and bool(array.reshape(-1)[0])


def _unroll(graph: onnx_ir.Graph, loop: onnx_ir.Node, turns: int) -> bool:
    body = loop.attributes["body"].as_graph()
    carried: list[onnx_ir.Value | None] = list(loop.inputs[2:])
    if any(v is None for v in carried):
        return False
    always = add_initializer(graph, f"{loop.name}_true", np.asarray(True))
    collected: list[list[onnx_ir.Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    for turn in range(turns):
        number = add_initializer(graph, f"{loop.name}_turn_{turn}", np.asarray(turn, np.int64))
        results = _turn(graph, loop, body, [number, always, *carried], turn)
        carried = list(results[1 : 1 + len(carried)])
        for row, value in zip(collected, results[1 + len(carried) :], strict=True):
            row.append(value)
    finals = [*carried, *(_stacked(graph, loop, row, k) for k, row in enumerate(collected))]
    for index, (old, new) in enumerate(zip(loop.outputs, finals, strict=False)):
        _deliver(graph, loop, old, new, index)
    graph.remove(loop, safe=True)
    return True


def _deliver(
    graph: onnx_ir.Graph, loop: onnx_ir.Node, old: onnx_ir.Value, new: onnx_ir.Value | None, index: int
) -> None:
    """Hand a result to the loop's users; a model output gets an Identity, so that it keeps its name."""
    assert new is not None
    if old.is_graph_output():
        node = onnx_ir.node("Identity", [new], name=f"{loop.name}_result_{index}")
        node.outputs[0].name = f"{node.name}_out"
        graph.insert_before(loop, node)
        replace_value(old, node.outputs[0])
    else:
        old.replace_all_uses_with(new)


def _turn(
    graph: onnx_ir.Graph, loop: onnx_ir.Node, body: onnx_ir.Graph, values: list[onnx_ir.Value | None], turn: int
) -> list[onnx_ir.Value]:
    """Insert one copy of the body before the loop; return its outputs."""
    copy = body.clone(allow_outer_scope_values=True)
    for given, value in zip(copy.inputs, values, strict=True):
        assert value is not None
        given.replace_all_uses_with(value, replace_graph_outputs=True)
    for name, value in list(copy.initializers.items()):
        assert value.const_value is not None
        value.replace_all_uses_with(
            add_initializer(graph, f"{loop.name}_{turn}_{name}", value.const_value.numpy()), replace_graph_outputs=True
        )
    outputs = list(copy.outputs)
    copy.outputs.clear()
    for node in list(copy):
        copy.remove(node)
        node.name = f"{loop.name}_{turn}_{node.name or node.op_type}"
        for value in node.outputs:
            value.name = f"{loop.name}_{turn}_{value.name}" if value.name else value.name
        graph.insert_before(loop, node)
    return outputs


def _stacked(graph: onnx_ir.Graph, loop: onnx_ir.Node, rows: list[onnx_ir.Value], index: int) -> onnx_ir.Value:
    axes = add_initializer(graph, f"{loop.name}_axes_{index}", np.asarray([0], np.int64))
    parts = []
    for turn, row in enumerate(rows):
        node = onnx_ir.node("Unsqueeze", [row, axes], name=f"{loop.name}_{turn}_row_{index}")
        node.outputs[0].name = f"{node.name}_out"
        graph.insert_before(loop, node)
        parts.append(node.outputs[0])
    concat = onnx_ir.node("Concat", parts, {"axis": 0}, name=f"{loop.name}_rows_{index}")
    concat.outputs[0].name = f"{concat.name}_out"
    graph.insert_before(loop, concat)
    return concat.outputs[0]
