"""The graph as a row of chunks between which it is cheap to change the owner.

Any cut of a sorted list of nodes in two leaves two parts that no path leaves and enters again, so each run of chunks is
a region. A cut costs the bytes of the values that cross it; where several stand to choose, the narrowest is taken, and
only in front of heavy nodes: in front of anything else it would part what a compiler computes in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from tvmstack.graph.values import captured_values, static_shape, subgraphs_of

__all__ = ["HEAVY", "Chunk", "chunks_of", "in_running_order", "positions"]

HEAVY = frozenset(
    (
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "Einsum",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
    )
)


@dataclass(frozen=True)
class Chunk:
    """Neighbouring nodes that have one owner.

    Attributes:
        nodes: their names, in graph order.
        work: multiplications and additions of its heavy nodes, and elements written by the others.
        crossing_bytes: of the values alive between the chunk before and this one; 0 for the first.
        movable: whether all these values can pass through TVM: tensors of a fixed shape.
    """

    nodes: tuple[str, ...]
    work: float
    crossing_bytes: int
    movable: bool = True


def chunks_of(graph: onnx_ir.Graph, limit: int, changes: Collection[int] = ()) -> tuple[Chunk, ...]:
    """Cut a sorted graph into at most `limit` chunks of about equal work, where few bytes cross.

    Args:
        graph: sorted.
        limit: how many chunks of about equal work.
        changes: positions in `in_running_order` to cut at besides, because who can take a node changes there.
    """
    nodes = in_running_order(graph)
    if not nodes:
        return ()
    work = [_work(n) for n in nodes]
    alive = _alive(nodes)
    crossing = [_crossing(values) for values in alive]
    places = sorted({*_places(nodes, work, crossing, limit), *(k for k in changes if crossing[k][1])})
    starts = [0, *places]
    found = []
    for start, stop in zip(starts, [*places, len(nodes)], strict=True):
        names = tuple(n.name or "" for n in nodes[start:stop])
        size, movable = crossing[start] if start else (0, True)
        found.append(Chunk(names, sum(work[start:stop]), size, movable))
    return tuple(found)


def in_running_order(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """Return the sorted nodes with what is made of weights alone moved in front of its first reader.

    Exporters write all DequantizeLinear of weights first; left there, every cut would be crossed by all weights.
    """
    nodes = list(graph)
    fixed: set[onnx_ir.Value] = set()
    early: set[onnx_ir.Node] = set()
    for node in nodes:
        reads = [v for v in (*node.inputs, *captured_values(node)) if v is not None and v.name != ""]
        if reads and all(v.is_initializer() or v in fixed for v in reads):
            early.add(node)
            fixed.update(node.outputs)
    order: dict[onnx_ir.Node, None] = {}

    def place(node: onnx_ir.Node) -> None:
        for value in (*node.inputs, *captured_values(node)):
            maker = None if value is None else value.producer()
            if maker in early and maker not in order:
                place(maker)
        order[node] = None

    for node in nodes:
        if node not in early:
            place(node)
    return [*order, *(n for n in nodes if n not in order)]


def _places(
    nodes: Sequence[onnx_ir.Node], work: Sequence[float], crossing: Sequence[tuple[int, bool]], limit: int
) -> list[int]:
    """Return where to cut: from each stretch of about equal work the narrowest place that a cut may stand at."""
    possible = [k for k in range(1, len(nodes)) if crossing[k][1] and _may_start(nodes, k)]
    if not possible or limit < 2:
        return []
    total, done, before = sum(work) or 1.0, 0.0, []
    for amount in work:
        before.append(done / total)
        done += amount
    stretches: dict[int, int] = {}
    for place in possible:
        stretch = min(limit - 2, int(before[place] * (limit - 1)))
        best = stretches.get(stretch)
        if best is None or crossing[place][0] < crossing[best][0]:
            stretches[stretch] = place
    return sorted(stretches.values())


def _may_start(nodes: Sequence[onnx_ir.Node], place: int) -> bool:
    """Whether a heavy node, or one with a body, stands here: what is before it ends a kernel."""
    return _is_heavy(nodes[place]) or any(True for _ in subgraphs_of(nodes[place]))


def _is_heavy(node: onnx_ir.Node) -> bool:
    return node.op_type in HEAVY or node.domain not in ("", "ai.onnx")


def _alive(nodes: Sequence[onnx_ir.Node]) -> list[list[onnx_ir.Value]]:
    """Return for each position the values made before it and read at or after it; weights are not counted."""
    last: dict[onnx_ir.Value, int] = {}
    first: dict[onnx_ir.Value, int] = {}
    for index, node in enumerate(nodes):
        for value in (*node.inputs, *captured_values(node)):
            if value is not None and not value.is_initializer():
                last[value] = index
        first.update((v, index) for v in node.outputs)
    alive: list[list[onnx_ir.Value]] = [[] for _ in nodes]
    for value, end in last.items():
        for place in range(first.get(value, end) + 1, end + 1):
            alive[place].append(value)
    return alive


def _crossing(values: Sequence[onnx_ir.Value]) -> tuple[int, bool]:
    sizes = [_bytes(v) for v in values]
    return sum(s for s in sizes if s is not None), all(s is not None for s in sizes)


def _bytes(value: onnx_ir.Value) -> int | None:
    shape = static_shape(value)
    if shape is None or value.dtype is None or not isinstance(value.type, onnx_ir.TensorType):
        return None
    return math.ceil(math.prod(shape) * value.dtype.itemsize)


def _work(node: onnx_ir.Node) -> float:
    """Return a rough count of operations: a product's depth times its output's elements, else these elements."""
    shapes = [static_shape(v) for v in node.outputs if v.name]
    elements = float(sum(math.prod(s) for s in shapes if s is not None))
    return elements * _depth(node) if _is_heavy(node) else elements


def _depth(node: onnx_ir.Node) -> float:
    weight = static_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    if not weight:
        return 1.0
    if "Conv" in node.op_type:
        return 2.0 * math.prod(weight[1:])
    return 2.0 * (weight[-2] if len(weight) > 1 else weight[0])


def positions(chunks: Sequence[Chunk]) -> Mapping[str, int]:
    """Return the index of the chunk that each node is in."""
    return {name: index for index, chunk in enumerate(chunks) for name in chunk.nodes}
