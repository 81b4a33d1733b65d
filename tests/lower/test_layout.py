"""Whole small graphs through layout, fusion and scheduling give onnxruntime's numbers, whatever the channel counts."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmstack._tvm import relax, tvm
from tvmstack.core.device import detect_device, device_from_text
from tvmstack.core.model import Model
from tvmstack.lower.build import build_executable
from tvmstack.lower.importer import import_graph
from tvmstack.lower.pipeline import lower_module

pytestmark = pytest.mark.cpu


class Graph:
    """A small ONNX model under construction: each call adds a node and returns its output's name."""

    def __init__(self, **inputs):
        self.inputs, self.nodes, self.constants, self.seed = inputs, [], [], 0

    def weight(self, *shape, scale=0.3):
        self.seed += 1
        array = np.random.default_rng(self.seed).standard_normal(shape) * scale
        return self.constant(array.astype("float32"))

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def __call__(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, *outputs, opset=18):
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()]
        ends = [helper.make_empty_tensor_value_info(o) for o in outputs]
        graph = helper.make_graph(self.nodes, "g", values, ends, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made, data_prop=True, strict_mode=True)


def check(proto, device=None, atol=1e-4, feeds=None):
    device = device or detect_device()
    rng = np.random.default_rng(0)
    feeds = feeds or {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype("float32")
        for i in proto.graph.input
    }
    lowered = lower_module(import_graph(Model(onnx_ir.from_proto(proto), (), (), "", "test")), device)
    vm = relax.VirtualMachine(build_executable(lowered, {})[0], tvm.cpu())
    got = vm["main"](*[tvm.runtime.tensor(a) for a in (*feeds.values(), *lowered.weights)])
    got = [got.numpy()] if isinstance(got, tvm.runtime.Tensor) else [g.numpy() for g in got]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    for ours, theirs in zip(got, session.run(None, feeds), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(
            ours, theirs, atol=atol * max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)))
        )
    return lowered


@pytest.mark.parametrize("channels", [3, 8, 12, 20, 24, 33, 48])
def test_a_residual_block_with_squeeze_and_excitation(channels):
    g = Graph(x=[1, 3, 13, 19])
    x = g("Relu", g("Conv", "x", g.weight(channels, 3, 3, 3), g.weight(channels), pads=[1, 1, 1, 1], strides=[2, 2]))
    y = g("Conv", x, g.weight(channels, 1, 3, 3), g.weight(channels), pads=[1, 1, 1, 1], group=channels)
    y = g("HardSwish", y)
    s = g("GlobalAveragePool", y)
    s = g("Sigmoid", g("Conv", s, g.weight(channels, channels, 1, 1), g.weight(channels)))
    y = g("Mul", y, s)
    y = g("Add", g("Conv", y, g.weight(channels, channels, 1, 1)), x)
    y = g("Div", y, g.constant(np.linspace(1, 2, channels, dtype="float32").reshape(1, channels, 1, 1)))
    lowered = check(g.model(g("Flatten", g("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))))
    assert any(k.template == "depthwise_nchwc" for k in lowered.kernels)


@pytest.mark.parametrize("parts", [(16, 16), (16, 24), (24, 16), (8, 8), (5, 7), (32, 16)])
def test_split_and_concatenation_of_channels(parts):
    total = sum(parts)
    g = Graph(x=[1, 8, 6, 10])
    y = g("Conv", "x", g.weight(total, 8, 1, 1))
    a, b = g("Split", y, g.constant(np.array(parts, "int64")), outputs=2, axis=1)
    c = g("Concat", g("Sigmoid", b), a, g("Relu", a), axis=1)
    z = g("Conv", c, g.weight(9, total + parts[0], 3, 3), pads=[1, 1, 1, 1])
    check(g.model(z, g("Concat", z, z, axis=2)))


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "extra"),
    [(2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0), (5, 3, 2, 1), (1, 2, 0, 1), (3, 1, 1, 0)],
)
def test_transposed_convolution(kernel, stride, pads, extra):
    g = Graph(x=[2, 6, 5, 7])
    y = g(
        "ConvTranspose",
        "x",
        g.weight(6, 10, kernel, kernel),
        g.weight(10),
        strides=[stride] * 2,
        pads=[pads] * 4,
        output_padding=[extra] * 2,
    )
    check(g.model(g("Relu", y)))


def test_grouped_and_dilated_convolutions():
    g = Graph(x=[1, 24, 12, 12])
    y = g("Conv", "x", g.weight(48, 12, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2], group=2)
    y = g("Conv", g("Relu", y), g.weight(48, 2, 3, 3), pads=[1, 1, 1, 1], group=24)
    check(g.model(g("Conv", y, g.weight(16, 6, 1, 1), group=8)))


def test_one_dimensional_convolution_keeps_its_rank():
    g = Graph(x=[1, 10, 33])
    y = g("Conv", "x", g.weight(20, 10, 5), g.weight(20), pads=[2, 2], strides=[2])
    y = g("Mul", y, g("Sigmoid", y))
    check(g.model(g("Conv", g("Add", y, g.weight(20, 1)), g.weight(4, 20, 3))))


def test_upsampling_between_convolutions():
    g = Graph(x=[1, 4, 5, 6])
    y = g("Conv", "x", g.weight(12, 4, 1, 1))
    y = g(
        "Resize",
        y,
        "",
        g.constant(np.array([1, 1, 2, 2], "float32")),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    check(g.model(g("Conv", y, g.weight(6, 12, 3, 3), pads=[1, 1, 1, 1])))


@pytest.mark.parametrize(("batch", "length", "heads", "depth"), [(1, 7, 2, 8), (2, 19, 3, 16), (1, 16, 1, 32)])
def test_a_transformer_layer(batch, length, heads, depth):
    width = heads * depth
    g = Graph(x=[batch, length, width])

    def project(x):
        y = g("Add", g("MatMul", x, g.weight(width, width)), g.weight(width))
        y = g("Reshape", y, g.constant(np.array([batch, length, heads, depth], "int64")))
        return g("Transpose", y, perm=[0, 2, 1, 3])

    h = g("LayerNormalization", "x", g.weight(width), g.weight(width))
    q, k, v = project(h), project(h), project(h)
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g("Add", g("Div", scores, g.constant(np.float32(depth**0.5))), g.weight(1, 1, 1, length))
    y = g("MatMul", g("Softmax", scores), v)
    y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), g.constant(np.array([batch, length, width], "int64")))
    y = g("Add", "x", g("MatMul", y, g.weight(width, width)))
    f = g("MatMul", y, g.weight(width, 30))
    f = g(
        "Mul",
        g("Mul", f, g.constant(np.float32(0.5))),
        g("Add", g("Erf", g("Div", f, g.constant(np.float32(2**0.5)))), g.constant(np.float32(1))),
    )
    lowered = check(g.model(g("Softmax", g("MatMul", f, g.weight(30, 7)), axis=1)))
    assert any(k.template == "attention" for k in lowered.kernels)


@pytest.mark.parametrize("mask", [(2, 1, 1, 6), (1, 3, 5, 6), (2, 3, 5, 6), (6,), (5, 6)], ids=str)
@pytest.mark.parametrize("is_key_moved_twice", [True, False])
def test_heads_inside_the_rows(mask, is_key_moved_twice):
    g = Graph(q=[2, 5, 3, 8], k=[2, 6, 3, 8], v=[2, 6, 3, 7])
    if is_key_moved_twice:
        key = g("Transpose", g("Transpose", "k", perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    else:
        key = g("Transpose", "k", perm=[0, 2, 3, 1])
    scores = g("Add", g("MatMul", g("Transpose", "q", perm=[0, 2, 1, 3]), key), g.weight(*mask))
    y = g("MatMul", g("Softmax", scores), g("Transpose", "v", perm=[0, 2, 1, 3]))
    # one reader takes the heads as they lie, one as the model says
    lowered = check(g.model(g("Add", g("Transpose", y, perm=[0, 2, 1, 3]), g.constant(np.float32(1))), g("Relu", y)))
    assert any(k.template == "attention" for k in lowered.kernels)


def test_a_mask_of_more_batches_than_the_scores():
    g = Graph(q=[1, 5, 2, 8], k=[1, 6, 2, 8], v=[1, 6, 2, 8])
    scores = g("MatMul", g("Transpose", "q", perm=[0, 2, 1, 3]), g("Transpose", "k", perm=[0, 2, 3, 1]))
    share = g("Softmax", g("Add", scores, g.weight(4, 1, 1, 6)))
    check(g.model(g("MatMul", share, g("Transpose", "v", perm=[0, 2, 1, 3]))))


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 7), (7, 3)), ((2, 1, 5, 7), (1, 3, 7, 4)), ((4, 2, 3), (4, 3, 5)), ((3, 2, 3), (3, 4)), ((2, 3), (5, 3, 4))],
)
def test_products_of_two_inputs(a, b):
    g = Graph(a=list(a), b=list(b))
    check(g.model(g("MatMul", "a", "b")))


