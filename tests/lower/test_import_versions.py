"""Older spellings of operators, and other element types than float32, equal onnxruntime's too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.lower.import_tools import NodeCase, compare, node

pytestmark = pytest.mark.cpu
_RNG = np.random.default_rng(23)


def rnd(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return normal values."""
    return _RNG.normal(size=shape).astype(dtype)


def _opset_9() -> list[NodeCase]:
    x = rnd(2, 3, 4, 5)
    return [
        node("Clip", x, min=-0.5, max=0.5),
        node("Clip", x, min=0.0),
        node("Slice", x, starts=[1, 0], ends=[3, -1], axes=[1, 3]),
        node("Slice", x, starts=[0, 1], ends=[2, 9]),
        node("Pad", x, pads=[0, 1, 0, 2, 0, 0, 1, 1], mode="constant", value=1.5),
        node("Pad", x, pads=[0, 1, 0, 2, 0, 0, 1, 1], mode="reflect"),
        node("Upsample", x, np.array([1, 1, 2, 3], np.float32), fixed=(1,)),
        node("Upsample", x, np.array([1, 1, 2, 3], np.float32), fixed=(1,), mode="linear"),
        node("Softmax", x),
        node("Softmax", x, axis=2),
        node("Softmax", x, axis=3),
        node("LogSoftmax", x),
        node("Hardmax", x, axis=1),
        node("ReduceSum", x, axes=[1, -1], keepdims=0),
        node("ReduceMean", x, axes=[2]),
        node("Squeeze", rnd(1, 3, 1), axes=[0]),
        node("Squeeze", rnd(1, 3, 1)),
        node("Unsqueeze", x, axes=[0, 2]),
        node("Split", x, axis=1, split=[1, 2], outputs=2),
        node("Split", x, axis=0, outputs=2),
        node("TopK", rnd(3, 7), k=2, outputs=2),
        node("Dropout", x),
        node("Flatten", x, axis=2),
        node("Scatter", rnd(3, 4), np.array([[1, 0, 2, 1]], np.int64), rnd(1, 4)),
        node("MaxPool", x, kernel_shape=[2, 2]),
        node("ConstantOfShape", np.array([2, 2], np.int64), fixed=(0,)),
        node("OneHot", np.array([0, 2], np.int64), np.array([3], np.int64), np.array([0, 1], np.float32), fixed=(1,)),
        node("Gemm", rnd(3, 4), rnd(4, 5), rnd(5), alpha=0.5),
        node("BatchNormalization", x, rnd(3), rnd(3), rnd(3), np.abs(rnd(3)) + 0.1, fixed=(1, 2, 3, 4)),
        node("Cast", x, to=6),
        node("Shape", x),
    ]


def _opset_10() -> list[NodeCase]:
    x = rnd(1, 2, 4, 5)
    scales = [np.array(s, np.float32) for s in ((1, 1, 2, 3), (1, 1, 0.5, 1.5))]
    cases = [node("Resize", x, s, fixed=(1,), mode=m) for s, m in itertools.product(scales, ("nearest", "linear"))]
    starts, ends, axes, steps = (np.array(v, np.int64) for v in ([0], [9], [3], [2]))
    cases.append(node("Slice", x, starts, ends, axes, steps, fixed=(1, 2, 3, 4)))
    cases.append(node("TopK", rnd(3, 7), np.array([2], np.int64), fixed=(1,), outputs=2))
    return cases


def _opset_11() -> list[NodeCase]:
    x, roi = rnd(1, 2, 4, 5), np.zeros(0, np.float32)
    return [
        node("Softmax", x, axis=1),
        node("Clip", x, np.float32(-0.3), np.float32(0.4), fixed=(1, 2)),
        node("Pad", x, np.array([0, 0, 1, 1, 0, 0, 1, 2], np.int64), np.float32(2), fixed=(1, 2)),
        node("Resize", x, roi, np.array([1, 1, 2, 2], np.float32), fixed=(1, 2), mode="nearest", nearest_mode="floor"),
        node("Resize", x, roi, roi, np.array([1, 2, 8, 7], np.int64), fixed=(1, 2, 3), mode="linear"),
        node("Squeeze", rnd(1, 3, 1), axes=[-1]),
        node("ReduceSum", x, axes=[-1]),
        node("CumSum", x, np.int64(2), fixed=(1,)),
        node("ScatterND", rnd(3, 4), np.array([[1], [-3]], np.int64), rnd(2, 4)),
    ]


