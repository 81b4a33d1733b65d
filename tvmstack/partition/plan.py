"""`make_plan`: the graph with each region as one node, and why."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir
import onnxruntime

from tvmstack.core.errors import ModelError, UsageError, nearest
from tvmstack.core.model import Model
from tvmstack.core.region import Region
from tvmstack.core.verdict import Verdict
from tvmstack.graph.evaluate import session_options
from tvmstack.partition.grouping import REGION_DOMAIN, group_foreign
from tvmstack.partition.refusals import first_line, operator_of, refusal
from tvmstack.partition.region import cut
from tvmstack.partition.verdicts import judge

__all__ = ["FLOOR", "Handed", "Plan", "make_plan"]

FLOOR = "onnxruntime"
_LOG = logging.getLogger(__name__)
_JOINED = Verdict.no("TVM could take it, but it stands between nodes of a region")


@dataclass(frozen=True)
class Plan:
    """Who runs what.

    Attributes:
        model: the model in which each region is one node: "Region" of domain "tvmstack", with the attribute `digest`.
        regions: in an order they can run in.
        verdicts: node name (before regions were cut) to whether TVM runs it, and why not.
        owners: region's digest to the back end that runs it: "onnxruntime" where TVM could not, else as asked for.
    """

    model: Model
    regions: tuple[Region, ...]
    verdicts: Mapping[str, Verdict]
    owners: Mapping[str, str]


@dataclass(frozen=True)
class Handed:
    """Nodes that shall be one region of a back end ("NAME" or "NAME:TARGET"), by name, and why."""

    owner: str
    nodes: Collection[str]
    reason: str = ""


def make_plan(model: Model, force_onnxruntime: Collection[str] = (), handed: Sequence[Handed] = ()) -> Plan:
    """Decide who runs each node of a repaired model and cut the regions; `model` stays as it is.

    Args:
        model: as `graph.repair` leaves it.
        force_onnxruntime: names of nodes to keep from TVM.
        handed: regions that are given to back ends; no path may leave one and enter it again.

    Raises:
        ModelError: neither TVM nor onnxruntime takes a node, or a region is too large or cannot be one.
        UsageError: `force_onnxruntime` names no node.
    """
    verdicts = judge(model, force_onnxruntime)
    graph = model.graph.clone()
    planned = replace(model, graph=graph)
    regions, owners = _hand_over(planned, handed, verdicts)
    nodes = list(graph.graph)
    foreign = {n for n in nodes if n.domain != REGION_DOMAIN and not verdicts[n.name or ""]}
    for group in group_foreign(nodes, foreign):
        if any(n.domain == REGION_DOMAIN for n in group):
            raise ModelError(f"the nodes round {group[0].name} pass values of no fixed shape round a region")
        for node in group:
            if verdicts[node.name or ""]:
                verdicts[node.name or ""] = _JOINED
        reasons = [f"{n.op_type}: {verdicts[n.name or ''].reason}" for n in group if n in foreign]
        region, inputs, outputs = cut(planned, group, reasons)
        _check(region, group, graph)
        _insert(graph.graph, group, region, inputs, outputs)
        regions.append(region)
        owners[region.digest] = FLOOR
    graph.graph.sort()
    if regions:
        graph.opset_imports[REGION_DOMAIN] = 1
    _drop_unused_weights(graph.graph)
    _LOG.info("TVM takes %d of %d nodes, %d regions", sum(map(bool, verdicts.values())), len(verdicts), len(regions))
    return Plan(planned, tuple(regions), verdicts, owners)


def _hand_over(
    model: Model, handed: Sequence[Handed], verdicts: dict[str, Verdict]
) -> tuple[list[Region], dict[str, str]]:
    """Cut the regions that are asked for; their nodes' verdicts say who runs them."""
    regions: list[Region] = []
    owners: dict[str, str] = {}
    graph = model.graph.graph
    for part in handed:
        names = set(part.nodes)
        group = [n for n in graph if n.name in names]
        if len(group) < len(names):
            lost = min(names - {n.name for n in group})
            words = nearest(lost, [n.name or "" for n in graph])
            raise UsageError(f"{model.source} has no node {lost} after repair that {part.owner} could have; {words}")
        verdicts.update({n: Verdict.no(part.reason or f"given to {part.owner}") for n in names})
        region, inputs, outputs = cut(model, group, [part.reason or f"given to {part.owner}"], describe=True)
        _insert(graph, group, region, inputs, outputs)
        try:
            graph.sort()
        except ValueError as err:
            words = "a path leaves them and enters them again"
            raise ModelError(f"{part.owner} cannot have {group[0].name} to {group[-1].name}: {words}") from err
        regions.append(region)
        owners[region.digest] = part.owner
    return regions, owners


def _insert(
    graph: onnx_ir.Graph,
    group: Sequence[onnx_ir.Node],
    region: Region,
    inputs: Sequence[onnx_ir.Value],
    outputs: Sequence[onnx_ir.Value],
) -> None:
    node = onnx_ir.node(
        "Region",
        list(inputs),
        {"digest": region.digest},
        domain=REGION_DOMAIN,
        num_outputs=len(outputs),
        name=f"region_{region.digest}",
    )
    graph.append(node)
    for old, new in zip(outputs, node.outputs, strict=True):
        name = old.name
        new.type, new.shape = old.type, old.shape
        old.name = f"{name}__in_region"
        new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    # Users inside the region were moved to the new values as well; they go as one.
    graph.remove(group, safe=False)


def _drop_unused_weights(graph: onnx_ir.Graph) -> None:
    # Not `uses()`: bodies of nodes that are gone still count there.
    used = {*graph.outputs, *(v for n in graph.all_nodes() for v in n.inputs)}
    for name, value in list(graph.initializers.items()):
        if value not in used:
            graph.initializers.pop(name)


def _check(region: Region, group: Sequence[onnx_ir.Node], model: onnx_ir.Model) -> None:
    """Ask onnxruntime whether it takes the region.

    Raises:
        ModelError: naming the node at fault.
    """
    try:
        onnxruntime.InferenceSession(region.model, session_options(), providers=["CPUExecutionProvider"])
    except Exception as err:
        culprit = next(((n, why) for n in group if (why := refusal(n, model))), None)
        if culprit is None:
            raise ModelError(f"onnxruntime refuses the region from {group[0].name} on: {first_line(err)}") from err
        node, reason = culprit
        raise ModelError(f"nothing can run node {node.name} ({operator_of(node)}): {reason}") from err
