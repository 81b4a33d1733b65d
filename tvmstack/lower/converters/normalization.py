"""Normalisations and softmax. Sums are kept in float32 and the variance is taken of the centred values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tvmstack._tvm import relax
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    cast,
    const,
    dtype_of,
    scalar,
    shape_of,
    widened,
)

__all__ = ["CONVERTERS"]

_op = relax.op


def _softmax(log: bool) -> Converter:
    op = _op.nn.log_softmax if log else _op.nn.softmax

    def convert(ctx: Context) -> Expr:
        shape, x = ctx.shape(), ctx.input(0)
        if ctx.opset >= 13:
            axis = ctx.axis(-1, len(shape))
            return widened(ctx, lambda v: _along(ctx, op, v, axis), x)
        # Before opset 13 the axes from `axis` on count as one.
        axis = int(ctx.attr("axis", 1)) % len(shape)
        if axis == len(shape) - 1:
            return widened(ctx, lambda v: op(v, axis), x)
        flat = ctx.emit(_op.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))))
        return _op.reshape(ctx.emit(widened(ctx, lambda v: op(v, 1), flat)), shape)

    return convert


def _along(ctx: Context, op: relax.op, x: Expr, axis: int) -> Expr:
    """TOPI's softmax walks the last axis well and any other badly, so another axis is moved there."""
    rank = len(shape_of(x))
    if axis == rank - 1 or rank == 0:
        return op(x, axis)
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    moved = ctx.emit(op(ctx.emit(_op.permute_dims(x, perm)), rank - 1))
    return _op.permute_dims(moved, perm)