def test_infinite_activations_do_not_leak_through_padded_channels():
    g = Graph(x=[1, 3, 4, 4])
    y = g("Conv", "x", g.weight(20, 3, 1, 1))
    y = g("Clip", y, g.constant(np.float32(0)), g.constant(np.float32(6)))
    proto = g.model(g("Conv", y, g.weight(5, 20, 1, 1)))
    check(proto, feeds={"x": np.full((1, 3, 4, 4), 3e38, "float32")})


def test_the_templates_serve_avx2_as_well():
    g = Graph(x=[1, 3, 9, 11])
    y = g("Relu", g("Conv", "x", g.weight(20, 3, 3, 3), g.weight(20), strides=[2, 2]))
    y = g("Conv", y, g.weight(20, 1, 3, 3), pads=[1, 1, 1, 1], group=20)
    y = g("ReduceMean", y, g.constant(np.array([2, 3], "int64")), keepdims=0)
    check(g.model(g("Softmax", g("MatMul", y, g.weight(20, 10)))), device_from_text("cpu:haswell"))


@pytest.mark.parametrize(("length", "kernel", "stride"), [(37, 5, 1), (64, 3, 2)])
def test_a_convolution_over_one_column_squeezed_and_reduced_to_its_maximum(length, kernel, stride):
    g = Graph(x=[1, 20, length, 1])
    pads = [kernel // 2, 0, kernel // 2, 0]
    y = g("Conv", "x", g.weight(36, 20, kernel, 1), g.weight(36), pads=pads, strides=[stride, 1])
    flat = g("Squeeze", g("Tanh", y), g.constant(np.array([3], "int64")))
    lowered = check(g.model(flat, g("GlobalMaxPool", flat)))
    assert all(k.template != "generic" for k in lowered.kernels)


def test_a_picture_laid_out_in_one_row_stays_blocked():
    g = Graph(x=[2, 32, 4, 6])
    y = g("Conv", "x", g.weight(48, 32, 1, 1), g.weight(48))
    row = g("Reshape", y, g.constant(np.array([2, 48, 24], "int64")))
    lowered = check(g.model(g("Relu", g("Conv", row, g.weight(16, 48, 3), pads=[1, 1]))))
    assert sum(k.template == "conv2d_nchwc" for k in lowered.kernels) == 2
    assert not any("from_blocked" in k.name and "to_blocked" in k.name for k in lowered.kernels)
