"""Operators that move data without computing: reshapes, transposes, slices, pads, concatenations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import Context, Converter, Expr, const, dtype_of, scalar, shape_of

__all__ = ["CONVERTERS", "gather_rows"]

_op = relax.op


def _reshape(ctx: Context) -> Expr:
    shape = ctx.shape()
    if ctx.opset < 5:
        target = [int(d) for d in ctx.attr("shape", ())]
    elif ctx.constant(1) is not None:
        target = ctx.ints(1)
    else:
        known = ctx.out_shape()
        if known is None:
            raise ModelError("the target shape is computed at run time")
        target = list(known)
    if not ctx.attr("allowzero", 0):
        target = [shape[i] if d == 0 and i < len(shape) else d for i, d in enumerate(target)]
    if -1 in target:
        rest = math.prod(d for d in target if d != -1)
        target[target.index(-1)] = math.prod(shape) // rest if rest else 0
    return _reshaped(ctx, target)


def _reshaped(ctx: Context, shape: Sequence[int]) -> Expr:
    """Return the first input in another shape; a constant stays one, so that weights are seen as weights."""
    known = ctx.constant(0)
    return _op.reshape(ctx.input(0), shape) if known is None else const(known.reshape(tuple(shape)))


def _flatten(ctx: Context) -> Expr:
    shape = ctx.shape()
    axis = int(ctx.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(ctx, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _axes(ctx: Context, index: int) -> list[int] | None:
    if ctx.opset < 13:
        value = ctx.attr("axes")
        return None if value is None else [int(v) for v in value]
    return ctx.ints(index) if ctx.has(index) else None


def _squeeze(ctx: Context) -> Expr:
    shape = ctx.shape()
    axes = _axes(ctx, 1)
    gone = {a % len(shape) for a in axes} if axes is not None and shape else {i for i, d in enumerate(shape) if d == 1}
    return _reshaped(ctx, [d for i, d in enumerate(shape) if i not in gone])


def _unsqueeze(ctx: Context) -> Expr:
    shape = list(ctx.shape())
    axes = _axes(ctx, 1)
    if axes is None:
        raise ModelError("axes are missing")
    rank = len(shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        shape.insert(axis, 1)
    return _reshaped(ctx, shape)


def _transpose(ctx: Context) -> Expr:
    rank = len(ctx.shape())
    perm = [int(p) for p in ctx.attr("perm", tuple(reversed(range(rank))))]
    known = ctx.constant(0)
    if known is not None:
        return const(known.transpose(perm))
    return _op.permute_dims(ctx.input(0), perm) if rank > 1 else ctx.input(0)


def _concat(ctx: Context) -> Expr:
    parts = [ctx.input(i) for i in range(len(ctx.inputs))]
    axis = ctx.axis(1, len(ctx.shape()))
    full = [p for p in parts if shape_of(p)[axis] > 0] or parts[:1]
    return full[0] if len(full) == 1 else _op.concat(full, axis)


def _split(ctx: Context) -> list[Expr]:
    shape, count = ctx.shape(), len(ctx.node.outputs)
    axis = ctx.axis(0, len(shape))
    given = ctx.ints(1) if ctx.opset >= 13 and ctx.has(1) else None
    sizes = ctx.attr("split") if ctx.opset < 13 else given
    if sizes is None:
        step = -(-shape[axis] // count)
        sizes = [max(0, min(step, shape[axis] - i * step)) for i in range(count)]
    if len(sizes) == 1:
        return [ctx.input(0)]
    cuts = [int(c) for c in np.cumsum(sizes)[:-1]]
    if min(sizes) > 0:
        parts = ctx.emit(_op.split(ctx.input(0), cuts, axis))
        return [relax.TupleGetItem(parts, i) for i in range(count)]
    starts = [0, *cuts]
    return [_cut(ctx.input(0), axis, s, s + int(n)) for s, n in zip(starts, sizes, strict=True)]


def _cut(x: Expr, axis: int, start: int, stop: int) -> Expr:
    return _op.strided_slice(x, [axis], [start], [stop], assume_inbound=True)


def _slice(ctx: Context) -> Expr:
    shape = ctx.shape()
    if ctx.opset < 10:
        starts, ends = ([int(v) for v in ctx.attr(n)] for n in ("starts", "ends"))
        axes = [int(a) for a in ctx.attr("axes", range(len(starts)))]
        steps = [1] * len(starts)
    else:
        starts, ends = ctx.ints(1), ctx.ints(2)
        axes = ctx.ints(3) if ctx.has(3) else list(range(len(starts)))
        steps = ctx.ints(4) if ctx.has(4) else [1] * len(starts)
    ranges = [range(d) for d in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        ranges[axis % len(shape)] = range(shape[axis % len(shape)])[_bounds(start, end, step, shape[axis % len(shape)])]
    return _take_ranges(ctx, ctx.input(0), ranges)


def _bounds(start: int, end: int, step: int, dim: int) -> slice:
    """Return ONNX's clamped bounds as a Python slice; an end below -dim with a negative step means "past the front"."""
    if step < 0 and end < -dim:
        return slice(start, None, step)
    return slice(start, end, step)


