"""Resize and Upsample.

Shapes are fixed, so where each output place reads, and with what weight, is worked out here, axis by axis; the kernel
only gathers and weighs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    const,
    dtype_of,
    scalar,
    shape_of,
    widened,
)
from tvmstack.lower.converters.shape import gather_rows

__all__ = ["CONVERTERS", "AxisRule", "axis_table", "source_positions"]

_op = relax.op
# Up to this many taps the weighted sum is written out; more (antialiasing a strong shrink) become a reduction.
_UNROLLED_TAPS = 8


@dataclass(frozen=True)
class AxisRule:
    """How one axis is resized: lengths, scale and the attributes of the node."""

    length: int
    out: int
    scale: float
    transform: str
    mode: str
    nearest: str = "round_prefer_floor"
    coefficient: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    roi: tuple[float, float] = (0.0, 1.0)


def source_positions(rule: AxisRule) -> np.ndarray:
    """Return for each output place where on the input axis it lies.

    Computed in float32 as onnxruntime does: at a tie the last bit decides between two neighbours.
    """
    x = np.arange(rule.out, dtype=np.float32)
    scale, n, m = np.float32(rule.scale), rule.length, rule.out
    if rule.transform == "asymmetric":
        return x / scale
    if rule.transform == "align_corners":
        return x * np.float32(n - 1) / np.float32(m - 1) if m > 1 else np.zeros_like(x)
    if rule.transform == "tf_half_pixel_for_nn":
        return (x + np.float32(0.5)) / scale
    if rule.transform == "tf_crop_and_resize":
        start, end = np.float32(rule.roi[0]), np.float32(rule.roi[1])
        if m > 1:
            return start * np.float32(n - 1) + x * (end - start) * np.float32(n - 1) / np.float32(m - 1)
        return np.full_like(x, 0.5 * (start + end) * (n - 1))
    if rule.transform == "pytorch_half_pixel" and m <= 1:
        return np.zeros_like(x)
    if rule.transform == "half_pixel_symmetric":
        exact = scale * np.float32(n)
        adjustment = np.float32(m) / exact
        centre = np.float32(n) / np.float32(2)
        return centre * (np.float32(1) - adjustment) + (x + np.float32(0.5)) / scale - np.float32(0.5)
    return (x + np.float32(0.5)) / scale - np.float32(0.5)


def _nearest(positions: np.ndarray, how: str) -> np.ndarray:
    if how == "floor":
        return np.floor(positions)
    if how == "ceil":
        return np.ceil(positions)
    floor = np.floor(positions)
    half = positions == floor + 0.5
    rounded = np.floor(positions + 0.5)
    return np.where(half, floor, rounded) if how == "round_prefer_floor" else np.where(half, floor + 1, rounded)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _linear(distance: np.ndarray, _: float) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def axis_table(rule: AxisRule) -> tuple[np.ndarray, np.ndarray]:
    """Return (indices, weights), each [out, taps]: output i is the sum of weights[i] times the input at indices[i]."""
    positions = source_positions(rule)
    if rule.mode == "nearest":
        index = np.clip(_nearest(positions, rule.nearest), 0, rule.length - 1).astype(np.int64)
        return index[:, None], np.ones((rule.out, 1))
    support, kernel = (1, _linear) if rule.mode == "linear" else (2, _cubic)
    shrink = min(1.0, rule.scale) if rule.antialias else 1.0
    radius = support / shrink
    x = positions.astype(np.float64)
    taps = int(np.ceil(radius)) * 2 + (1 if shrink < 1 else 0)
    first = np.floor(x) - np.ceil(radius) + 1
    index = first[:, None] + np.arange(taps)[None, :]
    weights = kernel((index - x[:, None]) * shrink, rule.coefficient)
    outside = (index < 0) | (index > rule.length - 1)
    if rule.exclude_outside:
        weights = np.where(outside, 0.0, weights)
    if rule.exclude_outside or rule.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(index, 0, rule.length - 1).astype(np.int64), weights


def _outside(rule: AxisRule) -> np.ndarray:
    positions = source_positions(rule)
    return (positions < 0) | (positions > rule.length - 1)


def _resize(ctx: Context) -> Expr:
    x, rules = ctx.input(0), _rules(ctx)
    y = _apply(ctx, x, rules)
    if any(r.transform == "tf_crop_and_resize" for r in rules):
        y = _extrapolated(ctx, y, rules)
    return y


def _apply(ctx: Context, x: Expr, rules: Sequence[AxisRule]) -> Expr:
    if rules and rules[0].mode == "nearest":
        factors = _whole_factors(rules)
        if factors is not None:
            sizes = (rules[2].out, rules[3].out)
            return _op.image.resize2d(
                x,
                sizes,
                layout="NCHW",
                method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric",
                rounding_method="floor",
            )
        return gather_rows(ctx, x, [axis_table(r)[0][:, 0] for r in rules])
    return widened(ctx, lambda v: _weighted_axes(ctx, v, rules), x)


def _whole_factors(rules: Sequence[AxisRule]) -> tuple[int, int] | None:
    """Return the factors of a picture enlarged by repeating pixels, None for anything else."""
    if len(rules) != 4 or any(r.length != r.out for r in rules[:2]):
        return None
    for rule in rules[2:]:
        if rule.out % rule.length or not np.array_equal(
            axis_table(rule)[0][:, 0], np.arange(rule.out) // (rule.out // rule.length)
        ):
            return None
    return rules[2].out // rules[2].length, rules[3].out // rules[3].length


def _weighted_axes(ctx: Context, x: Expr, rules: Sequence[AxisRule]) -> Expr:
    # The axis that shrinks most goes first, so that the others have less to do.
    order = sorted(range(len(rules)), key=lambda i: rules[i].out / max(1, rules[i].length))
    for axis in order:
        rule = rules[axis]
        index, weights = axis_table(rule)
        if (
            rule.length == rule.out
            and np.array_equal(index[:, 0], np.arange(rule.out))
            and np.allclose(weights[:, 0], 1)
        ):
            continue
        x = _weighted(ctx, x, axis, index, weights)
    return x


def _weighted(ctx: Context, x: Expr, axis: int, index: np.ndarray, weights: np.ndarray) -> Expr:
    used = np.abs(weights).max(0) > 0
    index, weights = index[:, used], weights[:, used]
    shape, dtype, taps = list(shape_of(x)), dtype_of(x), index.shape[1]
    if taps == 1 and np.all(weights == 1):
        return gather_rows(ctx, x, [index[:, 0] if i == axis else np.arange(d) for i, d in enumerate(shape)])
    shape[axis] = index.shape[0]

    def compute(data: Any, where: Any, weight: Any) -> Any:
        def term(at: tuple[Any, ...], k: Any) -> Any:
            return data(*at[:axis], where(at[axis], k), *at[axis + 1 :]) * weight(at[axis], k)

        if taps <= _UNROLLED_TAPS:
            return te.compute(shape, lambda *at: _total([term(at, k) for k in range(taps)]), name="resize")
        tap = te.reduce_axis((0, taps), "tap")
        return te.compute(shape, lambda *at: te.sum(term(at, tap), axis=tap), name="resize")

    return ctx.te(compute, x, const(index.astype(np.int32)), const(weights, dtype), name="resize")


def _total(terms: Sequence[Any]) -> Any:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def _extrapolated(ctx: Context, y: Expr, rules: Sequence[AxisRule]) -> Expr:
    mask = np.zeros((), bool)
    for rule in rules:
        outside = _outside(rule) if rule.transform == "tf_crop_and_resize" else np.zeros(rule.out, bool)
        mask = np.logical_or.outer(mask, outside)
    if not mask.any():
        return y
    return _op.where(const(mask), scalar(rules[0].extrapolation, dtype_of(y)), ctx.emit(y))


def _rules(ctx: Context) -> list[AxisRule]:
    shape = ctx.shape()
    axes = [int(a) % len(shape) for a in ctx.attr("axes", range(len(shape)))]
    scales, sizes = _targets(ctx, shape, axes)
    mode = ctx.attr("mode", "nearest")
    transform = ctx.attr("coordinate_transformation_mode", "half_pixel" if ctx.opset >= 11 else "asymmetric")
    nearest = ctx.attr("nearest_mode", "round_prefer_floor" if ctx.opset >= 11 else "floor")
    roi = _roi(ctx, len(shape), axes) if transform == "tf_crop_and_resize" else [(0.0, 1.0)] * len(shape)
    rules = []
    for axis, dim in enumerate(shape):
        same = sizes[axis] == dim and scales[axis] == 1.0 and roi[axis] == (0.0, 1.0)
        rules.append(
            AxisRule(
                dim,
                sizes[axis],
                scales[axis],
                "asymmetric" if same else transform,
                mode,
                nearest,
                float(ctx.attr("cubic_coeff_a", -0.75)),
                bool(ctx.attr("exclude_outside", 0)),
                bool(ctx.attr("antialias", 0)),
                float(ctx.attr("extrapolation_value", 0.0)),
                roi[axis],
            )
        )
    return rules


def _targets(ctx: Context, shape: Sequence[int], axes: Sequence[int]) -> tuple[list[float], list[int]]:
    scales, sizes = [1.0] * len(shape), list(shape)
    given = ctx.constant(1 if ctx.opset < 11 else 2)
    if given is not None and given.size:
        for axis, scale in zip(axes, given.reshape(-1), strict=True):
            scales[axis] = float(scale)
            sizes[axis] = int(np.floor(np.float32(shape[axis]) * np.float32(scale)))
        return scales, sizes
    if ctx.opset < 11 or not ctx.has(3):
        raise ModelError("scales or sizes are computed at run time")
    wanted = dict(zip(axes, ctx.ints(3), strict=True))
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        ratios = [wanted[a] / shape[a] for a in axes]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        for axis in axes:
            scales[axis], sizes[axis] = ratio, int(np.floor(ratio * shape[axis] + 0.5))
        return scales, sizes
    for axis, size in wanted.items():
        scales[axis], sizes[axis] = float(np.float32(size) / np.float32(shape[axis])), size
    return scales, sizes


def _roi(ctx: Context, rank: int, axes: Sequence[int]) -> list[tuple[float, float]]:
    given = ctx.constant(1)
    if given is None or given.size == 0:
        raise ModelError("roi is computed at run time")
    values = given.reshape(-1)
    roi = [(0.0, 1.0)] * rank
    for i, axis in enumerate(axes):
        roi[axis] = (float(values[i]), float(values[i + len(axes)]))
    return roi


def _upsample(ctx: Context) -> Expr:
    shape = ctx.shape()
    scales = ctx.attr("scales") if ctx.opset < 9 else ctx.constant(1)
    if scales is None:
        raise ModelError("scales are computed at run time")
    mode = {"bilinear": "linear"}.get(ctx.attr("mode", "nearest"), ctx.attr("mode", "nearest"))
    rules = [
        AxisRule(d, int(np.floor(d * np.float32(s))), float(s), "asymmetric", mode, "floor")
        for d, s in zip(shape, np.asarray(scales).reshape(-1), strict=True)
    ]
    return _apply(ctx, ctx.input(0), rules)


CONVERTERS: Mapping[tuple[str, str], Converter] = {("", "Resize"): _resize, ("", "Upsample"): _upsample}
