"""Graphs with something in the middle that only onnxruntime runs: what is round it can still be handed over."""

import json

import numpy as np
import pytest
from onnx import helper

from tests.graph.build import BOOL, FLOAT, model, node
from tvmstack import driver
from tvmstack.measure.oracle import Oracle
from tvmstack.runtime import load

pytestmark = pytest.mark.cpu
pytest.importorskip("openvino", reason="openvino is not installed: pip install openvino")


def conv(x: str, y: str) -> list:
    return [node("Conv", [x, "w"], f"{y}_c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", [f"{y}_c"], y)]


WEIGHTS = {"w": np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32) * 0.3}


def branch(op: str, *inputs: str):
    out = helper.make_tensor_value_info("out", FLOAT, [1, 4, 8, 8])
    return helper.make_graph([helper.make_node(op, list(inputs), ["out"], name=f"{op}_inside")], op, [], [out])


def around_an_if():
    nodes = [
        *conv("x", "a"),
        node("If", ["flag"], "b", then_branch=branch("Neg", "a"), else_branch=branch("Add", "a", "a")),
        *conv("b", "y"),
    ]
    return model(nodes, {"x": (1, 4, 8, 8), "flag": ()}, weights=WEIGHTS, types={"flag": BOOL})


def around_a_foreign_operator():
    foreign = helper.make_node("Binarizer", ["a"], ["b"], name="foreign", domain="ai.onnx.ml", threshold=0.1)
    nodes = [*conv("x", "a"), foreign, *conv("b", "y")]
    return model(nodes, {"x": (1, 4, 8, 8)}, weights=WEIGHTS, opsets=[helper.make_opsetid("ai.onnx.ml", 1)])


def owners(artifact) -> list[str]:
    return sorted(row["backend"] for row in artifact.manifest.plan["regions"])


@pytest.mark.parametrize("flag", [True, False])
def test_regions_round_a_body_that_runs_or_not(tmp_path, flag):
    artifact = driver.compile(around_an_if(), backends=["openvino"], store=tmp_path / "s.db")
    # OpenVINO may take an If as well; what counts is that every answer is right
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 4, 8, 8)).astype(np.float32), "flag": np.array(flag)}
    with load(artifact.path) as session:
        got = session.run(feeds)["y"]
    np.testing.assert_allclose(got, Oracle(around_an_if()).run(feeds)["y"], rtol=1e-4, atol=1e-4)
    assert "openvino" in owners(artifact)


def test_regions_round_an_operator_that_the_back_end_refuses(tmp_path):
    artifact = driver.compile(around_a_foreign_operator(), backends=["openvino"], store=tmp_path / "s.db")
    assert owners(artifact) == ["onnxruntime", "openvino", "openvino"]
    assert artifact.report["verification"]["cases"] >= 3


def test_two_owners_take_turns(tmp_path):
    whole = model([*conv("x", "a"), *conv("a", "b"), *conv("b", "y")], {"x": (1, 4, 8, 8)}, weights=WEIGHTS)
    names = [n.name for n in whole.graph.node]
    first = driver.compile(whole, store=tmp_path / "s.db").manifest.to_json()
    first["plan"]["handed"] = [
        {"owner": "openvino:cpu", "nodes": names[:2]},
        {"owner": "onnxruntime:cpu", "nodes": names[4:]},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(first))
    mixed = driver.compile(whole, plan=tmp_path / "plan.json", store=tmp_path / "s.db")
    assert owners(mixed) == ["onnxruntime", "openvino"]
    assert mixed.manifest.plan["tvm_nodes"] == 2
