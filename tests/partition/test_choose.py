"""The cheapest plan is the one that trying all of them finds; cuts stand where few bytes cross."""

import itertools
import math
import random

import numpy as np
import onnx_ir
import pytest

from tests.graph.build import model, node
from tests.partition.test_plan import run_plan
from tvmstack.core.errors import ModelError
from tvmstack.frontend import load_model
from tvmstack.graph import repair
from tvmstack.partition import (
    TVM,
    Border,
    Chunk,
    Costs,
    Handed,
    Segment,
    cheapest,
    chunks_of,
    in_running_order,
    make_plan,
)

pytestmark = pytest.mark.null


def row(count: int, crossing: int = 1000, nodes: int = 2) -> tuple[Chunk, ...]:
    return tuple(Chunk(tuple(f"n{k}.{i}" for i in range(nodes)), 1.0, 0 if k == 0 else crossing) for k in range(count))


def total(segments: tuple[Segment, ...], costs: Costs, chunks: tuple[Chunk, ...]) -> float:
    return sum(costs.of(s, chunks) for s in segments)


def every_plan(count: int, owners: tuple[str, ...]) -> list[tuple[Segment, ...]]:
    plans = []
    for names in itertools.product(owners, repeat=count):
        segments, start = [], 0
        for stop in range(1, count + 1):
            if stop == count or names[stop] != names[start]:
                segments.append(Segment(names[start], start, stop))
                start = stop
        plans.append(tuple(segments))
    return plans


@pytest.mark.parametrize("seed", range(8))
def test_no_other_plan_is_cheaper(seed):
    rng = random.Random(seed)
    chunks = tuple(Chunk((f"n{k}",), 1.0, rng.randrange(1, 10_000)) for k in range(6))
    owners = (TVM, "a:cpu", "b:cpu")
    times = {owner: [rng.uniform(1e-4, 1e-3) for _ in chunks] for owner in owners}
    border = {owner: Border(rng.uniform(0, 2e-4), 1e-8) for owner in owners[1:]}
    costs = Costs(times, {"a:cpu": 0.7 * sum(times["a:cpu"])}, border)
    found = cheapest(chunks, costs)
    assert [s.start for s in found[1:]] == [s.stop for s in found[:-1]]
    assert total(found, costs, chunks) == pytest.approx(min(total(p, costs, chunks) for p in every_plan(6, owners)))


def test_what_was_measured_counts_more_than_what_was_estimated():
    chunks = row(3)
    costs = Costs({TVM: [1.0] * 3, "a:cpu": [0.4] * 3})
    assert cheapest(chunks, costs) == (Segment("a:cpu", 0, 3),)
    costs.measured[Segment("a:cpu", 0, 3)] = math.inf
    found = cheapest(chunks, costs)
    assert Segment("a:cpu", 0, 3) not in found
    assert total(found, costs, chunks) == pytest.approx(1.2)


def test_a_border_that_costs_more_than_it_gains_is_not_crossed():
    chunks = row(3)
    times = {TVM: [1.0, 1.0, 1.0], "a:cpu": [2.0, 0.5, 2.0]}
    assert len(cheapest(chunks, Costs(times, border={"a:cpu": Border(0.1, 0.0)}))) == 3
    assert cheapest(chunks, Costs(times, border={"a:cpu": Border(0.6, 0.0)})) == (Segment(TVM, 0, 3),)
    assert cheapest(chunks, Costs(times, border={"a:cpu": Border(0.0, 1e-3)})) == (Segment(TVM, 0, 3),)


def test_a_region_has_at_least_as_many_nodes_as_asked_for():
    times = {TVM: [1.0, 1.0, 1.0], "a:cpu": [2.0, 0.5, 2.0]}
    assert cheapest(row(3), Costs(times), min_nodes=3) == (Segment(TVM, 0, 3),)


def test_no_plan_where_nobody_takes_a_chunk():
    assert cheapest(row(2), Costs({TVM: [1.0, math.inf], "a:cpu": [1.0, math.inf]})) == ()


def test_nothing_is_cut_where_a_value_has_no_fixed_shape():
    chunks = (*row(1), Chunk(("n1",), 1.0, 0, movable=False), Chunk(("n2",), 1.0, 8))
    times = {TVM: [1.0, 1.0, 1.0], "a:cpu": [2.0, 0.1, 2.0]}
    assert all(
        s.start != 1 and s.stop != 1 for s in cheapest(chunks, Costs({"a:cpu": times["a:cpu"], "b:cpu": [1] * 3}))
    )


def tower(depth: int):
    """Convolutions of which every second widens what the next one reads."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for k in range(depth):
        out, inside = (16, 4) if k % 2 == 0 else (4, 16)
        weights[f"w{k}"] = rng.standard_normal((out, inside, 3, 3)).astype(np.float32) * 0.2
        nodes.append(node("Conv", [x, f"w{k}"], f"c{k}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"c{k}"], f"r{k}" if k < depth - 1 else "y"))
        x = f"r{k}"
    return repair(load_model(model(nodes, {"x": (1, 4, 8, 8)}, weights=weights)))


def test_cuts_stand_before_heavy_nodes_where_few_bytes_cross():
    graph = tower(8).graph.graph
    chunks = chunks_of(graph, 4)
    kinds = {n.name: n.op_type for n in graph}
    assert 2 <= len(chunks) <= 4
    assert [n for c in chunks for n in c.nodes] == [n.name for n in graph]
    assert all(kinds[c.nodes[0]] == "Conv" for c in chunks)
    assert {c.crossing_bytes for c in chunks[1:]} == {4 * 8 * 8 * 4}
    assert len(chunks_of(graph, 1)) == 1


def test_regions_that_are_asked_for_compute_what_the_model_did():
    whole = tower(6)
    chunks = chunks_of(whole.graph.graph, 6)
    handed = [Handed("a:cpu", chunks[0].nodes), Handed("b:cpu", chunks[2].nodes, "faster there")]
    plan = make_plan(whole, (), handed)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    [expected] = run_plan(make_plan(whole), feeds)
    [got] = run_plan(plan, feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert list(plan.owners.values()) == ["a:cpu", "b:cpu"]
    assert plan.verdicts[chunks[2].nodes[0]].reason == "faster there"


def test_a_region_that_a_path_leaves_and_enters_again_is_refused():
    whole = tower(3)
    names = [n.name for n in whole.graph.graph]
    with pytest.raises(ModelError, match="leaves"):
        make_plan(whole, (), [Handed("a:cpu", [names[0], names[-1]])])


def test_weights_made_of_weights_go_with_their_first_reader():
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {"step": np.float32(0.02), "zero": np.int8(0)}, "x"
    for k in range(4):
        weights[f"q{k}"] = rng.integers(-99, 99, (4, 4, 3, 3)).astype(np.int8)
        nodes.append(node("DequantizeLinear", [f"q{k}", "step", "zero"], f"w{k}"))
    for k in range(4):
        nodes.append(node("Conv", [x, f"w{k}"], f"c{k}" if k < 3 else "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        x = f"c{k}"
    graph = load_model(model(nodes, {"x": (1, 4, 8, 8)}, weights=weights)).graph.graph
    for n in graph:
        for value in n.outputs:
            value.dtype, value.shape = onnx_ir.DataType.FLOAT, onnx_ir.Shape((1, 4, 8, 8))
    order = [n.op_type for n in in_running_order(graph)]
    assert order == ["DequantizeLinear", "Conv"] * 4
    chunks = chunks_of(graph, 4)
    assert max(c.crossing_bytes for c in chunks) <= 4 * 8 * 8 * 4 + 4 * 8 * 8 * 4
