"""`scan` tells who runs each node, why not TVM, and what would help."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.build import BOOL, FLOAT, INT64, model, node, values
from tvmstack.frontend import scan

pytestmark = pytest.mark.null


def test_a_plain_model_is_all_tvm():
    report = scan(
        model([node("MatMul", ["x", "w"], "m"), node("Relu", ["m"], "y")], {"x": (2, 3)}, weights={"w": values(3, 4)})
    )
    assert report.totals == {"tvm": 2, "onnxruntime": 0, "none": 0}
    assert not report.refused
    assert not report.open_dims


def test_an_operator_tvm_lacks_is_onnxruntimes_with_a_reason():
    report = scan(model([node("Relu", ["x"], "r"), node("Det", ["r"], "y")], {"x": (2, 3, 3)}))
    (row,) = report.refused
    assert (row.op, row.owner) == ("Det", "onnxruntime")
    assert "no lowering for Det" in row.verdict.reason
    assert report.regions == 1


def test_an_unknown_operator_is_nobodys():
    report = scan(model([node("Reluu", ["x"], "y")], {"x": (2, 3)}))
    (row,) = report.rows
    assert row.owner == "none"
    assert row.verdict.reason == "ONNX has no operator Reluu; did you mean Relu?"


def test_open_dims_are_assumed_and_named():
    nodes = [node("Shape", ["x"], "s"), node("Reshape", ["x", "s"], "r"), node("MatMul", ["r", "w"], "y")]
    report = scan(model(nodes, {"x": ("batch", "seq", 3)}, weights={"w": values(3, 4)}))
    assert report.open_dims == ("--shape x=BATCH,SEQ,3",)
    assert report.assumed == ("--shape x=1,32,3",)
    assert report.inputs[0].shape == ("batch", "seq", 3)
    assert report.totals["tvm"] == len(report.rows)


def test_data_dependent_shapes_are_explained():
    nodes = [node("NonZero", ["x"], "n"), node("Transpose", ["n"], "y")]
    report = scan(model(nodes, {"x": (2, 3)}, types={"y": INT64}))
    assert {row.owner for row in report.rows} == {"onnxruntime"}
    assert "depends on data" in report.rows[0].verdict.reason


def test_the_report_is_plain_data():
    report = scan(model([node("Det", ["x"], "y")], {"x": (2, 3, 3)}))
    data = json.loads(json.dumps(report.to_json()))
    assert data["totals"] == {"tvm": 0, "onnxruntime": 1, "none": 0}
    assert set(data["nodes"][0]) == {"name", "op", "domain", "owner", "reason", "hint"}


def test_shapes_and_frozen_inputs_are_taken():
    proto = model([node("Reshape", ["x", "s"], "y")], {"x": ("n", 4), "s": (2,)}, types={"s": INT64})
    report = scan(proto, {"x": (3, 4)}, freeze={"s": np.array([2, 6])})
    assert report.totals["tvm"] == 1
    assert [s.name for s in report.inputs] == ["x"]


def test_a_node_whose_body_captures_values_is_onnxruntimes():
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", FLOAT, [2, 3])
        return helper.make_graph([node(op, ["r"], f"{op}_out")], op, [], [out])

    nodes = [node("Relu", ["x"], "r"), node("If", ["c"], "y", then_branch=branch("Abs"), else_branch=branch("Neg"))]
    report = scan(model(nodes, {"x": (2, 3), "c": ()}, types={"c": BOOL}))
    assert report.totals == {"tvm": 1, "onnxruntime": 1, "none": 0}
    assert "freeze the input that decides c" in report.refused[0].verdict.hint
