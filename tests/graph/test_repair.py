"""Repair as a whole: what is known becomes constant, what does nothing goes, outputs keep names and values."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.build import BOOL, FLOAT, INT64, model, node, ops, repaired_same, run, values
from tvmstack.frontend import load_model
from tvmstack.graph import PASSES, repair
from tvmstack.graph.values import static_shape

pytestmark = pytest.mark.null


def test_every_pass_has_a_name_of_its_own_and_does_nothing_twice():
    assert len({p.name for p in PASSES}) == len(PASSES)
    nodes = [
        node("Identity", ["x"], "i"),
        node("Shape", ["i"], "s"),
        node("Reshape", ["i", "s"], "r"),
        node("Relu", ["r"], "y"),
    ]
    once = repair(load_model(model(nodes, {"x": (2, 3)})))
    again = repair(once)
    assert again.changes == once.changes
    assert ops(again) == ["Relu"]


def test_shape_arithmetic_becomes_a_constant_and_shapes_static():
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "zero"], "n"),
        node("Unsqueeze", ["n", "axes"], "n1"),
        node("Concat", ["n1", "rest"], "target", axis=0),
        node("Reshape", ["x", "target"], "r"),
        node("Relu", ["r"], "y"),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    result = repaired_same(model(nodes, {"x": (2, 3, 4)}, weights=weights))
    assert ops(result) == ["Reshape", "Relu"]
    assert result.outputs[0].shape == (2, 12)


def test_scalar_constant_of_shape_is_folded():
    nodes = [
        node("ConstantOfShape", ["none"], "c", value=helper.make_tensor("v", FLOAT, [1], [3.0])),
        node("Add", ["x", "c"], "y"),
    ]
    assert ops(repaired_same(model(nodes, {"x": (2, 3)}, weights={"none": np.zeros(0, np.int64)}))) == ["Add"]


def test_large_expanded_constants_are_not_folded():
    nodes = [node("Expand", ["c", "shape"], "e"), node("Add", ["x", "e"], "y")]
    weights = {"c": np.float32(1), "shape": np.array([1, 5000, 1000])}
    result = repair(load_model(model(nodes, {"x": (1, 5000, 1000)}, weights=weights)))
    assert ops(result) == ["Expand", "Add"]


def test_quantised_weights_stay_quantised():
    nodes = [node("DequantizeLinear", ["w", "scale"], "d"), node("MatMul", ["x", "d"], "y")]
    weights = {"w": np.ones((3, 4), np.int8), "scale": np.float32(0.5)}
    assert ops(repaired_same(model(nodes, {"x": (2, 3)}, weights=weights))) == ["DequantizeLinear", "MatMul"]


def test_random_numbers_are_not_folded_or_merged():
    nodes = [
        node("RandomNormal", [], "a", shape=[2, 3]),
        node("RandomNormal", [], "b", shape=[2, 3]),
        node("Sub", ["a", "b"], "c"),
        node("Add", ["x", "c"], "y"),
    ]
    assert ops(repair(load_model(model(nodes, {"x": (2, 3)})))).count("RandomNormal") == 2


def test_an_if_on_a_constant_becomes_its_branch():
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", FLOAT, [2, 3])
        return helper.make_graph([node(op, ["x"], f"{op}_out")], op, [], [out])

    choose = node("If", ["yes"], "r", then_branch=branch("Relu"), else_branch=branch("Neg"))
    result = repaired_same(model([choose, node("Abs", ["r"], "y")], {"x": (2, 3)}, weights={"yes": np.array(True)}))
    assert ops(result) == ["Relu", "Abs"]
    assert any("If node" in line for line in result.changes)


def test_frozen_inputs_decide_branches():
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", FLOAT, [2, 3])
        return helper.make_graph([node(op, ["x"], f"{op}_out")], op, [], [out])

    nodes = [
        node("Equal", ["rate", "high"], "c"),
        node("If", ["c"], "r", then_branch=branch("Relu"), else_branch=branch("Neg")),
        node("Abs", ["r"], "y"),
    ]
    proto = model(nodes, {"x": (2, 3), "rate": ()}, weights={"high": np.array(16000)}, types={"rate": INT64})
    result = repair(load_model(proto, freeze={"rate": 8000}))
    assert ops(result) == ["Neg", "Abs"]
    assert [s.name for s in result.inputs] == ["x"]
    assert result.frozen_inputs["rate"] == 8000


def test_model_local_functions_are_inlined():
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], "b")], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Twice", ["x"], ["t"], domain="mine", name="call")
    proto = model(
        [call, node("Relu", ["t"], "y")], {"x": (2, 3)}, opsets=[helper.make_opsetid("mine", 1)], functions=[function]
    )
    assert ops(repaired_same(proto)) == ["Add", "Relu"]


def test_what_does_nothing_goes_and_an_output_keeps_its_name():
    nodes = [
        node("Dropout", ["x"], "a"),
        node("Cast", ["a"], "b", to=FLOAT),
        node("Transpose", ["b"], "c", perm=[0, 1]),
        node("Relu", ["c"], "d"),
        node("Identity", ["d"], "y"),
    ]
    result = repaired_same(model(nodes, {"x": (2, 3)}))
    assert ops(result) == ["Relu"]
    assert result.outputs[0].name == "y"


def test_an_input_that_is_an_output_keeps_its_identity():
    assert ops(repaired_same(model([node("Identity", ["x"], "y")], {"x": (2, 3)}))) == ["Identity"]


def test_one_value_as_two_outputs_keeps_both():
    nodes = [node("Relu", ["x"], "y"), node("Identity", ["y"], "z")]
    result = repaired_same(model(nodes, {"x": (2, 3)}, ("y", "z")))
    assert [s.name for s in result.outputs] == ["y", "z"]


def test_a_constant_output_stays_an_output():
    result = repaired_same(
        model(
            [node("Add", ["a", "b"], "y"), node("Relu", ["x"], "z")],
            {"x": (2,)},
            ("y", "z"),
            {"a": values(3), "b": values(3)},
        )
    )
    assert [s.shape for s in result.outputs] == [(3,), (2,)]


def test_equal_nodes_are_merged():
    nodes = [node("Relu", ["x"], "a"), node("Relu", ["x"], "b"), node("Add", ["a", "b"], "y")]
    assert ops(repaired_same(model(nodes, {"x": (2, 3)}))) == ["Relu", "Add"]


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 16])
def test_old_opsets_are_raised(opset):
    nodes = [node("Conv", ["x", "w"], "c"), node("Relu", ["c"], "r"), node("Softmax", ["r"], "y", axis=1)]
    result = repaired_same(model(nodes, {"x": (1, 2, 5, 5)}, weights={"w": values(3, 2, 3, 3)}, opset=opset))
    assert result.graph.opset_imports[""] == 17
    assert f"raised opset {opset} to 17" in result.changes


def test_the_opset_of_a_model_with_foreign_operators_is_kept():
    gelu = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft", name="g")
    proto = model([gelu], {"x": (2, 3)}, opset=13, opsets=[helper.make_opsetid("com.microsoft", 1)])
    result = repaired_same(proto)
    assert result.graph.opset_imports[""] == 13
    assert result.outputs[0].shape == (2, 3)


def test_stale_shapes_of_the_exporter_give_way_to_inferred_ones():
    proto = model([node("Relu", ["x"], "r"), node("Abs", ["r"], "y")], {"x": (2, 3)})
    proto.graph.value_info.append(helper.make_tensor_value_info("r", FLOAT, [7, 7]))
    result = repair(load_model(proto))
    assert [static_shape(n.outputs[0]) for n in result.graph.graph] == [(2, 3), (2, 3)]


def lstm_model(lengths: list[int]) -> onnx.ModelProto:
    weights = {"w": values(1, 16, 3), "r": values(1, 16, 4), "l": np.array(lengths, np.int32)}
    return model([node("LSTM", ["x", "w", "r", "", "l"], "y", hidden_size=4)], {"x": (5, 2, 3)}, weights=weights)


def test_full_sequence_lens_are_dropped_and_others_are_not():
    full = repaired_same(lstm_model([5, 5])).graph.graph
    short = repaired_same(lstm_model([5, 3])).graph.graph
    assert "l" not in full.initializers
    assert "l" in short.initializers


def loop_model(turns: int, condition: str = "cond", opset: int = 17) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Add", ["carried", "w"], "next"),
            node("Cast", ["turn"], "turn_f", to=FLOAT),
            node("Mul", ["next", "turn_f"], "row"),
            node("Identity", ["cond"], "go_on") if condition == "cond" else node("Less", ["turn_f", "limit"], "go_on"),
        ],
        "body",
        [info("turn", INT64, []), info("cond", BOOL, []), info("carried", FLOAT, [2, 3])],
        [info("go_on", BOOL, []), info("next", FLOAT, [2, 3]), info("row", FLOAT, [2, 3])],
    )
    weights = {"n": np.array(turns), "true": np.array(True), "w": values(3), "limit": np.float32(1)}
    return model(
        [node("Loop", ["n", "true", "x"], ["y", "rows"], body=body)], {"x": (2, 3)}, ("y", "rows"), weights, opset
    )


def test_a_short_loop_is_unrolled():
    result = repaired_same(loop_model(4))
    assert "Loop" not in ops(result)
    assert [s.shape for s in result.outputs] == [(2, 3), (4, 2, 3)]
    assert "unrolled Loop Loop_y (4 turns)" in result.changes


@pytest.mark.parametrize("proto", [loop_model(65), loop_model(4, "data")], ids=["long", "ends early"])
def test_a_loop_stays(proto):
    assert "Loop" in ops(repaired_same(proto))


def test_the_loaded_proto_is_not_changed():
    proto = model([node("Identity", ["x"], "i"), node("Relu", ["i"], "y")], {"x": (2, 3)})
    before = proto.SerializeToString(deterministic=True)
    repair(load_model(proto))
    assert proto.SerializeToString(deterministic=True) == before
    assert len(run(before, {"x": values(2, 3)})) == 1
