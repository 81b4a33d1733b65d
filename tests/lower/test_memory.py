"""The memory plan: nothing overlaps, nothing is wasted, and what runs in it is right."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tvmstack import driver
from tvmstack.lower.memory import MemoryPlan, Span, place
from tvmstack.report.artifact import memory_line
from tvmstack.runtime import load

null, cpu = pytest.mark.null, pytest.mark.cpu


def peak(spans: list[Span]) -> int:
    return max(sum(s.size for s in spans if s.first <= t <= s.last) for t in range(max(s.last for s in spans) + 1))


@null
@pytest.mark.parametrize("seed", range(20))
def test_tensors_needed_at_one_moment_never_overlap_and_begin_aligned(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans = [Span(int(rng.integers(1, 5000)), t, t + int(rng.integers(1, 6))) for t in range(40)]
    offsets = place(spans)
    assert all(offset % 64 == 0 for offset in offsets)
    for (a, at), (b, bt) in itertools.combinations(zip(spans, offsets, strict=True), 2):
        if a.meets(b):
            assert at + a.size <= bt or bt + b.size <= at
    used = max(at + s.size for s, at in zip(spans, offsets, strict=True))
    assert peak(spans) <= used < 1.35 * peak(spans)


@null
def test_a_chain_takes_as_much_as_its_two_largest_neighbours() -> None:
    sizes = [640, 6400, 3200, 64, 9600, 64]
    spans = [Span(size, t, t + 1) for t, size in enumerate(sizes)]
    assert max(at + s.size for s, at in zip(spans, place(spans), strict=True)) == 9600 + 64


@null
def test_nothing_to_place_takes_nothing() -> None:
    assert place([]) == []


def branches() -> onnx.ModelProto:
    """Convolutions whose results live for different times; one intermediate result and a reshape of it are outputs."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8, f"w{i}")
        for i in range(4)
    ]
    weights.append(onnx.numpy_helper.from_array(np.array([1, -1], np.int64), "flat"))
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", **conv),
        helper.make_node("Conv", ["a", "w1"], ["b"], name="second", **conv),
        helper.make_node("Erf", ["b"], ["e"], name="middle"),
        helper.make_node("Conv", ["e", "w2"], ["c"], name="third", **conv),
        helper.make_node("Add", ["a", "c"], ["d"], name="join"),
        helper.make_node("Conv", ["d", "w3"], ["y"], name="last", **conv),
        helper.make_node("Reshape", ["c", "flat"], ["z"], name="view"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "c", "z")]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 10, 10])
    graph = helper.make_graph(nodes, "branches", [image], ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@cpu
def test_a_plan_wastes_nothing_and_outputs_stay_the_callers(tmp_path: Path) -> None:
    artifact = driver.compile(branches(), store=":memory:")
    memory = artifact.manifest.memory
    assert memory["arena_bytes"] == memory["live_bytes"] < memory["tensors_bytes"]
    assert memory["output_bytes"] == 2 * 8 * 10 * 10 * 4, "z is a view of c"
    session = load(artifact.save(tmp_path / "m.so"), threads=1)
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal((1, 8, 10, 10)).astype(np.float32) for _ in range(3)]
    original = onnxruntime.InferenceSession(branches().SerializeToString(), providers=["CPUExecutionProvider"])
    answers = [session.run({"x": x}) for x in feeds]
    for x, answer in zip(feeds, answers, strict=True):
        for name, want in zip(("y", "c", "z"), original.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(answer[name], want, atol=1e-4)


@cpu
def test_a_region_reads_a_tensor_that_lies_inside_the_arena(tmp_path: Path) -> None:
    artifact = driver.compile(branches(), store=":memory:", onnxruntime_nodes=["middle", "join"])
    assert artifact.manifest.plan["regions"]
    assert artifact.report["verification"]["cases"] > 0


@null
def test_the_page_says_how_good_the_plan_is() -> None:
    plan = MemoryPlan(2048, 1024, 512, 3, 4096, 1)
    line = memory_line({"weights_bytes": 1024, **plan.to_json()})
    assert line == (
        "weights 1.0 KiB, arena 2.0 KiB (2.00 of the 1.0 KiB alive at once; 3 tensors of 4.0 KiB in all, "
        "1 reshape in place), outputs 512 B"
    )


def joined(axis: int = 1) -> onnx.ModelProto:
    """Two convolutions joined, the result joined with its own convolution, and a convolution of the whole."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (16, 16, 1, 1), "w1": (32, 16, 1, 1), "w2": (16, 48, 1, 1), "w3": (16, 64, 1, 1)}
    if axis == 2:
        shapes = {"w0": (32, 16, 1, 1), "w1": (32, 16, 1, 1), "w2": (32, 32, 1, 1), "w3": (16, 32, 1, 1)}
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["x", "w1"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=axis),
        helper.make_node("Conv", ["ab", "w2"], ["c"]),
        helper.make_node("Concat", ["ab", "c"], ["abc"], axis=axis),
        helper.make_node("Conv", ["abc", "w3"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 6, 5])
    graph = helper.make_graph(nodes, "joined", [image], ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@cpu
@pytest.mark.parametrize(("axis", "count"), [(1, 2), (2, 0)])
def test_a_concatenation_is_written_in_place_where_its_parts_lie_one_behind_the_other(axis: int, count: int) -> None:
    artifact = driver.compile(joined(axis), store=":memory:")
    assert artifact.report["verification"]["cases"] > 0
    assert artifact.manifest.memory["joined"] == count
