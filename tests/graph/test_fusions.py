"""Written-out LayerNormalization and Gelu are recognised in their spellings, and nothing else is."""

import math

import numpy as np
import onnx
import pytest

from tests.graph.build import model, node, ops, repaired_same, values

pytestmark = pytest.mark.null

ROOT, HALF = np.float32(math.sqrt(2)), np.float32(0.5)


def gelu(spelling: str) -> list[object]:
    start = {
        "div": [node("Div", ["x", "root"], "s")],
        "mul": [node("Mul", ["x", "inverse"], "s")],
    }["mul" if spelling == "half_of_sum" else "div"]
    middle = [node("Erf", ["s"], "e"), node("Add", ["e", "one"], "a")]
    end = {
        "product_then_half": [node("Mul", ["x", "a"], "p"), node("Mul", ["p", "half"], "y")],
        "half_first": [node("Mul", ["x", "half"], "h"), node("Mul", ["h", "a"], "y")],
        "halved_by_division": [node("Div", ["x", "two"], "h"), node("Mul", ["a", "h"], "y")],
        "half_of_sum": [node("Mul", ["half", "a"], "h"), node("Mul", ["x", "h"], "y")],
    }[spelling]
    return [*start, *middle, *end]


CONSTANTS = {"root": ROOT, "inverse": 1 / ROOT, "one": np.float32(1), "half": HALF, "two": np.float32(2)}


@pytest.mark.parametrize("spelling", ["product_then_half", "half_first", "halved_by_division", "half_of_sum"])
@pytest.mark.parametrize(("opset", "domain"), [(17, "com.microsoft"), (20, "")])
def test_gelu_in_the_spelling(spelling, opset, domain):
    nodes = [node("Relu", ["i"], "x"), *gelu(spelling), node("Neg", ["y"], "z")]
    result = repaired_same(model(nodes, {"i": (3, 8)}, ("z",), CONSTANTS, opset))
    assert ops(result) == ["Relu", "Gelu", "Neg"]
    assert [n.domain for n in result.graph.graph][1] == domain
    assert "fused 1 Gelu" in result.changes


@pytest.mark.parametrize(("name", "value"), [("root", 1.5), ("one", 1.1), ("half", 0.51)])
def test_gelu_with_another_constant_stays(name, value):
    nodes = [*gelu("product_then_half"), node("Neg", ["y"], "z")]
    result = repaired_same(model(nodes, {"x": (3, 8)}, ("z",), {**CONSTANTS, name: np.float32(value)}))
    assert "Erf" in ops(result)


def layer_norm(square: str = "Pow", axes: tuple[int, ...] = (-1,)) -> list[object]:
    power = node("Pow", ["d", "two"], "q") if square == "Pow" else node("Mul", ["d", "d"], "q")
    return [
        node("ReduceMean", ["x"], "m", axes=list(axes)),
        node("Sub", ["x", "m"], "d"),
        power,
        node("ReduceMean", ["q"], "v", axes=list(axes)),
        node("Add", ["v", "epsilon"], "e"),
        node("Sqrt", ["e"], "r"),
        node("Div", ["d", "r"], "n"),
        node("Mul", ["n", "scale"], "t"),
        node("Add", ["t", "bias"], "y"),
    ]


def norm_weights(*shape: int) -> dict[str, np.ndarray]:
    return {
        "two": np.float32(2),
        "epsilon": np.float32(1e-5),
        "scale": values(*shape, seed=1),
        "bias": values(*shape, seed=2),
    }


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize(("axes", "shape"), [((-1,), (8,)), ((-2, -1), (4, 8)), ((2,), (8,))])
def test_layer_normalization(square, axes, shape):
    result = repaired_same(model(layer_norm(square, axes), {"x": (2, 4, 8)}, weights=norm_weights(*shape)))
    assert ops(result) == ["LayerNormalization"]


@pytest.mark.parametrize(
    ("axes", "shape", "why"),
    [((1,), (4, 1), "axes are not the last"), ((-1,), (4, 8), "scale is larger than what is normalised")],
)
def test_layer_normalization_stays_where(axes, shape, why):
    result = repaired_same(model(layer_norm(axes=axes), {"x": (2, 4, 8)}, weights=norm_weights(*shape)))
    assert "LayerNormalization" not in ops(result), why


def test_layer_normalization_with_an_inner_value_as_output_keeps_that_output():
    repaired_same(model(layer_norm(), {"x": (2, 4, 8)}, ("y", "d"), norm_weights(8)))
    result = repaired_same(model(layer_norm(), {"x": (2, 4, 8)}, ("y", "n"), norm_weights(8)))
    assert "Div" in ops(result)


def one_hot(classes: int = 7, shape: tuple[int, ...] = (5, 9, 1)) -> onnx.ModelProto:
    """Return gelu-like nodes behind a one-hot encoding times a matrix, as JAX writes an embedding."""
    rng = np.random.default_rng(0)
    constants = {
        "numbers": np.arange(classes, dtype=np.int32).reshape(1, 1, classes),
        "w": rng.standard_normal((classes, 4)).astype(np.float32),
        "bias": rng.standard_normal((1, 1, 4)).astype(np.float32),
        "half": np.float32(0.5),
    }
    nodes = [
        node("Equal", ["x", "numbers"], "e"),
        node("Cast", ["e"], "h", to=1),
        node("MatMul", ["h", "w"], "p"),
        node("Add", ["p", "bias"], "a"),
        node("Tanh", ["a"], "t"),
        node("Mul", ["a", "half"], "s"),
        node("Mul", ["s", "t"], "y"),
        node("ReduceSum", ["y"], "z"),
    ]
    return model(nodes, {"x": shape}, ("z", "y"), constants, types={"x": onnx.TensorProto.INT32})


def test_a_one_hot_product_and_what_follows_it_becomes_a_look_up():
    result = repaired_same(one_hot(), feeds={"x": np.arange(-9, 36, dtype=np.int32).reshape(5, 9, 1)})
    assert not {"MatMul", "Tanh", "Equal", "Add"} & set(ops(result))
    assert "turned 1 one-hot products into look-ups" in result.changes


def test_a_table_with_more_rows_than_are_looked_up_takes_in_nothing():
    result = repaired_same(one_hot(50, (1, 2, 1)), feeds={"x": np.array([[[3], [77]]], np.int32)})
    assert "Gather" in ops(result)
    assert "Tanh" in ops(result)
