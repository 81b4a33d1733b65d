"""Control flow whose bodies contradict the fixed shapes is left as written, and still runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmstack.frontend import load_model
from tvmstack.graph import repair
from tvmstack.partition import make_plan

pytestmark = pytest.mark.null


def two_rates():
    """Return a model with a branch for inputs of 6 samples and one for 4, chosen at run time."""

    def branch(name, width):
        weight = numpy_helper.from_array(np.ones((width, 2), "float32"), f"{name}_w")
        shape = numpy_helper.from_array(np.array([1, width], "int64"), f"{name}_s")
        nodes = [
            helper.make_node("Reshape", ["y", f"{name}_s"], [f"{name}_r"]),
            helper.make_node("MatMul", [f"{name}_r", f"{name}_w"], [f"{name}_o"]),
        ]
        out = helper.make_tensor_value_info(f"{name}_o", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out], [weight, shape])

    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"], name="twice"),
        helper.make_node("Equal", ["rate", "six"], ["is_six"], name="test"),
        helper.make_node("If", ["is_six"], ["z"], "choose", then_branch=branch("a", 6), else_branch=branch("b", 4)),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 2])
    six = numpy_helper.from_array(np.array(6, "int64"), "six")
    graph = helper.make_graph(nodes, "g", inputs, [output], [six])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_branch_for_other_shapes_does_not_stop_the_region():
    proto = two_rates()
    plan = make_plan(repair(load_model(proto, shapes={"x": (1, 6)})))
    (region,) = plan.regions
    session = onnxruntime.InferenceSession(region.model)
    x = np.arange(6, dtype="float32").reshape(1, 6)
    feeds = {"y": x + x, "is_six": np.array(True), "rate": np.array(6, "int64"), "x": x}
    (got,) = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(
        None, {"x": x, "rate": np.array(6, "int64")}
    )
    np.testing.assert_allclose(got, expected)
    onnx.checker.check_model(onnx.load_model_from_string(region.model))
