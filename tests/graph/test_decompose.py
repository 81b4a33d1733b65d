"""What is written out in simpler operators computes the same, and nothing of the old operator is left."""

import numpy as np
import onnx_ir
import pytest

from tests.graph.build import FLOAT, model, node, random_feeds, run
from tvmstack.frontend import load_model
from tvmstack.graph import repair
from tvmstack.graph.decompose import decompose, has_simpler_form

pytestmark = pytest.mark.null


def written_out(proto, *kinds):
    """Return the operators that are left, after comparing the outputs."""
    whole = repair(load_model(proto))
    simple = decompose(whole, kinds)
    feeds = random_feeds(whole)
    before = run(onnx_ir.to_proto(whole.graph).SerializeToString(), feeds)
    after = run(onnx_ir.to_proto(simple.graph).SerializeToString(), feeds)
    for got, expected in zip(after, before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    names = [n.name for n in simple.graph.graph]
    assert len(set(names)) == len(names)
    return {n.op_type for n in simple.graph.graph}


def norm_twice():
    weights = {"s": np.ones(8, np.float32) * 1.5, "b": np.ones(8, np.float32)}
    nodes = [
        node("LayerNormalization", ["x", "s", "b"], "n", axis=-1),
        node("Relu", ["n"], "r"),
        node("LayerNormalization", ["r", "s", "b"], "y", axis=-1),
    ]
    return model(nodes, {"x": (2, 5, 8)}, weights=weights)


def test_a_layer_norm_becomes_means_and_products():
    kinds = written_out(norm_twice(), "LayerNormalization")
    assert "LayerNormalization" not in kinds
    assert {"ReduceMean", "Mul"} <= kinds


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bhid,bhjd->bhij", (1, 2, 3, 4), (1, 2, 5, 4)),
        ("ij,kj->ki", (3, 4), (5, 4)),
        ("bihd,bjhd->bhij", (1, 3, 2, 4), (1, 5, 2, 4)),
    ],
)
def test_an_einsum_of_two_becomes_a_matrix_product(equation, a, b):
    proto = model([node("Einsum", ["p", "q"], "y", equation=equation)], {"p": a, "q": b}, types={"y": FLOAT})
    assert written_out(proto, "Einsum") <= {"MatMul", "Transpose"}


@pytest.mark.parametrize("equation", ["ij,ij->ij", "ij,jk->", "i,j->ij", "...ij,jk->ik", "ii,ij->j"])
def test_an_einsum_that_is_no_matrix_product_has_no_simpler_form(equation):
    proto = model([node("Einsum", ["p", "q"], "y", equation=equation)], {"p": (3, 3), "q": (3, 3)}, types={"y": FLOAT})
    [einsum] = load_model(proto).graph.graph
    assert not has_simpler_form(einsum, 17)


def test_what_has_a_simpler_form():
    for n in repair(load_model(norm_twice())).graph.graph:
        assert has_simpler_form(n, 17) == (n.op_type == "LayerNormalization") or n.op_type == "Relu"
