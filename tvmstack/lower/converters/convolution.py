"""Convolutions. All end as `relax.nn.conv2d` in NCHW/OIHW, which the layout pass and the templates know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import Context, Converter, Expr, const, dtype_of, scalar, shape_of, widened

__all__ = ["CONVERTERS", "convolve", "explicit_pads"]

_op = relax.op


def explicit_pads(
    ctx: Context, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what to add before and after each spatial axis, `auto_pad` worked out."""
    rank, auto = len(spatial), ctx.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = [int(p) for p in ctx.attr("pads", (0,) * (2 * rank))]
        return pads[:rank], pads[rank:]
    if auto == "VALID":
        return [0] * rank, [0] * rank
    before, after = [], []
    for dim, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        total = max(0, (-(-dim // s) - 1) * s + (k - 1) * d + 1 - dim)
        small = total // 2
        before.append(small if auto == "SAME_UPPER" else total - small)
        after.append(total - small if auto == "SAME_UPPER" else small)
    return before, after


def _conv(ctx: Context) -> Expr:
    x, w = ctx.input(0), ctx.input(1)
    spatial, kernel = shape_of(x)[2:], shape_of(w)[2:]
    rank = len(spatial)
    strides = [int(s) for s in ctx.attr("strides", (1,) * rank)]
    dilations = [int(d) for d in ctx.attr("dilations", (1,) * rank)]
    before, after = explicit_pads(ctx, spatial, kernel, strides, dilations)
    bias = ctx.optional(2)
    y = widened(
        ctx, lambda a, b: convolve(ctx, a, b, strides, before + after, dilations, int(ctx.attr("group", 1))), x, w
    )
    return y if bias is None else _op.add(ctx.emit(y), _channels(ctx, bias, rank))


def _channels(ctx: Context, bias: Expr, rank: int) -> Expr:
    known = ctx.constant(2)
    shape = (1, -1, *([1] * rank))
    if known is not None:
        return const(known.reshape(shape))
    return ctx.emit(_op.reshape(bias, (1, shape_of(bias)[0], *([1] * rank))))


def convolve(
    ctx: Context,
    x: Expr,
    w: Expr,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    out_dtype: str | None = None,
) -> Expr:
    """Return the convolution over 1, 2 or 3 spatial axes; `pads` are all begins, then all ends."""
    rank = len(strides)
    if rank == 1:
        # As a picture of height 1: what serves conv2d then serves this too.
        (n, c, length), (o, i, k) = shape_of(x), shape_of(w)
        flat = ctx.emit(_op.reshape(x, (n, c, 1, length)))
        weight = _reshaped(ctx, w, (o, i, 1, k))
        y = ctx.emit(
            _op.nn.conv2d(
                flat, weight, (1, strides[0]), (0, pads[0], 0, pads[1]), (1, dilations[0]), groups, out_dtype=out_dtype
            )
        )
        return _op.reshape(y, (n, o, shape_of(y)[3]))
    if rank == 2:
        return _op.nn.conv2d(x, w, tuple(strides), tuple(pads), tuple(dilations), groups, out_dtype=out_dtype)
    if rank == 3:
        return _volume(ctx, x, w, strides, pads, dilations, groups)
    raise ModelError(f"{rank} spatial axes are too many")


def _volume(
    ctx: Context, x: Expr, w: Expr, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> Expr:
    """Return a 3-D convolution as one over pictures: the taps along the depth become channels."""
    (n, c, depth, h, width), (o, per_group, taps, kh, kw) = shape_of(x), shape_of(w)
    planes = (depth + pads[0] + pads[3] - (taps - 1) * dilations[0] - 1) // strides[0] + 1

    def windows(data: Any) -> Any:
        def at(i: Any, plane: Any, channel: Any, tap: Any, y: Any, xx: Any) -> Any:
            place = plane * strides[0] + tap * dilations[0] - pads[0]
            inside = tirx.all(place >= 0, place < depth)
            return tirx.if_then_else(inside, data(i, channel, place, y, xx), tirx.const(0, data.dtype))

        return te.compute((n, planes, c, taps, h, width), at, name="windows")

    pictures = ctx.emit(_op.reshape(ctx.te(windows, x, name="windows"), (n * planes, c * taps, h, width)))
    weight = _reshaped(ctx, w, (o, per_group * taps, kh, kw))
    edges = (pads[1], pads[2], pads[4], pads[5])
    y = ctx.emit(_op.nn.conv2d(pictures, weight, tuple(strides[1:]), edges, tuple(dilations[1:]), groups))
    split = ctx.emit(_op.reshape(y, (n, planes, o, *shape_of(y)[2:])))
    return _op.permute_dims(split, [0, 2, 1, 3, 4])


def _reshaped(ctx: Context, w: Expr, shape: Sequence[int]) -> Expr:
    if isinstance(w, relax.Var):
        return ctx.emit(_op.reshape(w, shape))
    return const(w.value.numpy().reshape(shape))


def _conv_transpose(ctx: Context) -> Expr:
    """As convolutions that compute the output's phases (its places modulo the stride), interleaved afterwards.

    No tap is ever filled up with a zero: zero times NaN or infinity would put NaN where the model has none.
    """
    weight = ctx.constant(1)
    if weight is None:
        raise ModelError("the weights are computed at run time")
    rank = len(ctx.shape()) - 2
    strides = [int(s) for s in ctx.attr("strides", (1,) * rank)]
    dilations = [int(d) for d in ctx.attr("dilations", (1,) * rank)]
    if max(strides) > 1 and max(dilations) > 1:
        raise ModelError("strides together with dilations")
    extent = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    begins, lengths = _transpose_extent(ctx, ctx.shape()[2:], extent, strides)
    groups, x = int(ctx.attr("group", 1)), ctx.input(0)
    whole = _whole_transpose(ctx, weight, strides, dilations, begins, lengths)
    if whole is not None:
        y = whole
    elif all(k % s == 0 for k, s in zip(weight.shape[2:], strides, strict=True)) or max(strides) == 1:
        y = widened(ctx, lambda v: _all_phases(ctx, v, weight, strides, dilations, groups), x)
    else:
        y = widened(ctx, lambda v: _phase_by_phase(ctx, v, weight, strides, groups), x)
    if whole is None:
        y = _interleave(ctx, ctx.emit(y), weight.shape[1] * groups, strides)
        y = _window(ctx, y, begins, lengths)
    bias = ctx.optional(2)
    return y if bias is None else _op.add(y, _channels(ctx, bias, rank))


def _whole_transpose(
    ctx: Context,
    weight: np.ndarray,
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
    lengths: Sequence[int],
) -> Expr | None:
    """Return Relax's own transposed convolution where the layout pass has a kernel for it, else None.

    That is: pictures, float32, one group, and a kernel that is a multiple of the stride, so that no tap is filled up.
    """
    kernel = weight.shape[2:]
    is_plain = len(kernel) == 2 and int(ctx.attr("group", 1)) == 1 and max(dilations) == 1 and max(strides) > 1
    if not is_plain or weight.dtype != np.float32 or any(k % s for k, s in zip(kernel, strides, strict=True)):
        return None
    full = [s * (n - 1) + k - b for n, k, s, b in zip(ctx.shape()[2:], kernel, strides, begins, strict=True)]
    extra = [max(0, length - f) for f, length in zip(full, lengths, strict=True)]
    ends = [f + e - length for f, e, length in zip(full, extra, lengths, strict=True)]
    if any(e >= s for e, s in zip(extra, strides, strict=True)) or min(begins) < 0:
        return None
    pads = (begins[0], begins[1], ends[0], ends[1])
    moved = const(weight, "float32")
    return _op.nn.conv2d_transpose(ctx.input(0), moved, tuple(strides), pads, tuple(extra), (1, 1), 1)


def _all_phases(
    ctx: Context, x: Expr, weight: np.ndarray, strides: Sequence[int], dilations: Sequence[int], groups: int
) -> Expr:
    """Return every phase as channels of one convolution; the kernel is a multiple of the stride, or the stride is 1."""
    phases, taps = _phase_kernel(weight, strides, groups)
    pads = [(t - 1) * d for t, d in zip(taps, dilations, strict=True)]
    return convolve(ctx, x, const(phases, dtype_of(x)), [1] * len(taps), pads + pads, dilations, groups)


def _phase_by_phase(ctx: Context, x: Expr, weight: np.ndarray, strides: Sequence[int], groups: int) -> Expr:
    """Return the same channels from one convolution a phase, because the phases have different numbers of taps."""
    n, _, *spatial = shape_of(x)
    rank, out, dtype = len(strides), weight.shape[1] * groups, dtype_of(x)
    most = [-(-k // s) for k, s in zip(weight.shape[2:], strides, strict=True)]
    sizes = [d + t - 1 for d, t in zip(spatial, most, strict=True)]
    parts = []
    for phase in np.ndindex(*strides):
        taps = weight[(slice(None), slice(None), *(slice(r, None, s) for r, s in zip(phase, strides, strict=True)))]
        if 0 in taps.shape:
            part = _op.full((n, out, *sizes), scalar(0, dtype), dtype)
        else:
            kernel, counts = _phase_kernel(taps, [1] * rank, groups)
            pads = [c - 1 for c in counts] + [t - 1 for t in most]
            part = convolve(ctx, x, const(kernel, dtype), [1] * rank, pads, [1] * rank, groups)
        parts.append(ctx.emit(_op.reshape(ctx.emit(part), (n, out, 1, *sizes))))
    return _op.reshape(ctx.emit(_op.concat(parts, 2)), (n, out * len(parts), *sizes))


def _transpose_extent(
    ctx: Context, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return how much is cut from the front of the full result, and the length that is kept, per axis."""
    rank = len(spatial)
    extra = [int(p) for p in ctx.attr("output_padding", (0,) * rank)]
    auto, wanted = ctx.attr("auto_pad", "NOTSET"), ctx.attr("output_shape")
    pads = [int(p) for p in ctx.attr("pads", (0,) * (2 * rank))]
    full = [s * (n - 1) + o + k for n, k, s, o in zip(spatial, kernel, strides, extra, strict=True)]
    if wanted is None and auto in ("NOTSET", "", "VALID"):
        pads = pads if auto in ("NOTSET", "") else [0] * (2 * rank)
        return pads[:rank], [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]
    lengths = (
        [int(v) for v in wanted][-rank:]
        if wanted is not None
        else [n * s for n, s in zip(spatial, strides, strict=True)]
    )
    begins = []
    for f, length in zip(full, lengths, strict=True):
        total = max(0, f - length)
        begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return begins, lengths


def _phase_kernel(weight: np.ndarray, strides: Sequence[int], groups: int) -> tuple[np.ndarray, list[int]]:
    """Turn weights (C, M/g, k…) into convolution weights (g*M/g*prod(s), C/g, t…) and return them with the taps t."""
    channels, out, *kernel = weight.shape
    rank, taps = len(kernel), [k // s for k, s in zip(kernel, strides, strict=True)]
    pairs = [v for t, s in zip(taps, strides, strict=True) for v in (t, s)]
    split = weight.reshape(groups, channels // groups, out, *pairs)
    tap_axes, phase_axes = [3 + 2 * i for i in range(rank)], [4 + 2 * i for i in range(rank)]
    moved = split.transpose(0, 2, *phase_axes, 1, *tap_axes)
    flipped = np.flip(moved, tuple(range(moved.ndim - rank, moved.ndim)))
    return np.ascontiguousarray(flipped.reshape(groups * out * math.prod(strides), channels // groups, *taps)), taps


def _interleave(ctx: Context, y: Expr, out: int, strides: Sequence[int]) -> Expr:
    if all(s == 1 for s in strides):
        return y
    n, _, *dims = shape_of(y)
    rank = len(dims)
    split = ctx.emit(_op.reshape(y, (n, out, *strides, *dims)))
    order = [0, 1, *(v for i in range(rank) for v in (2 + rank + i, 2 + i))]
    moved = ctx.emit(_op.permute_dims(split, order))
    return ctx.emit(_op.reshape(moved, (n, out, *(d * s for d, s in zip(dims, strides, strict=True)))))


def _window(ctx: Context, y: Expr, begins: Sequence[int], lengths: Sequence[int]) -> Expr:
    dims = shape_of(y)[2:]
    ends = [b + n for b, n in zip(begins, lengths, strict=True)]
    missing = [max(0, e - d) for e, d in zip(ends, dims, strict=True)]
    if any(missing):
        y = ctx.emit(_op.nn.pad(y, [0, 0, 0, 0, *(v for m in missing for v in (0, m))]))
    if any(begins) or tuple(shape_of(y)[2:]) != tuple(lengths):
        axes = list(range(2, 2 + len(begins)))
        y = ctx.emit(_op.strided_slice(y, axes, list(begins), ends, assume_inbound=True))
    return y


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
}
