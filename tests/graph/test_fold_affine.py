"""Products and sums with constants go into the convolution before them, or stay."""

import numpy as np
import pytest

from tests.graph.build import model, node, ops, repaired_same, values

pytestmark = pytest.mark.null


@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1)], ids=str)
@pytest.mark.parametrize(
    ("op", "weight", "attributes"),
    [("Conv", (6, 4, 3, 3), {}), ("Conv", (6, 2, 3, 3), {"group": 2}), ("ConvTranspose", (4, 3, 2, 2), {"group": 2})],
    ids=["plain", "grouped", "transposed"],
)
def test_folds(op, weight, attributes, shape):
    nodes = [
        node(op, ["x", "w", "b"], "c", **attributes),
        node("Mul", ["k", "c"], "m"),
        node("Add", ["m", "a"], "s"),
        node("Relu", ["s"], "y"),
    ]
    weights = {"w": values(*weight), "b": values(6), "k": values(*shape, seed=1), "a": values(*shape, seed=2)}
    weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    result = repaired_same(model(nodes, {"x": (1, 4, 6, 6)}, weights=weights))
    assert ops(result) == [op, "Relu"]
    assert "folded 2 products and sums with constants into the convolutions before them" in result.changes


def test_a_sum_before_a_batch_normalization_opens_the_way_for_it():
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("Add", ["c", "a"], "s"),
        node("BatchNormalization", ["s", "one", "a1", "a1", "one"], "y"),
    ]
    weights = {"w": values(3, 2, 1, 1), "a": values(1, 3, 1, 1), "one": np.ones(3, np.float32), "a1": values(3)}
    assert ops(repaired_same(model(nodes, {"x": (1, 2, 4, 4)}, weights=weights))) == ["Conv"]


@pytest.mark.parametrize("shape", [(4,), (6, 4, 4), (1, 1, 4, 1), (2, 6, 1, 1), (1, 1, 1, 1, 1)], ids=str)
def test_a_constant_that_is_not_one_a_channel_stays(shape):
    nodes = [node("Conv", ["x", "w"], "c"), node("Mul", ["c", "k"], "y")]
    weights = {"w": values(6, 2, 1, 1), "k": values(*shape)}
    assert ops(repaired_same(model(nodes, {"x": (1, 2, 4, 4)}, weights=weights))) == ["Conv", "Mul"]


def test_a_result_used_twice_stays():
    nodes = [node("Conv", ["x", "w"], "c"), node("Mul", ["c", "k"], "m"), node("Add", ["c", "m"], "y")]
    result = repaired_same(model(nodes, {"x": (1, 2, 4, 4)}, weights={"w": values(6, 2, 1, 1), "k": values(1)}))
    assert ops(result) == ["Conv", "Mul", "Add"]
