"""BatchNormalization goes into the weights before it, exactly, or stays."""

import numpy as np
import pytest

from tests.graph.build import model, node, ops, repaired_same, values

pytestmark = pytest.mark.null


def statistics(channels: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "s": rng.uniform(0.5, 2, channels).astype(np.float32),
        "b": values(channels, seed=1),
        "m": values(channels, seed=2),
        "v": rng.uniform(0.5, 2, channels).astype(np.float32),
    }


def norm(source: str = "c", result: str = "y") -> object:
    return node("BatchNormalization", [source, "s", "b", "m", "v"], result, epsilon=1e-3)


@pytest.mark.parametrize(
    ("op", "shape", "weight", "attributes", "channels"),
    [
        ("Conv", (1, 4, 6, 6), (6, 4, 3, 3), {}, 6),
        ("Conv", (1, 4, 6, 6), (4, 1, 3, 3), {"group": 4}, 4),
        ("Conv", (2, 4, 9), (3, 4, 2), {"strides": [2]}, 3),
        ("ConvTranspose", (1, 4, 5, 5), (4, 3, 2, 2), {}, 3),
        ("ConvTranspose", (1, 4, 5, 5), (4, 3, 2, 2), {"group": 2}, 6),
        ("Gemm", (3, 4), (4, 5), {}, 5),
        ("Gemm", (3, 4), (5, 4), {"transB": 1}, 5),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_folds_into(op, shape, weight, attributes, channels, bias):
    weights = {"w": values(*weight, seed=3), **statistics(channels)}
    inputs = ["x", "w"]
    if bias:
        weights["bias"] = values(channels, seed=4)
        inputs.append("bias")
    result = repaired_same(model([node(op, inputs, "c", **attributes), norm()], {"x": shape}, weights=weights))
    assert ops(result) == [op]
    assert result.changes[-1] == f"folded BatchNormalization BatchNormalization_y into {op} {op}_c"


def test_stays_where_the_convolution_has_another_user():
    nodes = [node("Conv", ["x", "w"], "c"), norm(result="n"), node("Add", ["c", "n"], "y")]
    weights = {"w": values(4, 4, 1, 1), **statistics(4)}
    assert "BatchNormalization" in ops(repaired_same(model(nodes, {"x": (1, 4, 3, 3)}, weights=weights)))


def test_stays_where_the_convolution_is_an_output():
    nodes = [node("Conv", ["x", "w"], "c"), norm()]
    weights = {"w": values(4, 4, 1, 1), **statistics(4)}
    result = repaired_same(model(nodes, {"x": (1, 4, 3, 3)}, ("y", "c"), weights=weights))
    assert "BatchNormalization" in ops(result)


def test_stays_where_the_scale_is_an_input():
    nodes = [node("Conv", ["x", "w"], "c"), norm()]
    weights = {"w": values(4, 4, 1, 1), **statistics(4)}
    del weights["s"]
    proto = model(nodes, {"x": (1, 4, 3, 3), "s": (4,)}, weights=weights)
    assert "BatchNormalization" in ops(repaired_same(proto))


def test_a_weight_used_twice_is_scaled_for_one_user_only():
    nodes = [node("Conv", ["x", "w"], "c"), norm(result="n"), node("Conv", ["n", "w"], "y")]
    weights = {"w": values(4, 4, 1, 1), **statistics(4)}
    assert ops(repaired_same(model(nodes, {"x": (1, 4, 3, 3)}, weights=weights))) == ["Conv", "Conv"]


def test_many_are_counted_in_one_line():
    nodes, weights, source = [], statistics(4), "x"
    for i in range(5):
        weights[f"w{i}"] = values(4, 4, 1, 1, seed=i)
        nodes += [node("Conv", [source, f"w{i}"], f"c{i}"), norm(f"c{i}", f"n{i}")]
        source = f"n{i}"
    result = repaired_same(model(nodes, {"x": (1, 4, 3, 3)}, (source,), weights))
    assert "folded 5 BatchNormalization nodes into the convolutions before them" in result.changes
