"""Elementwise operators, reductions, moves of data, products and quantisation equal onnxruntime's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.lower.import_tools import NodeCase, compare, node

pytestmark = pytest.mark.cpu
_RNG = np.random.default_rng(21)
_NAN = float("nan")
_INF = float("inf")


def rnd(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return normal values."""
    return _RNG.normal(size=shape).astype(dtype)


def i64(*values: int) -> np.ndarray:
    """Return a vector of int64."""
    return np.array(values, np.int64)


def _edge(dtype: str = "float32") -> np.ndarray:
    return np.array([_NAN, _INF, -_INF, 0.0, -0.0, 1e-30, -3.5, 2.5, 0.5, 88.0, -88.0, 7.25], dtype)


def _unary() -> list[NodeCase]:
    anywhere = [
        "Abs",
        "Neg",
        "Exp",
        "Tanh",
        "Sigmoid",
        "Erf",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Relu",
        "LeakyRelu",
        "Elu",
        "Celu",
        "Selu",
        "ThresholdedRelu",
        "Shrink",
        "HardSigmoid",
        "HardSwish",
        "Mish",
        "Softplus",
        "Softsign",
        "Sin",
        "Cos",
        "IsNaN",
        "IsInf",
        "Identity",
        "Reciprocal",
    ]
    cases = [node(op, x) for op in anywhere for x in (_edge(), rnd(3, 7) * 4)]
    cases += [node(op, np.abs(rnd(3, 5)) + 1e-3) for op in ("Sqrt", "Log")]
    cases += [node(op, rnd(3, 5).clip(-0.99, 0.99)) for op in ("Asin", "Acos", "Atan", "Atanh", "Tan", "Sinh", "Cosh")]
    cases += [
        node("Asinh", np.array([-1e3, -1.0, -1e-4, 0, 1e-4, 2.0, 5e3], np.float32)),
        node("Acosh", np.abs(rnd(9)) + 1.0),
    ]
    cases += [node("Sqrt", _edge()), node("Log", _edge())]
    cases += [node(op, np.array([-5, 0, 7, 127], np.int32)) for op in ("Abs", "Neg", "Sign", "Relu", "BitwiseNot")]
    cases += [
        node("Not", np.array([True, False])),
        node("Gelu", rnd(3, 4) * 3),
        node("Gelu", rnd(3, 4) * 3, approximate="tanh"),
    ]
    cases += [node(op, rnd(5, dtype="float64")) for op in ("Exp", "Tanh", "Sigmoid", "Relu")]
    cases += [node(op, rnd(5, dtype="float16")) for op in ("Exp", "Tanh", "Sigmoid", "Abs")]
    return cases


