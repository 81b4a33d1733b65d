"""Pools. Plain ones become Relax pools; the corner cases a kernel whose windows and divisors are worked out here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    const,
    dtype_of,
    is_float,
    scalar,
    shape_of,
    widened,
)
from tvmstack.lower.converters.convolution import explicit_pads
from tvmstack.lower.converters.indexing import scatter_rows

__all__ = ["CONVERTERS"]

_op = relax.op


@dataclass(frozen=True)
class _Window:
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]
    out: list[int]
    spatial: list[int]

    @property
    def overhang(self) -> list[int]:
        """How far the last window reaches past the padded axis (ceil_mode); negative where it stops short of it."""
        return [
            (o - 1) * s + (k - 1) * d + 1 - (n + b + a)
            for o, s, k, d, n, b, a in zip(
                self.out, self.strides, self.kernel, self.dilations, self.spatial, self.before, self.after, strict=True
            )
        ]

    def counts(self, include_pad: bool) -> np.ndarray:
        """Return per output place how many cells of its window count; padding counts where asked, overhang never."""
        total = np.ones((), np.int64)
        for o, s, k, d, n, b, a in zip(
            self.out, self.strides, self.kernel, self.dilations, self.spatial, self.before, self.after, strict=True
        ):
            cells = np.arange(o)[:, None] * s - b + np.arange(k)[None, :] * d
            low, high = (-b, n + a) if include_pad else (0, n)
            total = np.multiply.outer(total, ((cells >= low) & (cells < high)).sum(1))
        return np.maximum(total, 1)


def _window(ctx: Context) -> _Window:
    spatial = list(ctx.shape()[2:])
    rank = len(spatial)
    kernel = [int(k) for k in ctx.attr("kernel_shape")]
    strides = [int(s) for s in ctx.attr("strides", (1,) * rank)]
    dilations = [int(d) for d in ctx.attr("dilations", (1,) * rank)]
    before, after = explicit_pads(ctx, spatial, kernel, strides, dilations)
    out = []
    for n, k, s, d, b, a in zip(spatial, kernel, strides, dilations, before, after, strict=True):
        room = n + b + a - ((k - 1) * d + 1)
        size = (-(-room // s) if ctx.attr("ceil_mode", 0) else room // s) + 1
        # A window that would start in the padding after the data is not there.
        if ctx.attr("ceil_mode", 0) and (size - 1) * s >= n + b:
            size -= 1
        out.append(size)
    return _Window(kernel, strides, dilations, before, after, out, spatial)


def _as_picture(ctx: Context, x: Expr, w: _Window, pool: Callable[..., Expr], **options: Any) -> Expr:
    """Apply a 2-D or 3-D Relax pool with the windows' own padding, 1-D data as a picture of height 1."""
    after = [a + max(0, o) for a, o in zip(w.after, w.overhang, strict=True)]
    if len(w.kernel) != 1:
        return pool(x, tuple(w.kernel), tuple(w.strides), (*w.before, *after), tuple(w.dilations), **options)
    n, c, length = shape_of(x)
    flat = ctx.emit(_op.reshape(x, (n, c, 1, length)))
    y = ctx.emit(
        pool(flat, (1, w.kernel[0]), (1, w.strides[0]), (0, w.before[0], 0, after[0]), (1, w.dilations[0]), **options)
    )
    return _op.reshape(y, (n, c, shape_of(y)[3]))


def _max_pool(ctx: Context) -> Expr | list[Expr]:
    x, w = ctx.input(0), _window(ctx)
    pool = _op.nn.max_pool3d if len(w.kernel) == 3 else _op.nn.max_pool2d
    y = ctx.emit(_as_picture(ctx, x, w, pool))
    return [y, _max_places(ctx, x, y, w)] if ctx.wants(1) else y


def _max_places(ctx: Context, x: Expr, y: Expr, w: _Window) -> Expr:
    """Return the flat index in the whole tensor of the first cell that holds each window's maximum."""
    shape = shape_of(x)
    steps = [math.prod(shape[3 + axis :]) for axis in range(len(w.kernel))]
    area, big = math.prod(shape[2:]), math.prod(shape)

    def compute(data: Any, best: Any) -> Any:
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(w.kernel)]

        def at(n: Any, c: Any, *index: Any) -> Any:
            cells = [
                i * s - b + k.var * d
                for i, s, b, k, d in zip(index, w.strides, w.before, taps, w.dilations, strict=True)
            ]
            inside = tirx.all(*(t for i, cell in enumerate(cells) for t in (cell >= 0, cell < shape[2 + i])))
            here = tirx.if_then_else(inside, data(n, c, *cells) == best(n, c, *index), tirx.const(False, "bool"))
            flat = (n * shape[1] + c) * area + sum(cell * s for cell, s in zip(cells, steps, strict=True))
            return te.min(tirx.Select(here, flat.astype("int64"), tirx.const(big, "int64")), axis=taps)

        return te.compute(best.shape, at, name="places")

    return ctx.te(compute, x, y, name="max_pool_places")