def _take_ranges(ctx: Context, x: Expr, ranges: Sequence[range]) -> Expr:
    shape = shape_of(x)
    changed = [i for i, r in enumerate(ranges) if r != range(shape[i])]
    if not changed:
        return x
    out = [len(r) for r in ranges]
    if 0 in out:
        return const(np.zeros(out, dtype_of(x)))
    if all(ranges[i].step > 0 for i in changed):
        starts, ends = [ranges[i].start for i in changed], [ranges[i][-1] + 1 for i in changed]
        return _op.strided_slice(x, changed, starts, ends, [ranges[i].step for i in changed], assume_inbound=True)

    def element(tensor: Any) -> Any:
        return te.compute(
            out,
            lambda *index: tensor(*(i * r.step + r.start for i, r in zip(index, ranges, strict=True))),
            name="slice",
        )

    return ctx.te(element, x, name="strided_slice")


def _expand(ctx: Context) -> Expr:
    known = ctx.constant(1)
    target = ctx.out_shape() if known is None else np.broadcast_shapes(ctx.shape(), tuple(ctx.ints(1)))
    if target is None:
        raise ModelError("the target shape is computed at run time")
    return ctx.input(0) if target == ctx.shape() else _op.broadcast_to(ctx.input(0), target)


def _tile(ctx: Context) -> Expr:
    shape, repeats = ctx.shape(), ctx.ints(1)
    if all(r == 1 for r in repeats):
        return ctx.input(0)

    def compute(tensor: Any) -> Any:
        out = [d * r for d, r in zip(shape, repeats, strict=True)]
        return te.compute(
            out,
            lambda *index: tensor(
                *(i if r == 1 else tirx.floormod(i, d) for i, d, r in zip(index, shape, repeats, strict=True))
            ),
            name="tile",
        )

    return ctx.te(compute, ctx.input(0), name="tile")


def _pad(ctx: Context) -> Expr:
    shape, rank = ctx.shape(), len(ctx.shape())
    pads, axes = _pad_amounts(ctx, rank)
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis % rank], after[axis % rank] = pads[i], pads[i + len(axes)]
    x, mode = ctx.input(0), ctx.attr("mode", "constant")
    if min([*before, *after], default=0) < 0:
        ranges = [range(max(0, -b), d - max(0, -a)) for d, b, a in zip(shape, before, after, strict=True)]
        x = _take_ranges(ctx, x, ranges)
        x = x if isinstance(x, relax.Var) else ctx.emit(x)
        before, after = [max(0, b) for b in before], [max(0, a) for a in after]
    if not any(before) and not any(after):
        return x
    if mode == "constant":
        return _constant_pad(ctx, x, before, after)
    return gather_rows(ctx, x, [_mirror(d, b, a, mode) for d, b, a in zip(shape_of(x), before, after, strict=True)])


def _pad_amounts(ctx: Context, rank: int) -> tuple[list[int], list[int]]:
    if ctx.opset < 11:
        return [int(p) for p in ctx.attr("pads", ctx.attr("paddings", ()))], list(range(rank))
    return ctx.ints(1), ctx.ints(3) if ctx.has(3) else list(range(rank))


def _constant_pad(ctx: Context, x: Expr, before: Sequence[int], after: Sequence[int]) -> Expr:
    dtype = dtype_of(x)
    value: Any = ctx.attr("value", 0.0) if ctx.opset < 11 else 0
    if ctx.opset >= 11 and ctx.has(2):
        known = ctx.constant(2)
        if known is None or known.size == 0:
            value = 0 if known is not None else ctx.input(2)
        else:
            value = known.reshape(-1)[0].item()
    if not isinstance(value, (int, float, bool)):
        raise ModelError("the fill value is computed at run time")
    shape = [d + b + a for d, b, a in zip(shape_of(x), before, after, strict=True)]
    limits = list(zip(before, shape_of(x), strict=True))

    def element(tensor: Any) -> Any:
        def at(*index: Any) -> Any:
            inside = [
                c for i, (b, d), s in zip(index, limits, shape, strict=True) if s != d for c in (i >= b, i < b + d)
            ]
            own = [i - b for i, (b, _) in zip(index, limits, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), tensor(*own), tirx.const(value, dtype))

        return te.compute(shape, at, name="pad")

    return ctx.te(element, x, name="pad")


def _mirror(dim: int, before: int, after: int, mode: str) -> np.ndarray:
    """Return for each place of a padded axis the index it is copied from."""
    index = np.arange(-before, dim + after)
    if mode == "edge":
        return np.clip(index, 0, dim - 1)
    if mode == "wrap":
        return index % dim
    if dim == 1:
        return np.zeros_like(index)
    period = 2 * (dim - 1)
    index = np.abs(index) % period
    return np.minimum(index, period - index)


