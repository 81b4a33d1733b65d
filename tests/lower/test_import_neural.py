"""Convolutions, pools, normalisations and resizes equal onnxruntime's for every combination in these tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.lower.import_tools import NodeCase, compare, node

pytestmark = pytest.mark.cpu
_RNG = np.random.default_rng(20)


def rnd(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return normal values."""
    return _RNG.normal(size=shape).astype(dtype)


def _convolutions() -> list[NodeCase]:
    cases = []
    for group, stride, dilation, pads in itertools.product((1, 2, 4), (1, 2), (1, 2), ((0, 0, 0, 0), (1, 0, 2, 1))):
        w = rnd(8, 4 // group, 3, 3)
        cases.append(
            node(
                "Conv",
                rnd(1, 4, 9, 10),
                w,
                rnd(8),
                fixed=(1, 2),
                group=group,
                strides=[stride, stride],
                dilations=[dilation, dilation],
                pads=list(pads),
            )
        )
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        cases.append(node("Conv", rnd(2, 3, 7, 8), rnd(5, 3, 4, 3), fixed=(1,), auto_pad=auto, strides=[2, 1]))
        cases.append(node("Conv", rnd(2, 3, 11), rnd(5, 3, 4), fixed=(1,), auto_pad=auto, strides=[2]))
    cases += [
        node("Conv", rnd(2, 4, 11), rnd(6, 2, 3), rnd(6), fixed=(1, 2), group=2, pads=[2, 1], dilations=[2]),
        node("Conv", rnd(1, 4, 5, 6, 7), rnd(6, 2, 3, 2, 3), rnd(6), fixed=(1, 2), group=2, pads=[1, 0, 1, 0, 1, 1]),
        node("Conv", rnd(1, 4, 6, 6), rnd(6, 4, 3, 3), rnd(6)),
        node("Conv", rnd(1, 16, 6, 6), rnd(16, 1, 3, 3), fixed=(1,), group=16, pads=[1, 1, 1, 1]),
        node("Conv", rnd(1, 4, 6, 6), rnd(8, 1, 3, 3), fixed=(1,), group=4, pads=[1, 1, 1, 1]),
    ]
    return cases


def _transposed() -> list[NodeCase]:
    cases = []
    steps = ((1, 1), (2, 1), (3, 1), (1, 2))
    for group, (stride, dilation), kernel in itertools.product((1, 2), steps, (2, 3, 4)):
        cases.append(
            node(
                "ConvTranspose",
                rnd(1, 4, 4, 5),
                rnd(4, 3, kernel, kernel),
                rnd(3 * group),
                fixed=(1, 2),
                group=group,
                strides=[stride, stride],
                dilations=[dilation, dilation],
                pads=[1, 0, 0, 1],
            )
        )
    cases += [
        node("ConvTranspose", rnd(1, 2, 3, 3), rnd(2, 3, 3, 3), fixed=(1,), strides=[2, 2], output_padding=[1, 1]),
        node(
            "ConvTranspose",
            rnd(1, 2, 3, 3),
            rnd(2, 3, 3, 3),
            fixed=(1,),
            strides=[2, 2],
            output_padding=[1, 0],
            pads=[1, 1, 1, 1],
        ),
        node("ConvTranspose", rnd(1, 1, 3, 3), rnd(1, 2, 3, 3), fixed=(1,), strides=[3, 2], output_shape=[10, 8]),
        node("ConvTranspose", rnd(1, 1, 3, 3), rnd(1, 2, 3, 3), fixed=(1,), strides=[3, 2], output_shape=[8, 6]),
        node("ConvTranspose", rnd(1, 1, 3, 3), rnd(1, 2, 3, 3), fixed=(1,), strides=[2, 2], auto_pad="SAME_UPPER"),
        node("ConvTranspose", rnd(1, 1, 3, 3), rnd(1, 2, 3, 3), fixed=(1,), strides=[2, 2], auto_pad="SAME_LOWER"),
        node("ConvTranspose", rnd(1, 4, 7), rnd(4, 2, 4), rnd(2), fixed=(1, 2), strides=[2], pads=[1, 1]),
        node("ConvTranspose", rnd(1, 2, 3, 4, 3), rnd(2, 2, 2, 3, 2), fixed=(1,), strides=[2, 1, 2]),
    ]
    return cases


def _pools() -> list[NodeCase]:
    cases = []
    for op, ceil, stride, pads in itertools.product(
        ("MaxPool", "AveragePool"), (0, 1), (1, 2, 3), ((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0))
    ):
        extra = [{}, {"count_include_pad": 1}] if op == "AveragePool" else [{}, {"dilations": [2, 1]}]
        cases += [
            node(
                op,
                rnd(1, 3, 9, 10),
                kernel_shape=[3, 2],
                strides=[stride, stride],
                pads=list(pads),
                ceil_mode=ceil,
                **e,
            )
            for e in extra
        ]
    for op, auto in itertools.product(("MaxPool", "AveragePool", "LpPool"), ("SAME_UPPER", "SAME_LOWER", "VALID")):
        cases.append(node(op, rnd(1, 2, 7, 8), kernel_shape=[3, 2], strides=[2, 1], auto_pad=auto))
    cases += [
        node("MaxPool", rnd(1, 2, 11), kernel_shape=[3], strides=[2], pads=[1, 1]),
        node("AveragePool", rnd(1, 2, 11), kernel_shape=[3], strides=[2], pads=[1, 1]),
        node("MaxPool", rnd(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], strides=[1, 2, 2], pads=[0, 1, 0, 1, 1, 1]),
        node("AveragePool", rnd(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], strides=[1, 2, 2], pads=[0, 1, 0, 1, 1, 1]),
        node("MaxPool", rnd(2, 3, 8, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], outputs=2),
        node("LpPool", rnd(1, 2, 7, 8), kernel_shape=[3, 2], p=3, pads=[1, 0, 0, 1]),
        node("LpPool", rnd(1, 2, 7, 8), kernel_shape=[3, 2], p=1),
        node("GlobalAveragePool", rnd(2, 3, 5, 7)),
        node("GlobalMaxPool", rnd(2, 3, 5, 7)),
        node("GlobalLpPool", rnd(2, 3, 5, 7), p=2),
        node("GlobalAveragePool", rnd(2, 3, 9)),
        node("GlobalMaxPool", rnd(2, 3, 3, 4, 5)),
    ]
    return cases


def _norms() -> list[NodeCase]:
    x = rnd(2, 6, 4, 5)
    return [
        node("LayerNormalization", x, rnd(5), rnd(5), fixed=(1, 2)),
        node("LayerNormalization", x, rnd(5), fixed=(1,), epsilon=1e-2),
        node("LayerNormalization", x, rnd(4, 5), rnd(4, 5), fixed=(1, 2), axis=-2),
        node("LayerNormalization", x, rnd(5), rnd(5), fixed=(1, 2), axis=2),
        node("LayerNormalization", x, rnd(6, 4, 5), rnd(6, 4, 5), axis=1),
        node("LayerNormalization", x * 1e3 + 1e5, rnd(5), rnd(5)),
        node("LayerNormalization", x + 3, rnd(4, 5), rnd(4, 5), axis=2),
        node("InstanceNormalization", x + 3, rnd(6), rnd(6)),
        node("LayerNormalization", rnd(3, 8, dtype="float16"), rnd(8, dtype="float16"), rnd(8, dtype="float16")),
        node("InstanceNormalization", x, rnd(6), rnd(6), fixed=(1, 2)),
        node("InstanceNormalization", rnd(2, 6, 9), rnd(6), rnd(6), epsilon=1e-2),
        node("BatchNormalization", x, rnd(6), rnd(6), rnd(6), np.abs(rnd(6)) + 0.1, fixed=(1, 2, 3, 4)),
        node("BatchNormalization", x, rnd(6), rnd(6), rnd(6), np.abs(rnd(6)) + 0.1, epsilon=1e-2),
        node("LpNormalization", x, axis=1, p=2),
        node("LpNormalization", x, axis=-1, p=1),
        node("LRN", x, size=3, alpha=0.1, beta=0.6, bias=1.5),
        node("Softmax", x),
        node("Softmax", x, axis=1),
        node("LogSoftmax", x, axis=2),
        node("Softmax", rnd(3, 40) * 50),
        node("Softmax", rnd(3, 4, dtype="float16")),
        node("Hardmax", x, axis=1),
    ]


def _contrib() -> list[NodeCase]:
    x = rnd(2, 3, 8)
    ms = {"domain": "com.microsoft"}
    return [
        node("SkipLayerNormalization", x, rnd(2, 3, 8), rnd(8), rnd(8), rnd(8), epsilon=1e-5, **ms),
        node("SkipLayerNormalization", x, rnd(2, 3, 8), rnd(8), **ms),
        node("FastGelu", x, **ms),
        node("FastGelu", x, rnd(8), **ms),
        node("BiasGelu", x, rnd(8), **ms),
        node("Gelu", x, **ms),
        node("QuickGelu", x, **ms),
        node("FusedMatMul", x, rnd(2, 5, 8), transB=1, alpha=0.5, **ms),
        node("FusedMatMul", rnd(2, 8, 3), rnd(8, 5), transA=1, **ms),
    ]


def _resizes() -> list[NodeCase]:
    cases = []
    x, roi = rnd(1, 2, 5, 6), np.zeros(0, np.float32)
    transforms = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
    for mode, transform, size in itertools.product(
        ("nearest", "linear", "cubic"), transforms, ((7, 9), (3, 4), (10, 12))
    ):
        sizes = np.array([1, 2, *size], np.int64)
        cases.append(
            node("Resize", x, roi, None, sizes, fixed=(1, 3), mode=mode, coordinate_transformation_mode=transform)
        )
    for how, transform in itertools.product(
        ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"), transforms[:4]
    ):
        scales = np.array([1, 1, 2, 0.7], np.float32)
        cases.append(
            node(
                "Resize",
                x,
                roi,
                scales,
                fixed=(1, 2),
                mode="nearest",
                nearest_mode=how,
                coordinate_transformation_mode=transform,
            )
        )
    for mode, size in itertools.product(("linear", "cubic"), ((3, 4), (7, 3))):
        sizes = np.array([1, 2, *size], np.int64)
        cases.append(node("Resize", x, roi, None, sizes, fixed=(1, 3), mode=mode, antialias=1))
        cases.append(
            node("Resize", x, roi, None, sizes, fixed=(1, 3), mode=mode, antialias=1, exclude_outside=1)
            if mode == "cubic"
            else node("Resize", x, roi, None, sizes, fixed=(1, 3), mode=mode)
        )
    crop = np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.3], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        cases.append(
            node(
                "Resize",
                x,
                crop,
                None,
                np.array([1, 2, 4, 7], np.int64),
                fixed=(1, 3),
                mode=mode,
                coordinate_transformation_mode="tf_crop_and_resize",
                extrapolation_value=3.5,
            )
        )
    cases += [
        node("Resize", x, roi, np.array([1, 1, 1.5, 2.5], np.float32), fixed=(1, 2), mode="linear"),
        node(
            "Resize",
            x,
            roi,
            np.array([1, 1, 2, 2], np.float32),
            fixed=(1, 2),
            mode="cubic",
            cubic_coeff_a=-0.5,
            exclude_outside=1,
        ),
        node(
            "Resize",
            x,
            None,
            None,
            np.array([8, 8], np.int64),
            fixed=(3,),
            axes=[2, 3],
            keep_aspect_ratio_policy="not_larger",
        ),
        node(
            "Resize",
            x,
            None,
            None,
            np.array([8, 8], np.int64),
            fixed=(3,),
            axes=[2, 3],
            keep_aspect_ratio_policy="not_smaller",
        ),
        node("Resize", rnd(1, 2, 7), roi, np.array([1, 1, 2.3], np.float32), fixed=(1, 2), mode="linear"),
        node("Resize", rnd(1, 2, 3, 4, 5), roi, np.array([1, 1, 2, 1.5, 2], np.float32), fixed=(1, 2), mode="linear"),
        node(
            "Resize",
            np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4),
            roi,
            np.array([1, 1, 2, 2], np.float32),
            fixed=(1, 2),
        ),
    ]
    return cases


