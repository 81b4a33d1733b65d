"""Grouping what TVM does not take into few regions that no path leaves and enters again.

1. A value that TVM cannot carry (its shape depends on data, or it is no tensor) ties its maker to its users: they, and
   all between them, go into one region. Ties are edges both ways: the strongly connected components are these groups.
2. Each group gets a stage: that of its latest input, one more where the owner changes. Nodes of one owner and one stage
   can run together, so the foreign nodes of one stage are one region; no grouping needs fewer alternations.
3. What TVM would compute between two regions, if it is only small arithmetic, joins them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir

from tvmstack.graph.values import captured_values, static_shape
from tvmstack.partition.chunks import HEAVY

__all__ = ["REGION_DOMAIN", "group_foreign", "whole_regions"]

# Of the nodes that stand for regions.
REGION_DOMAIN = "tvmstack"

# An island of TVM's that computes no more elements than this is not worth two crossings.
_ISLAND_ELEMENTS = 4096


def group_foreign(nodes: Sequence[onnx_ir.Node], foreign: set[onnx_ir.Node]) -> list[list[onnx_ir.Node]]:
    """Return the regions in an order they can run in, each a list of nodes in graph order.

    Args:
        nodes: the graph's nodes, sorted.
        foreign: those TVM does not take.
    """
    if not foreign:
        return []
    edges = _predecessors(nodes)
    owner_foreign = set(foreign)
    groups = _groups(nodes, edges, owner_foreign)
    stages = _stages(nodes, edges, groups, owner_foreign)
    if _absorb_islands(nodes, edges, stages, owner_foreign):
        groups = _groups(nodes, edges, owner_foreign)
        stages = _stages(nodes, edges, groups, owner_foreign)
    return _by_stage(nodes, stages, owner_foreign)


def whole_regions(nodes: Sequence[onnx_ir.Node], taken: set[onnx_ir.Node]) -> list[list[onnx_ir.Node]]:
    """Return all that a back end takes as few regions, without what is tied to a node that it does not take."""
    edges = _predecessors(nodes)
    owned = set(taken)
    groups = _groups(nodes, edges, set(taken))
    members: dict[int, list[onnx_ir.Node]] = {}
    for node in nodes:
        members.setdefault(groups[node], []).append(node)
    for group in members.values():
        if not owned.issuperset(group):
            owned.difference_update(group)
    return _by_stage(nodes, _stages(nodes, edges, groups, owned), owned)


def _by_stage(
    nodes: Sequence[onnx_ir.Node], stages: Mapping[onnx_ir.Node, int], owned: set[onnx_ir.Node]
) -> list[list[onnx_ir.Node]]:
    regions: dict[int, list[onnx_ir.Node]] = {}
    for node in nodes:
        if node in owned:
            regions.setdefault(stages[node], []).append(node)
    return [regions[stage] for stage in sorted(regions)]


Edges = Mapping[onnx_ir.Node, Mapping[onnx_ir.Node, bool]]


def _predecessors(nodes: Sequence[onnx_ir.Node]) -> Edges:
    """Return for each node the nodes it needs; True where the value between cannot pass through TVM."""
    inside = set(nodes)
    edges: dict[onnx_ir.Node, dict[onnx_ir.Node, bool]] = {}
    for node in nodes:
        edges[node] = {}
        for value in (*node.inputs, *captured_values(node)):
            maker = None if value is None else value.producer()
            if value is not None and maker is not None and maker in inside and maker is not node:
                edges[node][maker] = edges[node].get(maker, False) or not _passes(value)
    return edges


def _passes(value: onnx_ir.Value) -> bool:
    return isinstance(value.type, onnx_ir.TensorType) and static_shape(value) is not None


def _groups(nodes: Sequence[onnx_ir.Node], edges: Edges, foreign: set[onnx_ir.Node]) -> dict[onnx_ir.Node, int]:
    """Return the strongly connected component of each node; members of one with several nodes become foreign."""
    forward: dict[onnx_ir.Node, list[onnx_ir.Node]] = {n: [] for n in nodes}
    for node in nodes:
        for maker, tied in edges[node].items():
            forward[maker].append(node)
            if tied:
                forward[node].append(maker)
    components = _components(nodes, forward)
    members: dict[int, list[onnx_ir.Node]] = {}
    for node in nodes:
        members.setdefault(components[node], []).append(node)
    for group in members.values():
        if len(group) > 1:
            foreign.update(group)
    return components


def _components(
    nodes: Sequence[onnx_ir.Node], forward: Mapping[onnx_ir.Node, Sequence[onnx_ir.Node]]
) -> dict[onnx_ir.Node, int]:
    """Kosaraju's two sweeps, without recursion."""
    order: list[onnx_ir.Node] = []
    seen: set[onnx_ir.Node] = set()
    for root in nodes:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(forward[root]))]
        while stack:
            node, rest = stack[-1]
            following = next((n for n in rest if n not in seen), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(forward[following])))
    backward: dict[onnx_ir.Node, list[onnx_ir.Node]] = {n: [] for n in nodes}
    for node in nodes:
        for following in forward[node]:
            backward[following].append(node)
    component: dict[onnx_ir.Node, int] = {}
    for number, root in enumerate(reversed(order)):
        pending = [root]
        while pending:
            node = pending.pop()
            if node not in component:
                component[node] = number
                pending += backward[node]
    return component