def _binary() -> list[NodeCase]:
    cases = []
    a, b = rnd(2, 3, 4), rnd(3, 1)
    for op in (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Min",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Equal",
        "PRelu",
    ):
        cases.append(node(op, a, b))
        cases.append(node(op, _edge(), np.flip(_edge()).copy()))
    ints = np.array([8, -8, 7, -7, 1, 0], np.int64), np.array([-3, 3, -2, 2, 5, 1], np.int64)
    cases += [node(op, *ints) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Less", "Equal")]
    cases += [node("Mod", *ints, fmod=1), node("Mod", *(v.astype(np.int32) for v in ints))]
    cases += [
        node("Pow", np.abs(a) + 0.1, b),
        node("Pow", a, np.float32(2), fixed=(1,)),
        node("Pow", a, np.float32(3), fixed=(1,)),
    ]
    cases += [
        node("Pow", np.abs(a), np.float32(0.5), fixed=(1,)),
        node("Pow", a, i64(2), fixed=(1,)),
        node("Pow", _edge(), np.float32(2), fixed=(1,)),
    ]
    cases += [node("Pow", i64(1, 2, 3), i64(3), fixed=(1,)), node("Pow", a, np.float32(-1), fixed=(1,))]
    flags = np.array([True, True, False]), np.array([[True], [False]])
    cases += [node(op, *flags) for op in ("And", "Or", "Xor", "Equal")]
    cases += [node("Where", flags[1], rnd(2, 3), rnd(3)), node("Where", rnd(2, 3) > 0, i64(1, 2, 3), i64(4))]
    bits = np.array([1, 2, 255, 128], np.uint8), np.array([1, 7, 3, 2], np.uint8)
    cases += [node(op, *bits) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")]
    cases += [node("BitShift", *bits, direction=d) for d in ("LEFT", "RIGHT")]
    cases += [node("BitShift", *(v.astype(np.uint32) for v in bits), direction=d) for d in ("LEFT", "RIGHT")]
    cases += [
        node("Sum", a, b, rnd(4)),
        node("Mean", a, b, rnd(4)),
        node("Max", a, b, rnd(4)),
        node("Min", rnd(30), rnd(1)),
    ]
    low, high = np.float32(-0.5), np.float32(0.75)
    cases += [
        node("Clip", _edge(), low, high, fixed=(1, 2)),
        node("Clip", _edge(), low, fixed=(1,)),
        node("Clip", _edge(), None, high, fixed=(2,)),
        node("Clip", a, low, high),
        node("Clip", _edge(), np.float32(0), np.float32(6), fixed=(1, 2)),
        node("Clip", a),
        node("Clip", i64(-5, 3, 9), np.int64(0), np.int64(6), fixed=(1, 2)),
        node("Clip", a, high, low, fixed=(1, 2)),
    ]
    return cases


def _casts() -> list[NodeCase]:
    sources = {
        "float32": np.array([-2.7, 0.0, 0.4, 3.9, 100.2], np.float32),
        "int64": i64(-3, 0, 5, 127),
        "bool": np.array([True, False]),
        "uint8": np.array([0, 3, 255], np.uint8),
        "float16": np.array([-2.5, 0, 3.25], np.float16),
    }
    targets = {1: "float32", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}
    return [node("Cast", x, to=code) for x, code in itertools.product(sources.values(), targets)]


def _reductions() -> list[NodeCase]:
    x = rnd(2, 3, 4, 5)
    ops = (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    )
    cases = [
        node(op, x, i64(*axes), fixed=(1,), keepdims=keep)
        for op, axes, keep in itertools.product(ops, ((1,), (-1,), (0, 2), (2, 3)), (0, 1))
    ]
    cases += [node(op, x) for op in ops]
    cases += [node(op, x, noop_with_empty_axes=1) for op in ("ReduceSum", "ReduceMean", "ReduceMax")]
    cases += [node("ReduceLogSum", np.abs(x) + 0.1, i64(1), fixed=(1,))]
    cases += [
        node(op, i64(3, -7, 12).reshape(1, 3), i64(1), fixed=(1,))
        for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    ]
    for place in range(3):
        row = np.array([[1, 5, 3], [2, 0, 9]], np.float32)
        row[0, place] = _NAN
        cases += [node(op, row, i64(1), fixed=(1,)) for op in ("ReduceMax", "ReduceMin", "ReduceSum")]
        cases += [
            node(op, row, axis=1, select_last_index=last)
            for op, last in itertools.product(("ArgMax", "ArgMin"), (0, 1))
        ]
    ties = np.array([[1, 5, 5, 1], [2, 2, 0, 0]], np.float32)
    for op, axis, keep, last in itertools.product(("ArgMax", "ArgMin"), (0, 1, -1), (0, 1), (0, 1)):
        cases.append(node(op, ties, axis=axis, keepdims=keep, select_last_index=last))
    cases += [node("ArgMax", i64(3, 9, 9)), node("ArgMax", x, axis=2)]
    return cases


def _moves() -> list[NodeCase]:
    x = rnd(2, 3, 4, 5)
    fixed = (1, 2, 3, 4)
    cases = [
        node("Reshape", x, i64(0, -1, 5), fixed=(1,)),
        node("Reshape", x, i64(6, 20), fixed=(1,)),
        node("Flatten", x),
        node("Flatten", x, axis=0),
        node("Flatten", x, axis=-1),
        node("Flatten", x, axis=4),
        node("Squeeze", rnd(1, 3, 1), fixed=(1,)),
        node("Squeeze", rnd(1, 3, 1), i64(-1), fixed=(1,)),
        node("Unsqueeze", x, i64(0, -1), fixed=(1,)),
        node("Transpose", x),
        node("Transpose", x, perm=[0, 2, 1, 3]),
        node("Concat", x, rnd(2, 1, 4, 5), axis=1),
        node("Concat", x, rnd(2, 3, 4, 2), rnd(2, 3, 4, 1), axis=-1),
        node("Split", x, i64(1, 2), fixed=(1,), axis=1, outputs=2),
        node("Split", x, num_outputs=3, axis=3, outputs=3),
        node("Slice", x, i64(1, 0), i64(3, 5), i64(1, 3), i64(1, 2), fixed=fixed),
        node("Slice", x, i64(-1), i64(-100), i64(2), i64(-1), fixed=fixed),
        node("Slice", x, i64(3), i64(0), i64(3), i64(-2), fixed=fixed),
        node("Slice", x, i64(-3), i64(2**63 - 1), i64(-1), fixed=fixed),
        node("Expand", rnd(3, 1), i64(2, 1, 6), fixed=(1,)),
        node("Expand", rnd(3, 4), i64(2, 1, 1), fixed=(1,)),
        node("Tile", rnd(2, 3, 4, 5), i64(7, 6, 4, 2), fixed=(1,)),
        node("Tile", rnd(2, 3), i64(1, 1), fixed=(1,)),
        node("Trilu", x),
        node("Trilu", x, np.int64(-1), fixed=(1,), upper=0),
        node("Trilu", x, np.int64(9), fixed=(1,)),
        node("DepthToSpace", rnd(1, 8, 2, 3), blocksize=2, mode="DCR"),
        node("DepthToSpace", rnd(1, 8, 2, 3), blocksize=2, mode="CRD"),
        node("SpaceToDepth", rnd(1, 2, 4, 6), blocksize=2),
        node("ReverseSequence", rnd(4, 3, 2), i64(2, 4, 1)),
        node("ReverseSequence", rnd(3, 4), i64(2, 4, 1), batch_axis=0, time_axis=1),
        node("EyeLike", rnd(3, 4), k=1),
        node("Shape", x),
        node("Shape", x, start=1, end=-1),
        node("Size", x),
        node("ConstantOfShape", i64(2, 3), fixed=(0,)),
        node("Range", np.float32(1), np.float32(4), np.float32(0.7), fixed=(0, 1, 2)),
    ]
    for mode in ("constant", "reflect", "edge", "wrap"):
        cases.append(node("Pad", x, i64(1, 0, 2, 1, 0, 2, 1, 3), fixed=fixed, mode=mode))
        cases.append(node("Pad", x, i64(2, 1), None, i64(-1), fixed=fixed, mode=mode))
    cases += [
        node("Pad", x, i64(0, 0, 1, 0, 0, 0, 0, 2), np.float32(1.5), fixed=fixed),
        node("Pad", x, i64(0, 0, -1, 1, 0, 0, 0, -2), fixed=fixed),
    ]
    cases += [
        node("CumSum", x, np.int64(a), fixed=(1,), exclusive=e, reverse=r)
        for a, e, r in itertools.product((1, -1), (0, 1), (0, 1))
    ]
    return cases


def _indexing() -> list[NodeCase]:
    x = rnd(3, 4, 5)
    cases = [
        node("Gather", x, i64(0, -1, 2)),
        node("Gather", x, i64(0, -1), fixed=(1,), axis=1),
        node("Gather", x, np.int64(-1), fixed=(1,), axis=2),
        node("Gather", x, np.array([[1], [-2]], np.int32), axis=1),
        node("Gather", i64(7, 8, 9), np.int64(1), fixed=(1,)),
        node("GatherElements", x, _RNG.integers(-4, 4, (3, 2, 5)), axis=1),
        node("GatherND", x, np.array([[0, 1], [-1, 2]], np.int64)),
        node("GatherND", x, _RNG.integers(-4, 4, (3, 2, 1)), batch_dims=1),
        node("ScatterND", x, np.array([[0, 1], [-1, 2]], np.int64), rnd(2, 5)),
        node("ScatterND", rnd(6), np.array([[1], [1], [3]], np.int64), rnd(3), reduction="add"),
        node(
            "ScatterElements",
            x,
            _RNG.permutation(4)[None, :2, None].repeat(3, 0).repeat(5, 2) - 4,
            rnd(3, 2, 5),
            axis=1,
        ),
        node("OneHot", i64(0, 2, -1, 9), np.int64(4), np.array([0.5, 2], np.float32), fixed=(1,)),
        node("OneHot", i64(0, 2, 1).reshape(1, 3), np.int64(3), np.array([0, 1], np.int64), fixed=(1,), axis=0),
        node("TopK", rnd(3, 9), i64(4), fixed=(1,), outputs=2),
        node("TopK", rnd(9, 3), i64(2), fixed=(1,), outputs=2, axis=0, largest=0),
        node("TopK", np.array([[1, 3, 3, 2, 3]], np.float32), i64(3), fixed=(1,), outputs=2),
    ]
    for how in ("add", "mul", "min", "max"):
        where = np.array([[0, 1, 1, 3, 0]], np.int64)
        cases.append(node("ScatterElements", rnd(1, 6), where, rnd(1, 5), axis=1, reduction=how))
    return cases


def _products() -> list[NodeCase]:
    shapes = [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((1, 2, 3, 4), (5, 1, 4, 6)),
        ((2, 3, 4), (4,)),
        ((1, 7), (7, 33)),
        ((17, 40), (40, 50)),
    ]
    cases = [node("MatMul", rnd(*a), rnd(*b), fixed=f) for a, b in shapes for f in ((), (1,))]
    for ta, tb, fixed in itertools.product((0, 1), (0, 1), ((), (1, 2))):
        a, b = rnd(4, 3) if ta else rnd(3, 4), rnd(5, 4) if tb else rnd(4, 5)
        cases.append(node("Gemm", a, b, rnd(5), fixed=fixed, transA=ta, transB=tb, alpha=0.5, beta=2.0))
    cases += [
        node("Gemm", rnd(3, 4), rnd(4, 5)),
        node("Gemm", rnd(3, 4), rnd(4, 5), rnd(3, 1)),
        node("Gemm", rnd(3, 4), rnd(4, 5), np.float32(2)),
    ]
    cases += [node("MatMul", _RNG.integers(-9, 9, (3, 4)), _RNG.integers(-9, 9, (4, 2)))]
    for equation, *dims in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
        ("...ij,...jk->...ik", (2, 1, 3, 4), (1, 2, 4, 5)),
        ("ij->ji", (2, 3)),
        ("ii->i", (3, 3)),
        ("ij->", (2, 3)),
        ("i,j->ij", (3,), (4,)),
        ("bqhd,rhd->bhqr", (1, 3, 2, 4), (5, 2, 4)),
        ("ij,ij->i", (2, 3), (2, 3)),
        ("abc,cd", (2, 3, 4), (4, 5)),
        ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
        ("bii->bi", (2, 3, 3)),
        ("nc...,c->n...", (2, 3, 4, 5), (3,)),
    ):
        cases.append(node("Einsum", *(rnd(*d) for d in dims), equation=equation))
    return cases


def _quantised() -> list[NodeCase]:
    x = rnd(2, 4, 6) * 3
    u8, i8 = np.uint8, np.int8
    s = np.float32
    wide = _RNG.integers(0, 255, (2, 3, 600)).astype(u8), _RNG.integers(-128, 127, (600, 7)).astype(i8)
    cases = [
        node("MatMulInteger", *wide, u8(3), fixed=(1, 2)),
        node("MatMulInteger", np.full((1, 512), 255, u8), np.full((512, 2), -128, i8), u8(0), fixed=(2,)),
        node("QuantizeLinear", x, s(0.02), u8(128), fixed=(1, 2)),
        node("QuantizeLinear", x, s(0.02), i8(-3), fixed=(1, 2)),
        node("QuantizeLinear", x, s(0.02), fixed=(1,)),
        node("QuantizeLinear", _edge()[1:], s(0.5), u8(10), fixed=(1, 2)),
        node(
            "QuantizeLinear", x, np.array([0.01, 0.02, 0.03, 0.5], s), np.array([1, 2, 3, 4], i8), fixed=(1, 2), axis=1
        ),
        node("QuantizeLinear", np.array([0.5, 1.5, 2.5, -0.5], s), s(1), u8(0)),
        node("DequantizeLinear", _RNG.integers(0, 255, (2, 4)).astype(u8), s(0.02), u8(128), fixed=(1, 2)),
        node(
            "DequantizeLinear",
            _RNG.integers(-128, 127, (2, 4)).astype(i8),
            rnd(4),
            np.array([1, 2, 3, 4], i8),
            fixed=(1, 2),
            axis=-1,
        ),
        node(
            "DequantizeLinear", _RNG.integers(-128, 127, (8, 4)).astype(i8), rnd(2, 4), fixed=(1,), axis=0, block_size=4
        ),
        node("DequantizeLinear", _RNG.integers(-9999, 9999, (3,)).astype(np.int32), s(0.3), fixed=(1,)),
        node("DynamicQuantizeLinear", x, outputs=3),
        node("DynamicQuantizeLinear", np.abs(x), outputs=3),
        node("MatMulInteger", _RNG.integers(0, 255, (3, 4)).astype(u8), _RNG.integers(-128, 127, (4, 5)).astype(i8)),
        node(
            "MatMulInteger",
            _RNG.integers(0, 255, (3, 4)).astype(u8),
            _RNG.integers(-128, 127, (4, 5)).astype(i8),
            u8(12),
            i8(3),
            fixed=(1, 3),
        ),
        node(
            "MatMulInteger",
            _RNG.integers(0, 255, (3, 4)).astype(u8),
            _RNG.integers(-128, 127, (4, 2)).astype(i8),
            u8(12),
            np.array([1, -3], i8),
            fixed=(1, 3),
        ),
        node(
            "QLinearMatMul",
            _RNG.integers(0, 255, (3, 4)).astype(u8),
            s(0.02),
            u8(120),
            _RNG.integers(0, 255, (4, 5)).astype(u8),
            s(0.01),
            u8(130),
            s(0.05),
            u8(100),
            fixed=(1, 2, 3, 4, 5, 6, 7),
        ),
        node(
            "ConvInteger",
            _RNG.integers(0, 255, (1, 3, 6, 6)).astype(u8),
            _RNG.integers(0, 255, (4, 3, 3, 3)).astype(u8),
            u8(7),
            u8(100),
            fixed=(1, 2, 3),
            pads=[1, 1, 1, 1],
        ),
        node(
            "QLinearConv",
            _RNG.integers(0, 255, (1, 4, 6, 6)).astype(u8),
            s(0.02),
            u8(120),
            _RNG.integers(-128, 127, (6, 2, 3, 3)).astype(i8),
            np.linspace(0.01, 0.03, 6).astype(s),
            np.zeros(6, i8),
            s(0.3),
            u8(90),
            _RNG.integers(-999, 999, 6).astype(np.int32),
            fixed=(1, 2, 3, 4, 5, 6, 7, 8),
            group=2,
            pads=[1, 0, 1, 2],
            strides=[2, 1],
        ),
    ]
    return cases


@pytest.mark.parametrize(
    ("cases", "opset"),
    [
        pytest.param(_unary(), 20, id="unary"),
        pytest.param(_binary(), 18, id="binary"),
        pytest.param(_casts(), 18, id="casts"),
        pytest.param(_reductions(), 18, id="reductions"),
        pytest.param(_moves(), 19, id="moves"),
        pytest.param(_indexing(), 18, id="indexing"),
        pytest.param(_products(), 18, id="products"),
        pytest.param(_quantised(), 21, id="quantised"),
    ],
)
def test_every_combination_equals_onnxruntime(cases: list[NodeCase], opset: int) -> None:
    wrong = compare(cases, opset)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