def _samplings() -> list[NodeCase]:
    cases = []
    grid = _RNG.uniform(-1.4, 1.4, (2, 4, 5, 2)).astype(np.float32)
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        cases.append(node("GridSample", rnd(2, 3, 6, 7), grid, mode=mode, padding_mode=padding, align_corners=align))
    deep = _RNG.uniform(-1.2, 1.2, (1, 2, 3, 4, 3)).astype(np.float32)
    for mode, padding in itertools.product(("linear", "nearest"), ("zeros", "border")):
        cases.append(node("GridSample", rnd(1, 2, 3, 4, 5), deep, mode=mode, padding_mode=padding))
    boxes = np.array([[0, 0, 4, 5], [1.5, 0.5, 6, 6.5], [-1, -2, 3, 9]], np.float32)
    which = np.array([0, 1, 0], np.int64)
    for transform in ("half_pixel", "output_half_pixel"):
        cases.append(
            node(
                "RoiAlign",
                rnd(2, 3, 8, 9),
                boxes,
                which,
                output_height=3,
                output_width=2,
                sampling_ratio=2,
                spatial_scale=0.9,
                coordinate_transformation_mode=transform,
            )
        )
    for align in (0, 1):
        size = np.array([2, 1, 3, 4], np.int64)
        cases.append(node("AffineGrid", rnd(2, 2, 3), size, fixed=(1,), align_corners=align))
        cases.append(
            node("AffineGrid", rnd(1, 3, 4), np.array([1, 1, 2, 3, 4], np.int64), fixed=(1,), align_corners=align)
        )
    return cases


@pytest.mark.parametrize(
    ("cases", "opset"),
    [
        pytest.param(_convolutions(), 17, id="convolutions"),
        pytest.param(_transposed(), 17, id="transposed-convolutions"),
        pytest.param(_pools(), 18, id="pools"),
        pytest.param(_norms(), 17, id="normalisations"),
        pytest.param(_contrib(), 17, id="contributed"),
        pytest.param(_resizes(), 19, id="resizes"),
        pytest.param(_samplings(), 20, id="samplings"),
    ],
)
def test_every_combination_equals_onnxruntime(cases: list[NodeCase], opset: int) -> None:
    wrong = compare(cases, opset)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
