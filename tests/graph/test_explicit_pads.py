"""auto_pad, output_shape, ceil_mode and Pad become explicit pads with the same result."""

import numpy as np
import pytest

from tests.graph.build import model, node, ops, repaired_same, values
from tvmstack.frontend import load_model
from tvmstack.graph import repair

pytestmark = pytest.mark.null

WINDOWS = [
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 2]},
    {"kernel_shape": [2, 2], "strides": [3, 3]},
    {"kernel_shape": [1, 1], "strides": [2, 3]},
]


def attributes_of(result) -> dict[str, object]:
    (only,) = result.graph.graph
    return {name: attr.value for name, attr in only.attributes.items()}


# Pooling by 1x1 windows is left out: onnxruntime computes negative pads for it and refuses it.
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("op", "window"),
    [
        (op, w)
        for op in ("Conv", "MaxPool", "AveragePool")
        for w in WINDOWS
        if op == "Conv" or w["kernel_shape"] != [1, 1]
    ],
    ids=str,
)
def test_auto_pad_of(op, window, mode):
    weights = {"w": values(2, 2, *window["kernel_shape"])} if op == "Conv" else {}
    inputs = ["x", "w"] if op == "Conv" else ["x"]
    result = repaired_same(
        model([node(op, inputs, "y", auto_pad=mode, **window)], {"x": (1, 2, 7, 8)}, weights=weights)
    )
    assert "auto_pad" not in attributes_of(result)
    assert f"made the pads of 1 {op} node explicit" in result.changes


def test_dilated_convolution_same_lower():
    # onnxruntime itself has no dilation with SAME_*.
    proto = model(
        [node("Conv", ["x", "w"], "y", auto_pad="SAME_LOWER", dilations=[2, 2])],
        {"x": (1, 2, 7, 8)},
        weights={"w": values(2, 2, 3, 2)},
    )
    result = repair(load_model(proto))
    assert attributes_of(result)["pads"] == (2, 1, 2, 1)
    assert result.outputs[0].shape == (1, 2, 7, 8)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad_of_transposed_convolution(mode, stride):
    proto = model(
        [node("ConvTranspose", ["x", "w"], "y", auto_pad=mode, strides=[stride, stride])],
        {"x": (1, 2, 4, 5)},
        weights={"w": values(2, 3, 3, 4)},
    )
    assert "auto_pad" not in attributes_of(repaired_same(proto))


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_output_shape_of_transposed_convolution(mode):
    proto = model(
        [node("ConvTranspose", ["x", "w"], "y", auto_pad=mode, strides=[2, 2], output_shape=[8, 10])],
        {"x": (1, 2, 4, 5)},
        weights={"w": values(2, 3, 3, 3)},
    )
    result = repaired_same(proto)
    assert "output_shape" not in attributes_of(result)
    assert result.outputs[0].shape == (1, 3, 8, 10)


@pytest.mark.parametrize("size", [7, 8, 17])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_ceil_mode_of(op, pads, size):
    proto = model(
        [node(op, ["x"], "y", kernel_shape=[2, 2], strides=[3, 3], pads=pads, ceil_mode=1)], {"x": (1, 2, size, size)}
    )
    assert "ceil_mode" not in attributes_of(repaired_same(proto))


def test_pad_goes_into_the_convolution():
    pads = np.array([0, 0, 1, 2, 0, 0, 3, 0])
    nodes = [node("Pad", ["x", "pads"], "p"), node("Conv", ["p", "w"], "y", pads=[1, 1, 1, 1])]
    proto = model(nodes, {"x": (1, 2, 7, 8)}, weights={"w": values(2, 2, 3, 3), "pads": pads})
    result = repaired_same(proto)
    assert attributes_of(result)["pads"] == (2, 3, 4, 1)


def test_pad_goes_into_an_average_pooling_that_then_counts_it():
    nodes = [
        node("Pad", ["x", "pads", "", "axes"], "p"),
        node("AveragePool", ["p"], "y", kernel_shape=[3, 3]),
    ]
    weights = {"pads": np.array([1, 1, 1, 1]), "axes": np.array([-2, -1])}
    result = repaired_same(model(nodes, {"x": (1, 2, 7, 8)}, weights=weights, opset=18))
    assert attributes_of(result)["count_include_pad"] == 1


@pytest.mark.parametrize(
    ("fill", "mode", "behind"),
    [
        (1.0, "constant", "Conv"),
        (0.0, "edge", "Conv"),
        (0.0, "constant", "MaxPool"),
    ],
)
def test_pad_stays(fill, mode, behind):
    follow = node("Conv", ["p", "w"], "y") if behind == "Conv" else node("MaxPool", ["p"], "y", kernel_shape=[3, 3])
    weights = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "fill": np.float32(fill)}
    if behind == "Conv":
        weights["w"] = values(2, 2, 3, 3)
    proto = model([node("Pad", ["x", "pads", "fill"], "p", mode=mode), follow], {"x": (1, 2, 7, 8)}, weights=weights)
    assert ops(repaired_same(proto)) == ["Pad", behind]


def test_pad_over_channels_stays():
    nodes = [node("Pad", ["x", "pads"], "p"), node("Conv", ["p", "w"], "y")]
    weights = {"w": values(2, 3, 3, 3), "pads": np.array([0, 1, 0, 0, 0, 0, 0, 0])}
    assert ops(repaired_same(model(nodes, {"x": (1, 2, 7, 8)}, weights=weights))) == ["Pad", "Conv"]
