"""The importer's loop: names, constants, regions, errors that name the node; and what support refuses."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.lower.import_tools import (
    NodeCase,
    as_model,
    compare,
    compute,
    difference,
    expected_of,
    graph_of,
    node,
    refusals,
)
from tvmstack.core.errors import ModelError
from tvmstack.lower.support import SUPPORTED

pytestmark = pytest.mark.cpu
_X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _model(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], opset: int = 17) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tvmstack", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(_X, "w")])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _float(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def test_support_needs_no_compiler() -> None:
    code = "import sys, tvmstack.lower.support; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_support_accepts_is_what_converters_lower() -> None:
    from tvmstack.lower.converters import CONVERTERS

    assert set(SUPPORTED) == {*CONVERTERS, ("", "Constant")}  # constants become values without a converter


def test_inputs_and_outputs_keep_their_order_whatever_their_names() -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["0.weird/name"]),
        helper.make_node("Mul", ["x", "w"], ["0_weird_name"]),
    ]
    proto = _model(
        nodes, [_float("0_weird_name", 2, 3), _float("0.weird/name", 2, 3), _float("x", 2, 3), _float("w", 2, 3)]
    )
    product, total, same, weight = compute(as_model(proto), {"x": _X})
    assert np.array_equal(product, _X * _X)
    assert np.array_equal(total, _X + _X)
    assert np.array_equal(same, _X)
    assert np.array_equal(weight, _X)


def test_an_operator_without_converter_is_named() -> None:
    from tvmstack.lower.importer import LoweringError, import_graph

    proto = _model([helper.make_node("Det", ["x"], ["y"], name="the_determinant")], [_float("y", 1)])
    with pytest.raises(LoweringError, match=r"cannot lower node the_determinant \(Det\): no converter") as error:
        import_graph(as_model(proto))
    assert error.value.node == "the_determinant"


def test_a_shape_that_disagrees_with_the_model_names_the_node() -> None:
    from tvmstack.lower.importer import import_graph

    model = as_model(_model([helper.make_node("Relu", ["x"], ["y"], name="r")], [_float("y", 2, 3)]))
    model.graph.graph.outputs[0].shape = onnx_ir.Shape([3, 2])
    with pytest.raises(ModelError, match=r"node r \(Relu\): y came out as shape \(2, 3\), the model says \(3, 2\)"):
        import_graph(model)


def test_a_type_that_disagrees_with_the_model_names_the_node() -> None:
    from tvmstack.lower.importer import import_graph

    model = as_model(_model([helper.make_node("Relu", ["x"], ["y"], name="r")], [_float("y", 2, 3)]))
    model.graph.graph.outputs[0].dtype = onnx_ir.DataType.DOUBLE
    with pytest.raises(ModelError, match=r"node r \(Relu\): y came out as float32, the model says float64"):
        import_graph(model)


def test_an_input_without_a_fixed_shape_is_named() -> None:
    from tvmstack.lower.importer import import_graph

    proto = _model([helper.make_node("Relu", ["x"], ["y"])], [_float("y", "n", 3)])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(ModelError, match="input x has no fixed shape"):
        import_graph(as_model(proto))


def test_a_region_becomes_a_packed_call_and_its_results_flow_on() -> None:
    from tvmstack._tvm import tvm
    from tvmstack.lower.importer import REGION_PREFIX

    digest = "0123456789abcdef"

    def region(array: object) -> list[object]:
        values = np.from_dlpack(array)
        return [tvm.runtime.tensor(values * 2), tvm.runtime.tensor(values.sum(1))]

    tvm.register_global_func(REGION_PREFIX + digest, region, override=True)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Region", ["a"], ["b", "c"], domain="tvmstack", digest=digest),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    proto = _model(nodes, [_float("y", 2, 3), _float("c", 2)])
    proto.graph.value_info.extend([_float("b", 2, 3)])
    total, sums = compute(as_model(proto), {"x": _X})
    assert np.array_equal(total, _X * 3)
    assert np.array_equal(sums, _X.sum(1))


def test_shapes_inferred_wrongly_for_ceil_pools_are_corrected_down_the_graph() -> None:
    x = np.random.default_rng(0).normal(size=(1, 3, 17, 17)).astype(np.float32)
    case = node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    proto, feed = graph_of([case], 19)
    proto.graph.node.append(helper.make_node("Neg", ["c0_o0"], ["y"]))
    proto.graph.output[0].name = "y"
    (got,) = compute(as_model(proto), feed)
    assert got.shape == (1, 3, 9, 9)


def test_the_comparison_of_these_tests_sees_differences() -> None:
    assert "instead of" in difference(_X, _X.astype(np.float64), 0, 0)
    assert "largest difference 1" in difference(_X, _X + 1, 1e-4, 0)
    assert difference(np.array([np.nan], np.float32), np.array([1], np.float32), 1, 1)
    assert compare([node("Relu", _X)], 17) == []


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        pytest.param(node("Mod", _X, _X + 1, fmod=1), "Mod of FLOAT", id="floating-point-mod"),
        pytest.param(node("Det", np.eye(3, dtype=np.float32)), "no lowering for Det", id="unknown-operator"),
        pytest.param(node("Tile", _X, np.array([2, 1])), "depends on data", id="run-time-repeats"),
        pytest.param(
            node("TopK", np.zeros((1, 5000), np.float32), np.array([3]), fixed=(1,), outputs=2),
            "rows of 5000",
            id="long-topk",
        ),
        pytest.param(
            node("Dropout", _X, np.float32(0.5), np.array(True), fixed=(1, 2)), "training_mode", id="training"
        ),
        pytest.param(node("Relu", np.zeros((0, 3), np.float32)), "is empty", id="empty"),
        pytest.param(
            node("RoiAlign", np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 4), np.float32), np.zeros(1, np.int64)),
            "depends on data",
            id="adaptive-sampling",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_reason(case: NodeCase, reason: str) -> None:
    proto, _ = graph_of([case], 18)
    assert reason in refusals(as_model(proto))["case0"]


def test_a_fused_kernel_of_moves_reads_the_right_places() -> None:
    """Chains of reshapes and transposes fuse into one kernel full of divisions and remainders."""
    x = np.arange(2 * 8 * 6 * 10, dtype=np.float32).reshape(2, 8, 6, 10)
    nodes = [
        helper.make_node("DepthToSpace", ["x"], ["a"], blocksize=2),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("Tile", ["c", "r"], ["y"]),
    ]
    consts = [numpy_helper.from_array(np.array([4, 5, 48]), "s"), numpy_helper.from_array(np.array([3, 2, 2]), "r")]
    graph = helper.make_graph(nodes, "g", [_float("x", 2, 8, 6, 10)], [_float("y", 12, 10, 96)], consts)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (want,) = expected_of(proto, {"x": x})
    (got,) = compute(as_model(proto), {"x": x})
    assert np.array_equal(got, want)