def _half() -> list[NodeCase]:
    def half(*shape: int) -> np.ndarray:
        return rnd(*shape, dtype="float16")

    x = half(2, 3, 6, 6)
    return [
        node("MatMul", half(3, 64), half(64, 5), fixed=(1,)),
        node("Gemm", half(3, 4), half(5, 4), half(5), fixed=(1, 2), transB=1),
        node("Conv", x, half(4, 3, 3, 3), half(4), fixed=(1, 2), pads=[1, 1, 1, 1]),
        node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
        node("Softmax", half(3, 9)),
        node("ReduceSum", half(3, 9), np.array([1], np.int64), fixed=(1,)),
        node("ReduceMean", half(3, 9), np.array([1], np.int64), fixed=(1,)),
        node("ReduceMax", half(3, 9), np.array([1], np.int64), fixed=(1,)),
        node("Add", x, half(6)),
        node("Div", x, np.abs(half(6)) + np.float16(1)),
        node("Relu", x),
        node("Gelu", x),
        node("Where", x > 0, x, half(6)),
        node("Concat", x, half(2, 1, 6, 6), axis=1),
        node("Pow", np.abs(x), np.float16(2), fixed=(1,)),
        node("Transpose", x),
        node("Gather", x, np.array([1, -1], np.int64), axis=1),
        node("GlobalAveragePool", x),
        node("LeakyRelu", x),
    ]


def _double() -> list[NodeCase]:
    x = rnd(2, 3, 4, dtype="float64")
    return [
        node("MatMul", x, rnd(4, 5, dtype="float64")),
        node("Softmax", x),
        node("ReduceMean", x, np.array([1], np.int64), fixed=(1,)),
        node("ReduceMax", x, np.array([1], np.int64), fixed=(1,)),
        node("LayerNormalization", x, rnd(4, dtype="float64"), rnd(4, dtype="float64")),
        node("Add", x, x),
        node("Sqrt", np.abs(x)),
        node("Clip", x, np.float64(-1), np.float64(1), fixed=(1, 2)),
        node("Floor", x),
    ]


def _integers() -> list[NodeCase]:
    cases = []
    for kind in ("int8", "uint8", "int32", "int64", "uint32", "uint64"):
        a, b = (_RNG.integers(1, 100, (2, 3)).astype(kind) for _ in range(2))
        cases += [node("Transpose", a), node("Concat", a, b, axis=0), node("Reshape", a, np.array([-1]), fixed=(1,))]
        cases += [node("Gather", a, np.array([1, 0])), node("Equal", a, b)]
        if kind in ("int32", "int64", "uint32", "uint64"):
            cases += [node(op, a, b) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Less", "Greater")]
    cases += [node("ReduceMean", np.array([[3, -8, 1]], np.int32), np.array([1]), fixed=(1,))]
    cases += [node("Where", np.array([True, False]), np.array([1, 2], np.uint8), np.array([3, 4], np.uint8))]
    return cases


@pytest.mark.parametrize(
    ("cases", "opset"),
    [
        pytest.param(_opset_9(), 9, id="opset-9"),
        pytest.param(_opset_10(), 10, id="opset-10"),
        pytest.param(_opset_11(), 11, id="opset-11"),
        pytest.param(_half(), 20, id="float16"),
        pytest.param(_double(), 18, id="float64"),
        pytest.param(_integers(), 18, id="integers"),
    ],
)
def test_every_spelling_equals_onnxruntime(cases: list[NodeCase], opset: int) -> None:
    wrong = compare(cases, opset)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