def _centred(ctx: Context, x: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """Return (x - mean) / sqrt(variance + epsilon)."""
    shape = shape_of(x)
    if dtype_of(x) == "float32" and list(axes) == list(range(len(shape) - len(axes), len(shape))):
        tail = math.prod(shape[-len(axes) :])
        return _rows_normed(ctx, x, const(np.ones(tail, np.float32)), const(np.zeros(tail, np.float32)), epsilon)
    mean = ctx.emit(_op.mean(x, list(axes), True))
    diff = ctx.emit(_op.subtract(x, mean))
    variance = ctx.emit(_op.mean(ctx.emit(_op.multiply(diff, diff)), list(axes), True))
    spread = ctx.emit(_op.sqrt(ctx.emit(_op.add(variance, scalar(epsilon, dtype_of(x))))))
    return ctx.emit(_op.divide(diff, spread))


def _rows_normed(ctx: Context, x: Expr, scale: Expr, bias: Expr, epsilon: float) -> Expr:
    """Return the layer norm of the trailing axes, as many as scale's elements fill, as one over rows.

    Only over the last axis does the lowering take the variance in a second pass; TOPI's own subtracts squares.
    """
    shape, length = shape_of(x), math.prod(shape_of(scale))
    rows = ctx.emit(_op.reshape(x, (math.prod(shape) // length, length)))
    scale, bias = (ctx.emit(_op.reshape(v, (length,))) for v in (scale, bias))
    return ctx.emit(_op.reshape(ctx.emit(_op.nn.layer_norm(rows, scale, bias, [1], epsilon)), shape))


def _layer_norm_of(ctx: Context, x: Expr, scale: Expr, bias: Expr | None, axis: int, epsilon: float) -> Expr:
    """Return the layer norm from `axis` on; scale and bias broadcast to the normalised axes, or to the whole of x."""
    shape, dtype = shape_of(x), dtype_of(x)
    wide = "float32" if dtype == "float16" else dtype
    tail = shape[axis:]
    x = ctx.emit(cast(x, wide))
    scale = ctx.emit(cast(scale, wide))
    bias = const(np.zeros(tail, wide)) if bias is None else ctx.emit(cast(bias, wide))
    if wide == "float32" and all(len(shape_of(v)) <= len(tail) for v in (scale, bias)):
        scale, bias = (ctx.emit(_op.broadcast_to(v, tail)) if shape_of(v) != tail else v for v in (scale, bias))
        if len(tail) == 1:
            return cast(ctx.emit(_op.nn.layer_norm(x, scale, bias, [axis], epsilon)), dtype)
        return cast(_rows_normed(ctx, x, scale, bias, epsilon), dtype)
    y = _centred(ctx, x, range(axis, len(shape)), epsilon)
    return cast(ctx.emit(_op.add(ctx.emit(_op.multiply(y, scale)), bias)), dtype)


def _layer_norm(ctx: Context) -> list[Expr]:
    axis = ctx.axis(-1, len(ctx.shape()))
    return [_layer_norm_of(ctx, ctx.input(0), ctx.input(1), ctx.optional(2), axis, float(ctx.attr("epsilon", 1e-5)))]


def _skip_layer_norm(simplified: bool) -> Converter:
    def convert(ctx: Context) -> list[Expr]:
        total = ctx.emit(_op.add(ctx.input(0), ctx.input(1)))
        beta, bias = (None, ctx.optional(3)) if simplified else (ctx.optional(3), ctx.optional(4))
        if bias is not None:
            total = ctx.emit(_op.add(total, bias))
        epsilon = float(ctx.attr("epsilon", 1e-12 if not simplified else 1e-6))
        axis = len(shape_of(total)) - 1
        if simplified:
            y = _rms(ctx, total, ctx.input(2), axis, epsilon)
        else:
            y = _layer_norm_of(ctx, total, ctx.input(2), beta, axis, epsilon)
        return [y, total, total, total]

    return convert


def _rms(ctx: Context, x: Expr, scale: Expr, axis: int, epsilon: float) -> Expr:
    shape, dtype = shape_of(x), dtype_of(x)
    wide = "float32" if dtype == "float16" else dtype
    v = ctx.emit(cast(x, wide))
    mean = ctx.emit(_op.mean(ctx.emit(_op.multiply(v, v)), list(range(axis, len(shape))), True))
    spread = ctx.emit(_op.sqrt(ctx.emit(_op.add(mean, scalar(epsilon, wide)))))
    y = ctx.emit(_op.divide(v, spread))
    return cast(ctx.emit(_op.multiply(y, ctx.emit(cast(scale, wide)))), dtype)


def _rms_norm(ctx: Context) -> Expr:
    axis = ctx.axis(-1, len(ctx.shape()))
    return _rms(ctx, ctx.input(0), ctx.input(1), axis, float(ctx.attr("epsilon", 1e-5)))


def _per_channel(ctx: Context, value: Expr, rank: int) -> Expr:
    channels = shape_of(value)[0]
    return ctx.emit(_op.reshape(value, (1, channels, *([1] * (rank - 2)))))


def _instance_norm(ctx: Context) -> Expr:
    rank = len(ctx.shape())
    epsilon = float(ctx.attr("epsilon", 1e-5))

    def norm(x: Expr, scale: Expr, bias: Expr) -> Expr:
        y = _centred(ctx, x, range(2, rank), epsilon)
        return _op.add(ctx.emit(_op.multiply(y, _per_channel(ctx, scale, rank))), _per_channel(ctx, bias, rank))

    return widened(ctx, norm, ctx.input(0), ctx.input(1), ctx.input(2))


def _group_norm(ctx: Context) -> Expr:
    shape, groups = ctx.shape(), int(ctx.attr("num_groups"))
    rank, epsilon = len(shape), float(ctx.attr("epsilon", 1e-5))
    per_group = shape[1] // groups

    def norm(x: Expr, scale: Expr, bias: Expr) -> Expr:
        split = ctx.emit(_op.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups)))
        y = ctx.emit(_op.reshape(_centred(ctx, split, [2], epsilon), shape))
        if ctx.opset < 21:  # one scale a group
            scale, bias = (ctx.emit(_op.repeat(v, per_group, 0)) for v in (scale, bias))
        return _op.add(ctx.emit(_op.multiply(y, _per_channel(ctx, scale, rank))), _per_channel(ctx, bias, rank))

    return widened(ctx, norm, ctx.input(0), ctx.input(1), ctx.input(2))


def _batch_norm(ctx: Context) -> Expr:
    x, rank, epsilon = ctx.input(0), len(ctx.shape()), float(ctx.attr("epsilon", 1e-5))
    known = [ctx.constant(i) for i in range(1, 5)]
    if rank < 2:
        rank = 2
    if all(k is not None for k in known):
        scale, bias, mean, variance = (np.asarray(k, np.float64) for k in known)
        factor = scale / np.sqrt(variance + epsilon)
        shape = (1, -1, *([1] * (rank - 2)))
        a = const(factor.reshape(shape), ctx.dtype())
        b = const((bias - mean * factor).reshape(shape), ctx.dtype())
        return _op.add(ctx.emit(_op.multiply(x, a)), b)

    def norm(v: Expr, *params: Expr) -> Expr:
        scale, bias, mean, variance = (_per_channel(ctx, p, rank) for p in params)
        spread = ctx.emit(_op.sqrt(ctx.emit(_op.add(variance, scalar(epsilon, dtype_of(v))))))
        y = ctx.emit(_op.divide(ctx.emit(_op.subtract(v, mean)), spread))
        return _op.add(ctx.emit(_op.multiply(y, scale)), bias)

    return widened(ctx, norm, x, *(ctx.input(i) for i in range(1, 5)))


def _lp_norm(ctx: Context) -> Expr:
    axis, p = ctx.axis(-1, len(ctx.shape())), int(ctx.attr("p", 2))

    def norm(x: Expr) -> Expr:
        if p == 1:
            size = ctx.emit(_op.sum(ctx.emit(_op.abs(x)), [axis], True))
        else:
            size = ctx.emit(_op.sqrt(ctx.emit(_op.sum(ctx.emit(_op.multiply(x, x)), [axis], True))))
        zero = ctx.emit(_op.equal(size, scalar(0, dtype_of(x))))
        return _op.divide(x, ctx.emit(_op.where(zero, scalar(1, dtype_of(x)), size)))

    return widened(ctx, norm, ctx.input(0))


def _lrn(ctx: Context) -> Expr:
    size, shape = int(ctx.attr("size")), ctx.shape()
    alpha, beta, bias = float(ctx.attr("alpha", 1e-4)), float(ctx.attr("beta", 0.75)), float(ctx.attr("bias", 1.0))
    before, after = (size - 1) // 2, size // 2

    def norm(x: Expr) -> Expr:
        dtype = dtype_of(x)
        squares = ctx.emit(_op.multiply(x, x))
        widths = [0, 0, before, after, *([0] * (2 * (len(shape) - 2)))]
        padded = ctx.emit(_op.nn.pad(squares, widths))
        total = None
        for i in range(size):
            part = ctx.emit(_op.strided_slice(padded, [1], [i], [i + shape[1]], assume_inbound=True))
            total = part if total is None else ctx.emit(_op.add(total, part))
        base = ctx.emit(_op.add(ctx.emit(_op.multiply(total, scalar(alpha / size, dtype))), scalar(bias, dtype)))
        return _op.divide(x, ctx.emit(_op.power(base, scalar(beta, dtype))))

    return widened(ctx, norm, ctx.input(0))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "BatchNormalization"): _batch_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "InstanceNormalization"): _instance_norm,
    ("", "LRN"): _lrn,
    ("", "LayerNormalization"): _layer_norm,
    ("", "LogSoftmax"): _softmax(log=True),
    ("", "LpNormalization"): _lp_norm,
    ("", "RMSNormalization"): _rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    ("", "Softmax"): _softmax(log=False),
    ("com.microsoft", "SkipLayerNormalization"): _skip_layer_norm(simplified=False),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_layer_norm(simplified=True),
}
