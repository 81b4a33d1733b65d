"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tvmstack._tvm import relax, te, tirx
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    cast,
    dtype_of,
    is_float,
    scalar,
    shape_of,
    widened,
)

__all__ = ["CONVERTERS", "extreme_of_numbers", "first_of"]

_op = relax.op
# The opset from which on `axes` is an input.
_AXES_INPUT = {"ReduceSum": 13}


def extreme_of_numbers(ctx: Context, x: Expr, axes: Sequence[int], largest: bool) -> Expr:
    """Return the largest (or smallest) element that is no NaN, with the reduced axes kept.

    TVM's own reducers keep a NaN or not by its place; with NaN replaced before they are the ones schedules know.
    """
    dtype = dtype_of(x)
    if is_float(dtype):
        least = scalar(-math.inf if largest else math.inf, dtype)
        x = ctx.emit(_op.where(ctx.emit(_op.isnan(x)), least, x))
    return ctx.emit((_op.max if largest else _op.min)(x, list(axes), True))


def first_of(ctx: Context, x: Expr, axes: Sequence[int]) -> Expr:
    """Return the first element along the axes, which are kept."""
    zeros, ones = [0] * len(axes), [1] * len(axes)
    return ctx.emit(_op.strided_slice(x, list(axes), zeros, ones, assume_inbound=True))


def _axes(ctx: Context) -> tuple[int, ...] | None:
    """Return the axes to reduce, counted from 0; None for "leave the tensor alone"."""
    rank = len(ctx.shape())
    if ctx.opset >= _AXES_INPUT.get(ctx.node.op_type, 18):
        axes = ctx.ints(1) if ctx.has(1) else []
    else:
        axes = [int(a) for a in ctx.attr("axes", ())]
    if not axes and ctx.attr("noop_with_empty_axes", 0):
        return None
    return tuple(sorted({a % rank for a in axes})) if axes else tuple(range(rank))


def _reduce(core: Callable[[Context, Expr, tuple[int, ...], bool], Expr], alone: Callable[[Expr], Expr]) -> Converter:
    """Return a converter around `core`; `alone` is what the reduction does to a single element."""

    def convert(ctx: Context) -> Expr:
        axes, keep = _axes(ctx), bool(ctx.attr("keepdims", 1))
        if axes is None or not axes:
            return widened(ctx, alone, ctx.input(0))
        return widened(ctx, lambda v: core(ctx, v, axes, keep), ctx.input(0))

    return convert


def _same(x: Expr) -> Expr:
    return x


def _sum(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    return _op.sum(x, list(axes), keep)


def _mean(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    if is_float(dtype_of(x)):
        return _op.mean(x, list(axes), keep)
    count = math.prod(shape_of(x)[a] for a in axes)
    total = ctx.emit(_op.sum(x, list(axes), keep))
    return ctx.te(
        lambda t: te.compute(t.shape, lambda *i: tirx.truncdiv(t(*i), tirx.const(count, t.dtype)), name="mean"),
        total,
        name="integer_mean",
    )


def _prod(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    return _op.prod(x, list(axes), keep)


def _extreme(largest: bool) -> Callable[[Context, Expr, tuple[int, ...], bool], Expr]:
    op = _op.max if largest else _op.min

    def core(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
        dtype = dtype_of(x)
        if dtype == "bool":
            narrow = ctx.emit(op(ctx.emit(_op.astype(x, "uint8")), list(axes), keep))
            return _op.not_equal(narrow, scalar(0, "uint8"))
        if not is_float(dtype):
            return op(x, list(axes), keep)
        # onnxruntime walks a row with "if x > best" from its first element on: a NaN counts only where it stands first.
        best, first = extreme_of_numbers(ctx, x, axes, largest), first_of(ctx, x, axes)
        y = ctx.emit(_op.where(ctx.emit(_op.isnan(first)), first, best))
        return y if keep else _op.squeeze(y, list(axes))

    return core


def _l1(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    return _op.sum(ctx.emit(_op.abs(x)), list(axes), keep)


def _sum_square(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    return _op.sum(ctx.emit(_op.multiply(x, x)), list(axes), keep)


def _l2(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    dtype = dtype_of(x)
    wide = x if is_float(dtype) else ctx.emit(cast(x, "float64"))
    return cast(ctx.emit(_op.sqrt(ctx.emit(_sum_square(ctx, wide, axes, keep)))), dtype)


def _log_sum(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    dtype = dtype_of(x)
    wide = x if is_float(dtype) else ctx.emit(cast(x, "float64"))
    return cast(ctx.emit(_op.log(ctx.emit(_op.sum(wide, list(axes), keep)))), dtype)


def _log_sum_exp(ctx: Context, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    dtype = dtype_of(x)
    wide = x if is_float(dtype) else ctx.emit(cast(x, "float64"))
    top = ctx.emit(_op.max(wide, list(axes), True))
    # An infinite maximum would give inf - inf; it is taken as zero, and the sum is then infinite by itself.
    infinite = ctx.emit(_op.equal(ctx.emit(_op.abs(top)), scalar(math.inf, dtype_of(wide))))
    top = ctx.emit(_op.where(infinite, scalar(0, dtype_of(wide)), top))
    total = ctx.emit(_op.sum(ctx.emit(_op.exp(ctx.emit(_op.subtract(wide, top)))), list(axes), True))
    result = ctx.emit(_op.add(ctx.emit(_op.log(total)), top))
    return cast(result if keep else ctx.emit(_op.squeeze(result, list(axes))), dtype)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "ReduceL1"): _reduce(_l1, _op.abs),
    ("", "ReduceL2"): _reduce(_l2, _op.abs),
    ("", "ReduceLogSum"): _reduce(_log_sum, _op.log),
    ("", "ReduceLogSumExp"): _reduce(_log_sum_exp, _same),
    ("", "ReduceMax"): _reduce(_extreme(largest=True), _same),
    ("", "ReduceMean"): _reduce(_mean, _same),
    ("", "ReduceMin"): _reduce(_extreme(largest=False), _same),
    ("", "ReduceProd"): _reduce(_prod, _same),
    ("", "ReduceSum"): _reduce(_sum, _same),
    ("", "ReduceSumSquare"): _reduce(_sum_square, lambda x: _op.multiply(x, x)),
}