def gather_rows(ctx: Context, x: Expr, tables: Sequence[np.ndarray]) -> Expr:
    """Return `x` with each axis picked by a table of indices known now, in one kernel."""
    shape = shape_of(x)
    moved = [i for i, t in enumerate(tables) if not np.array_equal(t, np.arange(shape[i]))]
    if not moved:
        return x
    out = [len(t) for t in tables]
    arrays = [const(tables[i].astype(np.int32)) for i in moved]

    def compute(tensor: Any, *index_tables: Any) -> Any:
        picked = dict(zip(moved, index_tables, strict=True))
        return te.compute(
            out, lambda *index: tensor(*(picked[a](i) if a in picked else i for a, i in enumerate(index))), name="pick"
        )

    return ctx.te(compute, x, *arrays, name="pick")


def _shape(ctx: Context) -> Expr:
    shape = ctx.shape()
    return const(np.asarray(shape[slice(ctx.attr("start", 0), ctx.attr("end", len(shape)))], np.int64))


def _size(ctx: Context) -> Expr:
    return const(np.asarray(math.prod(ctx.shape()), np.int64))


def _constant_of_shape(ctx: Context) -> Expr:
    value = ctx.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    shape = ctx.ints(0)
    return _op.full(shape, scalar(array.reshape(-1)[0].item(), array.dtype.name), array.dtype.name)


def _eye_like(ctx: Context) -> Expr:
    import onnx_ir

    code = ctx.attr("dtype")
    dtype = ctx.dtype() if code is None else onnx_ir.DataType(int(code)).numpy().name
    rows, columns = ctx.shape()
    return const(np.eye(rows, columns, int(ctx.attr("k", 0)), dtype))


def _range(ctx: Context) -> Expr:
    start, limit, delta = (ctx.constant(i) for i in range(3))
    if start is None or limit is None or delta is None:
        raise ModelError("the bounds are computed at run time")
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    return const((start.item() + np.arange(count) * delta.item()).astype(start.dtype))


def _trilu(ctx: Context) -> Expr:
    rows, columns = ctx.shape()[-2:]
    k = ctx.ints(1)[0] if ctx.has(1) else 0
    k = max(-rows - 1, min(columns + 1, k))
    upper = bool(ctx.attr("upper", 1))
    mask = np.triu(np.ones((rows, columns), bool), k) if upper else np.tril(np.ones((rows, columns), bool), k)
    dtype = ctx.dtype()
    zero = relax.const(False, "bool") if dtype == "bool" else scalar(0, dtype)
    if dtype == "bool":
        return _op.logical_and(ctx.input(0), const(mask))
    return _op.where(const(mask), ctx.input(0), zero)


def _depth_to_space(ctx: Context) -> Expr:
    n, c, h, w = ctx.shape()
    b = int(ctx.attr("blocksize"))
    depth = c // (b * b)
    if ctx.attr("mode", "DCR") == "CRD":
        split, perm = (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, perm = (n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2)
    blocks = ctx.emit(_op.permute_dims(ctx.emit(_op.reshape(ctx.input(0), split)), perm))
    return _op.reshape(blocks, (n, depth, h * b, w * b))


def _space_to_depth(ctx: Context) -> Expr:
    n, c, h, w = ctx.shape()
    b = int(ctx.attr("blocksize"))
    split = ctx.emit(_op.reshape(ctx.input(0), (n, c, h // b, b, w // b, b)))
    order = (0, 1, 3, 5, 2, 4) if ctx.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return _op.reshape(ctx.emit(_op.permute_dims(split, order)), (n, c * b * b, h // b, w // b))


def _reverse_sequence(ctx: Context) -> Expr:
    x, lengths = ctx.input(0), ctx.input(1)
    time, batch = int(ctx.attr("time_axis", 0)), int(ctx.attr("batch_axis", 1))

    def compute(tensor: Any, sizes: Any) -> Any:
        def at(*index: Any) -> Any:
            place = list(index)
            size = sizes(index[batch]).astype("int32")
            step = index[time]
            place[time] = tirx.Select(step < size, size - 1 - step, step)
            return tensor(*place)

        return te.compute(tensor.shape, at, name="reverse_sequence")

    return ctx.te(compute, x, lengths, name="reverse_sequence")


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Concat"): _concat,
    ("", "ConstantOfShape"): _constant_of_shape,
    ("", "DepthToSpace"): _depth_to_space,
    ("", "Expand"): _expand,
    ("", "EyeLike"): _eye_like,
    ("", "Flatten"): _flatten,
    ("", "Pad"): _pad,
    ("", "Range"): _range,
    ("", "Reshape"): _reshape,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Shape"): _shape,
    ("", "Size"): _size,
    ("", "Slice"): _slice,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "Split"): _split,
    ("", "Squeeze"): _squeeze,
    ("", "Tile"): _tile,
    ("", "Transpose"): _transpose,
    ("", "Trilu"): _trilu,
    ("", "Unsqueeze"): _unsqueeze,
}
