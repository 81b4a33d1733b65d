"""Each GPU template at awkward sizes: primes, ones, sizes that no tile divides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.gpu import pocl
from tests.gpu.check import gap_of, lowered_for_gpu
from tvmstack import schedules
from tvmstack.core.kernel import Choice

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(pocl.missing()), reason=pocl.missing()),
]


def one_node(kind: str, *shapes: tuple[int, ...], weights: tuple[tuple[int, ...], ...] = (), **attributes: object):
    """Return a model of one node on inputs of these shapes and seeded weights."""
    rng = np.random.default_rng(1)
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, s) for i, s in enumerate(shapes)]
    held = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), f"w{i}") for i, s in enumerate(weights)]
    names = [i.name for i in inputs] + [w.name for w in held]
    node = helper.make_node(kind, names, ["y"], name="node", **attributes)
    graph = helper.make_graph(
        [node], "one", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


CASES: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "conv of primes": ("gemm", lambda: one_node("Conv", (1, 13, 11, 7), weights=((17, 13, 3, 3),), pads=[1, 1, 1, 1])),
    "conv with stride and batch": (
        "gemm",
        lambda: one_node("Conv", (3, 5, 9, 9), weights=((7, 5, 5, 3),), strides=[2, 3], pads=[2, 0, 1, 1]),
    ),
    "conv to one pixel": ("gemm", lambda: one_node("Conv", (1, 3, 4, 4), weights=((1, 3, 4, 4),))),
    "pointwise conv": ("gemm", lambda: one_node("Conv", (2, 31, 5, 5), weights=((37, 31, 1, 1),))),
    "dilated conv": ("gemm", lambda: one_node("Conv", (1, 4, 12, 10), weights=((6, 4, 3, 3),), dilations=[2, 3])),
    "grouped conv": ("gemm", lambda: one_node("Conv", (2, 6, 7, 7), weights=((9, 2, 3, 3),), group=3)),
    "depthwise conv": ("outputs", lambda: one_node("Conv", (1, 7, 9, 11), weights=((7, 1, 5, 5),), group=7)),
    "matmul of primes": ("gemm", lambda: one_node("MatMul", (13, 101), weights=((101, 29),))),
    "matmul of one column": ("gemm", lambda: one_node("MatMul", (19, 47), weights=((47, 1),))),
    "long sum in parts": ("gemm", lambda: one_node("MatMul", (5, 3001), weights=((3001, 7),))),
    "batched matmul": ("gemm", lambda: one_node("MatMul", (2, 3, 17, 23), (2, 3, 23, 5))),
    "batched matmul that broadcasts": ("gemm", lambda: one_node("MatMul", (3, 1, 5, 9), (2, 9, 11))),
    "one row": ("rows", lambda: one_node("MatMul", (1, 127), weights=((127, 53),))),
    "softmax": ("rows", lambda: one_node("Softmax", (3, 5, 67), axis=-1)),
    "softmax of two": ("rows", lambda: one_node("Softmax", (3, 2), axis=-1)),
    "softmax over channels": ("rows", lambda: one_node("Softmax", (2, 19, 3), axis=1)),
    "layer norm": ("rows", lambda: one_node("LayerNormalization", (2, 7, 97), weights=((97,), (97,)), axis=-1)),
    "mean of everything": ("", lambda: one_node("GlobalAveragePool", (1, 11, 13, 7))),
    "pool": ("outputs", lambda: one_node("MaxPool", (1, 5, 11, 13), kernel_shape=[3, 3], strides=[2, 2])),
    "elementwise with broadcast": ("elementwise", lambda: one_node("Add", (3, 1, 7), (5, 1))),
    "transpose": ("elementwise", lambda: one_node("Transpose", (3, 7, 11, 5), perm=[2, 0, 3, 1])),
    "concat": ("elementwise", lambda: one_node("Concat", (2, 3, 5), (2, 4, 5), axis=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_default_equals_numpy(name: str) -> None:
    template, build = CASES[name]
    prepared = lowered_for_gpu(build())
    kernels = prepared.lowered.kernels
    assert kernels
    assert not template or template in {k.template for k in kernels}
    for kernel in kernels:
        assert schedules.default_choice(kernel.func, prepared.device).template == kernel.template
        assert gap_of(kernel, prepared.device) < 2e-5


@pytest.mark.parametrize("name", ["conv with stride and batch", "matmul of primes", "long sum in parts", "softmax"])
def test_candidates_equal_numpy(name: str) -> None:
    prepared = lowered_for_gpu(CASES[name][1]())
    kernel = prepared.lowered.kernels[0]
    found = schedules.candidates(kernel.func, prepared.device)
    rng = np.random.default_rng(2)
    for index in rng.choice(len(found), min(6, len(found)), replace=False):
        choice = Choice(kernel.template, found[index])
        assert gap_of(kernel, prepared.device, choice) < 2e-5, choice.text


@pytest.mark.parametrize("step", ["dlight", "plain", "serial"])
def test_what_takes_any_kernel_equals_numpy(step: str) -> None:
    for name in ("softmax", "transpose", "depthwise conv"):
        prepared = lowered_for_gpu(CASES[name][1]())
        assert gap_of(prepared.lowered.kernels[0], prepared.device, Choice(step)) < 2e-5, name