def _average_pool(ctx: Context) -> Expr:
    x, w = ctx.input(0), _window(ctx)
    include = bool(ctx.attr("count_include_pad", 0))
    if not any(o > 0 for o in w.overhang):
        pool = _op.nn.avg_pool3d if len(w.kernel) == 3 else _op.nn.avg_pool2d
        return widened(ctx, lambda v: _as_picture(ctx, v, w, pool, count_include_pad=include), x)
    divisors = const(w.counts(include).astype(np.float32))
    return widened(ctx, lambda v: _op.divide(_summed(ctx, v, w, lambda c: c), divisors), x)


def _summed(ctx: Context, x: Expr, w: _Window, each: Callable[[Any], Any]) -> Expr:
    shape, dtype = shape_of(x), dtype_of(x)

    def compute(data: Any) -> Any:
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(w.kernel)]

        def at(n: Any, c: Any, *index: Any) -> Any:
            cells = [
                i * s - b + k.var * d
                for i, s, b, k, d in zip(index, w.strides, w.before, taps, w.dilations, strict=True)
            ]
            inside = tirx.all(*(t for i, cell in enumerate(cells) for t in (cell >= 0, cell < shape[2 + i])))
            return te.sum(tirx.if_then_else(inside, each(data(n, c, *cells)), tirx.const(0, dtype)), axis=taps)

        return te.compute((*shape[:2], *w.out), at, name="sum_pool")

    return ctx.te(compute, x, name="sum_pool")


def _lp_pool(ctx: Context) -> Expr:
    p, w = int(ctx.attr("p", 2)), _window(ctx)

    def pooled(v: Expr) -> Expr:
        dtype = dtype_of(v)
        total = _summed(ctx, v, w, lambda c: _power(tirx.abs(c), p))
        return total if p == 1 else _op.sqrt(total) if p == 2 else _op.power(total, scalar(1.0 / p, dtype))

    return widened(ctx, pooled, ctx.input(0))


def _power(value: Any, p: int) -> Any:
    result = value
    for _ in range(p - 1):
        result = result * value
    return result


def _global(func: Callable[[Context, Expr, list[int]], Expr]) -> Converter:
    def convert(ctx: Context) -> Expr:
        axes = list(range(2, len(ctx.shape())))
        return widened(ctx, lambda v: func(ctx, v, axes), ctx.input(0))

    return convert


def _global_lp(ctx: Context, x: Expr, axes: list[int]) -> Expr:
    p, dtype = int(ctx.attr("p", 2)), dtype_of(x)
    size = ctx.emit(_op.abs(x))
    powered = size
    for _ in range(p - 1):
        powered = ctx.emit(_op.multiply(powered, size))
    total = ctx.emit(_op.sum(powered, axes, True))
    return total if p == 1 else _op.sqrt(total) if p == 2 else _op.power(total, scalar(1.0 / p, dtype))


def _max_unpool(ctx: Context) -> Expr:
    out = ctx.out_shape()
    if out is None:
        raise ModelError("the output shape is computed at run time")
    if not is_float(ctx.dtype()):
        raise ModelError("only floating-point data can be unpooled")
    size = math.prod(out)
    zeros = ctx.emit(_op.full((size, 1), scalar(0, ctx.dtype()), ctx.dtype()))
    count = math.prod(ctx.shape())
    updates = ctx.emit(_op.reshape(ctx.input(0), (count, 1)))
    rows = ctx.emit(_op.reshape(ctx.input(1), (count,)))
    done = ctx.te(lambda *tensors: scatter_rows(lambda _, new: new, *tensors), zeros, rows, updates, name="unpool")
    return _op.reshape(done, out)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global(lambda ctx, x, axes: _op.mean(x, axes, True)),
    ("", "GlobalLpPool"): _global(_global_lp),
    ("", "GlobalMaxPool"): _global(lambda ctx, x, axes: _op.max(x, axes, True)),
    ("", "LpPool"): _lp_pool,
    ("", "MaxPool"): _max_pool,
    ("", "MaxUnpool"): _max_unpool,
}
