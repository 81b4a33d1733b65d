"""Gathers, scatters, selections and running sums. Indices may be negative; they are clamped, so none reads outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    cast,
    const,
    dtype_of,
    element_type,
    is_float,
    scalar,
    shape_of,
)
from tvmstack.lower.converters.reduction import extreme_of_numbers, first_of

__all__ = ["CONVERTERS", "scatter_rows"]

_op = relax.op


def _wrapped(ctx: Context, indices: Expr, dim: int) -> Expr:
    """Return indices counted from the front."""
    dtype = dtype_of(indices)
    below = ctx.emit(_op.less(indices, scalar(0, dtype)))
    return ctx.emit(_op.where(below, ctx.emit(_op.add(indices, scalar(dim, dtype))), indices))


def _inside(index: Any, dim: int) -> Any:
    """Return an element index counted from the front and clamped to the axis."""
    dtype = element_type(index)
    front = tirx.Select(index < tirx.const(0, dtype), index + tirx.const(dim, dtype), index)
    return tirx.max(tirx.min(front, tirx.const(dim - 1, dtype)), tirx.const(0, dtype))


def _gather(ctx: Context) -> Expr:
    shape = ctx.shape()
    axis, known = ctx.axis(0, len(shape)), ctx.constant(1)
    if known is not None:
        picked = np.where(known < 0, known + shape[axis], known).astype(np.int64)
        if picked.size and (picked.min() < 0 or picked.max() >= shape[axis]):
            raise ModelError(f"an index is outside axis {axis} of length {shape[axis]}")
        if picked.size == 1:
            at = int(picked.reshape(()))
            row = ctx.emit(_op.strided_slice(ctx.input(0), [axis], [at], [at + 1], assume_inbound=True))
            return _op.reshape(row, shape[:axis] + picked.shape + shape[axis + 1 :])
        return _op.take(ctx.input(0), const(picked), axis, mode="fast")
    return _op.take(ctx.input(0), _wrapped(ctx, ctx.input(1), shape[axis]), axis, mode="clip")


def _gather_elements(ctx: Context) -> Expr:
    shape = ctx.shape()
    axis = ctx.axis(0, len(shape))

    def compute(data: Any, indices: Any) -> Any:
        def at(*index: Any) -> Any:
            place = list(index)
            place[axis] = _inside(indices(*index), shape[axis])
            return data(*place)

        return te.compute(indices.shape, at, name="gather_elements")

    return ctx.te(compute, ctx.input(0), ctx.input(1), name="gather_elements")


def _gather_nd(ctx: Context) -> Expr:
    shape, ishape = ctx.shape(), ctx.shape(1)
    batch, depth = int(ctx.attr("batch_dims", 0)), ishape[-1]
    out = ishape[:-1] + shape[batch + depth :]
    lead = len(ishape) - 1

    def compute(data: Any, indices: Any) -> Any:
        def at(*index: Any) -> Any:
            picked = [_inside(indices(*index[:lead], k), shape[batch + k]) for k in range(depth)]
            return data(*index[:batch], *picked, *index[lead:])

        return te.compute(out, at, name="gather_nd")

    return ctx.te(compute, ctx.input(0), ctx.input(1), name="gather_nd")


_REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


def _scatter_elements(ctx: Context) -> Expr:
    shape, updates = ctx.shape(), ctx.shape(2)
    axis = ctx.axis(0, len(shape))
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]

    def places(indices: Any) -> Any:
        def at(*index: Any) -> Any:
            parts = [_inside(indices(*index), shape[a]) if a == axis else index[a] for a in range(len(shape))]
            return _flat(parts, steps)

        return te.compute(updates, at, name="places")

    rows = ctx.te(places, ctx.input(1), name="places")
    return _scattered(ctx, rows, 1)


def _scatter_nd(ctx: Context) -> Expr:
    shape, ishape = ctx.shape(), ctx.shape(1)
    depth = ishape[-1]
    steps = [math.prod(shape[i + 1 : depth]) for i in range(depth)]

    def places(indices: Any) -> Any:
        return te.compute(
            ishape[:-1] or (1,),
            lambda *i: _flat([_inside(indices(*i[: len(ishape) - 1], k), shape[k]) for k in range(depth)], steps),
            name="places",
        )

    return _scattered(ctx, ctx.te(places, ctx.input(1), name="places"), math.prod(shape[depth:]))


def _flat(parts: Sequence[Any], steps: Sequence[int]) -> Any:
    total = tirx.const(0, "int64")
    for part, step in zip(parts, steps, strict=True):
        total = total + tirx.Cast("int64", part) * step
    return total


def _scattered(ctx: Context, places: Expr, width: int) -> Expr:
    """Write the updates, rows of `width` elements, over a copy of the data at rows `places`, one after the other."""
    shape, count = ctx.shape(), math.prod(shape_of(places))
    data = ctx.emit(_op.reshape(ctx.input(0), (math.prod(shape) // width, width)))
    rows = ctx.emit(_op.reshape(places, (count,)))
    updates = ctx.emit(_op.reshape(ctx.input(2), (count, width)))
    choose = _REDUCTIONS[ctx.attr("reduction", "none")]
    done = ctx.te(lambda *tensors: scatter_rows(choose, *tensors), data, rows, updates, name="scatter")
    return _op.reshape(done, shape)


def scatter_rows(choose: Callable[[Any, Any], Any], data: Any, rows: Any, updates: Any) -> Any:
    """Return data (R, W) with data[rows[i]] = choose(data[rows[i]], updates[i]) for each i in turn."""
    height, width, count = int(data.shape[0]), int(data.shape[1]), int(rows.shape[0])

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, places, new = ins
        (out,) = outs
        with IRBuilder() as builder:
            # A loop of one turn: a builder takes one statement, and its wrapper for several warns in code generation.
            with T.serial(0, 1):
                with T.serial(0, height) as row, T.serial(0, width) as column:
                    T.buffer_store(out, source[row, column], [row, column])
                with T.serial(0, count) as i, T.serial(0, width) as column:
                    T.buffer_store(out, choose(out[places[i], column], new[i, column]), [places[i], column])
            return builder.get()

    return te.extern([(height, width)], [data, rows, updates], body, dtype=[str(data.dtype)], name="scatter")


def _one_hot(ctx: Context) -> Expr:
    depth = ctx.ints(1)[0]
    ishape = ctx.shape()
    axis = int(ctx.attr("axis", -1)) % (len(ishape) + 1)
    out = [*ishape[:axis], depth, *ishape[axis:]]

    def compute(indices: Any, values: Any) -> Any:
        def at(*index: Any) -> Any:
            wanted = indices(*index[:axis], *index[axis + 1 :]).astype("int64")
            wanted = tirx.Select(wanted < 0, wanted + depth, wanted)
            return tirx.Select(wanted == tirx.Cast("int64", index[axis]), values(1), values(0))

        return te.compute(out, at, name="one_hot")

    return ctx.te(compute, ctx.input(0), ctx.input(2), name="one_hot")


def _arg_reduce(largest: bool) -> Converter:
    def convert(ctx: Context) -> Expr:
        shape = ctx.shape()
        axis, last = ctx.axis(0, len(shape)), bool(ctx.attr("select_last_index", 0))
        place = _arg_extreme(ctx, ctx.input(0), axis, largest, last)
        keep = bool(ctx.attr("keepdims", 1))
        return place if keep else _op.reshape(place, [*shape[:axis], *shape[axis + 1 :]])

    return convert


def _arg_extreme(ctx: Context, x: Expr, axis: int, largest: bool, last: bool) -> Expr:
    """Return the first (or last) place of the extreme value as int64, the axis kept; a NaN at the front is the best."""
    dim, rank = shape_of(x)[axis], len(shape_of(x))
    best = extreme_of_numbers(ctx, x, [axis], largest)
    steps = const(np.arange(dim, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(rank)]))
    nowhere = scalar(-1 if last else dim, "int32")
    hits = ctx.emit(_op.where(ctx.emit(_op.equal(x, best)), steps, nowhere))
    place = ctx.emit((_op.max if last else _op.min)(hits, [axis], True))
    if is_float(dtype_of(x)):
        # TVM starts a maximum at the lowest finite number: a row of nothing but -inf is hit nowhere.
        lost = ctx.emit(_op.equal(place, nowhere))
        place = ctx.emit(_op.where(lost, scalar(dim - 1 if last else 0, "int32"), place))
        front = ctx.emit(_op.isnan(first_of(ctx, x, [axis])))
        place = ctx.emit(_op.where(front, scalar(0, "int32"), place))
    return ctx.emit(_op.astype(place, "int64"))


def _top_k(ctx: Context) -> list[Expr]:
    """By counting for each element how many come before it: exact, stable, and quick for rows that fit a cache."""
    x, shape = ctx.input(0), ctx.shape()
    axis = ctx.axis(-1, len(shape))
    k = int(ctx.attr("k")) if ctx.opset < 10 else ctx.ints(1)[0]
    largest = bool(ctx.attr("largest", 1))
    rank = ctx.te(lambda t: _rank_compute(t, axis, largest), x, name="rank")
    out = [*shape[:axis], k, *shape[axis + 1 :]]

    def pick(ranks: Any) -> Any:
        r = te.reduce_axis((0, shape[axis]), "r")

        def at(*index: Any) -> Any:
            hit = ranks(*index[:axis], r, *index[axis + 1 :]) == tirx.Cast("int32", index[axis])
            return te.max(tirx.Select(hit, tirx.Cast("int64", r.var), tirx.const(0, "int64")), axis=r)

        return te.compute(out, at, name="top")

    def values(data: Any, places: Any) -> Any:
        return te.compute(out, lambda *i: data(*i[:axis], places(*i), *i[axis + 1 :]), name="top_values")

    indices = ctx.te(pick, rank, name="top_indices")
    return [ctx.te(values, x, indices, name="top_values"), indices]


def _rank_compute(x: Any, axis: int, largest: bool) -> Any:
    r = te.reduce_axis((0, int(x.shape[axis])), "r")
    floating = is_float(str(x.dtype))

    def before(a: Any, b: Any) -> Any:
        first = a > b if largest else a < b
        if not floating:
            return first
        nan_first = tirx.all(tirx.isnan(a), tirx.Not(tirx.isnan(b)))
        nan_last = tirx.all(tirx.isnan(b), tirx.Not(tirx.isnan(a)))
        return tirx.any(first, nan_first if largest else nan_last)

    def at(*index: Any) -> Any:
        other, own = x(*index[:axis], r, *index[axis + 1 :]), x(*index)
        tie = tirx.all(tirx.Not(before(own, other)), r.var < index[axis])
        return te.sum(tirx.any(before(other, own), tie).astype("int32"), axis=r)

    return te.compute(x.shape, at, name="rank")


def _running(op: Any) -> Converter:
    def convert(ctx: Context) -> Expr:
        x, shape = ctx.input(0), ctx.shape()
        axis = ctx.ints(1)[0] % len(shape)
        dtype = ctx.dtype()
        if ctx.attr("reverse", 0):
            x = ctx.emit(_op.flip(x, axis))
        wide = "float32" if dtype == "float16" else dtype
        y = ctx.emit(op(ctx.emit(cast(x, wide)), axis, wide, bool(ctx.attr("exclusive", 0))))
        y = ctx.emit(cast(y, dtype))
        return _op.flip(y, axis) if ctx.attr("reverse", 0) else y

    return convert


def _hardmax(ctx: Context) -> Expr:
    shape = ctx.shape()
    axis = ctx.axis(-1 if ctx.opset >= 13 else 1, len(shape))
    rows = shape if ctx.opset >= 13 else (math.prod(shape[:axis]), math.prod(shape[axis:]))
    axis = axis if ctx.opset >= 13 else 1
    x = ctx.emit(_op.reshape(ctx.input(0), rows))
    best = _arg_extreme(ctx, x, axis, largest=True, last=False)
    steps = const(np.arange(rows[axis]).reshape([-1 if i == axis else 1 for i in range(len(rows))]))
    hot = ctx.emit(cast(ctx.emit(_op.equal(best, steps)), ctx.dtype()))
    return _op.reshape(hot, shape) if shape_of(hot) != shape else hot


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "ArgMax"): _arg_reduce(True),
    ("", "ArgMin"): _arg_reduce(False),
    ("", "CumProd"): _running(_op.cumprod),
    ("", "CumSum"): _running(_op.cumsum),
    ("", "Gather"): _gather,
    ("", "GatherElements"): _gather_elements,
    ("", "GatherND"): _gather_nd,
    ("", "Hardmax"): _hardmax,
    ("", "OneHot"): _one_hot,
    ("", "Scatter"): _scatter_elements,
    ("", "ScatterElements"): _scatter_elements,
    ("", "ScatterND"): _scatter_nd,
    ("", "TopK"): _top_k,
}