def _stages(
    nodes: Sequence[onnx_ir.Node], edges: Edges, groups: Mapping[onnx_ir.Node, int], foreign: set[onnx_ir.Node]
) -> dict[onnx_ir.Node, int]:
    """Return each node's stage; members of a group share the latest of them."""
    members: dict[int, list[onnx_ir.Node]] = {}
    for node in nodes:
        members.setdefault(groups[node], []).append(node)
    stage: dict[int, int] = {}
    # Kosaraju numbers the components in topological order.
    for number in sorted(members):
        mine = members[number][0] in foreign
        latest = 0 if not mine else 1
        for node in members[number]:
            for maker in edges[node]:
                before = groups[maker]
                if before != number:
                    latest = max(latest, stage[before] + ((maker in foreign) != mine))
        stage[number] = latest
    return {node: stage[groups[node]] for node in nodes}


def _absorb_islands(
    nodes: Sequence[onnx_ir.Node], edges: Edges, stages: Mapping[onnx_ir.Node, int], foreign: set[onnx_ir.Node]
) -> bool:
    """Give small arithmetic between two regions to them; say whether there was any."""
    islands: dict[int, list[onnx_ir.Node]] = {}
    feeds_foreign = {m for n in nodes if n in foreign for m in edges[n]}
    behind = _between(nodes, edges, foreign, feeds_foreign)
    for node in behind:
        islands.setdefault(stages[node], []).append(node)
    small = [group for group in islands.values() if _is_small(group)]
    for group in small:
        foreign.update(group)
    return bool(small)


def _between(
    nodes: Sequence[onnx_ir.Node], edges: Edges, foreign: set[onnx_ir.Node], feeds_foreign: set[onnx_ir.Node]
) -> list[onnx_ir.Node]:
    """Return TVM's nodes with a region before and a region behind them."""
    after: set[onnx_ir.Node] = set()
    for node in nodes:
        if any(m in foreign or m in after for m in edges[node]):
            after.add(node)
    before = set(feeds_foreign)
    for node in reversed(nodes):
        if node in before:
            before.update(edges[node])
    return [n for n in nodes if n not in foreign and n in after and n in before]


def _is_small(group: Sequence[onnx_ir.Node]) -> bool:
    if any(n.op_type in HEAVY or n.domain == REGION_DOMAIN for n in group):
        return False
    shapes = [static_shape(v) for n in group for v in n.outputs if v.name]
    return sum(_ISLAND_ELEMENTS if s is None else math.prod(s) for s in shapes) <= _ISLAND_ELEMENTS
