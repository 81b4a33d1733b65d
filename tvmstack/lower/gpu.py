"""Tensor expressions and legalisation for GPUs: plain layouts, every heavy operator one matrix product.

A convolution is an implicit GEMM: the patches are gathered while tiles go to shared memory. All products have one
form, which `schedules/cuda/gemm.py` serves:

    gemm[b, i, j] = sum over k of gemm_left[b, k, i] * gemm_right[b, k, j]

The two operand stages say by the end of their names which index runs along memory: that is how threads read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import is_constant, relax, te, tirx
from tvmstack.lower.converters._legalize import NAN_SAFE
from tvmstack.lower.legalize import LEGALIZE as CPU_LEGALIZE
from tvmstack.lower.legalize import stock

__all__ = ["GPU_LEGALIZE"]

# Up to this many rows a product with constant weights is bound by reading them: one group of threads an output.
_FEW_ROWS = 4
_SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}


def _shape(x: Any) -> list[int]:
    return [int(d) for d in x.shape]


def _product(
    sizes: tuple[int, int, int, int],
    left: Callable[[Any, Any, Any], Any],
    right: Callable[[Any, Any, Any], Any],
    along: tuple[str, str],
    dtype: str,
) -> Any:
    """Return gemm[b, i, j] of two operands given as functions (b, k, i) and (b, k, j).

    Args:
        sizes: extents of b, i, j and k.
        left: the value of the left operand at (b, k, i).
        right: the value of the right operand at (b, k, j).
        along: for each operand the index that runs along memory: "k", or "i" and "j".
        dtype: of the sum; operands are converted to it while they are staged.
    """
    batch, rows, columns, steps = sizes
    a = te.compute((batch, steps, rows), lambda b, k, i: left(b, k, i).astype(dtype), name=f"gemm_left_{along[0]}")
    c = te.compute((batch, steps, columns), lambda b, k, j: right(b, k, j).astype(dtype), name=f"gemm_right_{along[1]}")
    k = te.reduce_axis((0, steps), "k")
    return te.compute((batch, rows, columns), lambda b, i, j: te.sum(a[b, k, i] * c[b, k, j], axis=k), name="gemm")


def conv2d(
    x: Any,
    weight: Any,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Any:
    """Convolution as an implicit matrix product.

    Args:
        x: (N, C, H, W).
        weight: (groups, C/groups*KH*KW, O/groups).
        kernel: KH and KW.
        strides: along H and W.
        pads: top, left, bottom, right.
        dilations: along H and W.
        groups: number of groups.

    Returns:
        (N, O, OH, OW)
    """
    n, c, h, w = _shape(x)
    _, steps, per_group = _shape(weight)
    (kh, kw), (sh, sw), (dh, dw) = kernel, strides, dilations
    top, left_pad, bottom, right_pad = pads
    oh = (h + top + bottom - dh * (kh - 1) - 1) // sh + 1
    ow = (w + left_pad + right_pad - dw * (kw - 1) - 1) // sw + 1
    is_pointwise = kh == kw == sh == sw == 1 and not any(pads)

    def patch(b: Any, k: Any, j: Any) -> Any:
        image, channel = b // groups, b % groups * (c // groups) + k // (kh * kw)
        if is_pointwise:
            return x[image, channel, j // w, j % w]
        y = j // ow * sh + k // kw % kh * dh - top
        xx = j % ow * sw + k % kw * dw - left_pad
        if not any(pads):
            return x[image, channel, y, xx]
        inside = tirx.all(y >= 0, y < h, xx >= 0, xx < w)
        return tirx.if_then_else(inside, x[image, channel, y, xx], tirx.const(0, x.dtype))

    gemm = _product(
        (n * groups, per_group, oh * ow, steps),
        lambda b, k, i: weight[b % groups, k, i],
        patch,
        ("i", "j"),
        _SUMS.get(str(x.dtype), str(x.dtype)),
    )
    return te.compute(
        (n, groups * per_group, oh, ow),
        lambda b, o, y, xx: gemm[b * groups + o // per_group, o % per_group, y * ow + xx].astype(x.dtype),
        name="product",
    )


def matmul(x: Any, y: Any) -> Any:
    """Matrix product as numpy has it, for operands of rank 2 or more; leading dims broadcast.

    Leading dims of `x` alone count as rows.
    """
    a, b = _shape(x), _shape(y)
    rows, steps, columns = a[-2], a[-1], b[-1]
    lead = list(np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])))
    joined = math.prod(b[:-2]) == 1
    batch, rows = (1, math.prod(lead) * rows) if joined else (math.prod(lead), rows)

    def index(position: Any, dims: Sequence[int]) -> list[Any]:
        """Unravel a position in `lead` and leave out what a shape broadcasts."""
        found: list[Any] = []
        for axis in reversed(range(len(lead))):
            size = lead[axis]
            own = axis - (len(lead) - len(dims))
            if own >= 0:
                found.append(position % size if dims[own] != 1 else 0)
            position //= size
        return found[::-1]

    def left(p: Any, k: Any, i: Any) -> Any:
        at, row = (i // a[-2], i % a[-2]) if joined else (p, i)
        return x[(*index(at, a[:-2]), row, k)]

    def right(p: Any, k: Any, j: Any) -> Any:
        return y[(*index(0 if joined else p, b[:-2]), k, j)]

    dtype = str(x.dtype)
    gemm = _product((batch, rows, columns, steps), left, right, ("k", "j"), _SUMS.get(dtype, dtype))

    def item(*at: Any) -> Any:
        place: Any = 0
        for value, size in zip(at[:-2], lead, strict=True):
            place = place * size + value
        where = (0, place * a[-2] + at[-2], at[-1]) if joined else (place, at[-2], at[-1])
        return gemm[where].astype(x.dtype)

    return te.compute((*lead, a[-2], columns), item, name="product")


def few_rows(x: Any, weight: Any) -> Any:
    """(..., K) times (N, K): few rows, so each output is a sum that a group of threads shares."""
    dims, (columns, steps) = _shape(x), _shape(weight)
    dtype = _SUMS.get(str(x.dtype), str(x.dtype))
    k = te.reduce_axis((0, steps), "k")

    def total(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)].astype(dtype) * weight[at[-1], k].astype(dtype), axis=k)

    made = te.compute((*dims[:-1], columns), total, name="gemv")
    if dtype == str(x.dtype):
        return made
    return te.compute((*dims[:-1], columns), lambda *at: made(*at).astype(x.dtype), name="product")


def _static(expr: Any) -> tuple[int, ...] | None:
    dims = getattr(getattr(expr.ty, "shape", None), "values", None)
    if dims is None or not all(isinstance(d, tirx.IntImm) for d in dims):
        return None
    return tuple(int(d) for d in dims)


def _legalize_matmul(bb: Any, call: Any) -> Any:
    left, right = call.args
    a, b = _static(left), _static(right)
    same = str(left.ty.dtype) == str(right.ty.dtype) == str(call.ty.dtype)
    if a is None or b is None or min(len(a), len(b)) < 2 or 0 in (*a, *b) or not same:
        return stock("relax.matmul", bb, call)
    if is_constant(right) and len(b) == 2 and math.prod(a[:-1]) <= _FEW_ROWS:
        weight = relax.const(np.ascontiguousarray(right.value.numpy().T))
        return bb.call_te(few_rows, left, weight, primfunc_name_hint="gemv")
    return bb.call_te(matmul, left, right, primfunc_name_hint="matmul")


def _legalize_conv2d(bb: Any, call: Any) -> Any:
    attrs, shape, (x, weight) = call.attrs, _static(call.args[0]), call.args
    taps = _static(weight)
    same = str(x.ty.dtype) == str(weight.ty.dtype) == str(call.ty.dtype)
    if shape is None or taps is None or not is_constant(weight) or not same or str(attrs.data_layout) != "NCHW":
        return stock("relax.nn.conv2d", bb, call)
    if int(attrs.groups) == shape[1]:
        return stock("relax.nn.conv2d", bb, call)
    made = _convolve(x, weight.value.numpy(), attrs, lambda v: [int(i) for i in v])
    return bb.call_te(conv2d, *made[0], primfunc_name_hint="conv2d", **made[1])


def _convolve(
    x: Any, weight: np.ndarray, attrs: Any, ints: Callable[[Any], list[int]]
) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Return the operands, weights packed, and the settings of `conv2d`."""
    groups, padding = int(attrs.groups), ints(attrs.padding)
    out, inner, *kernel = weight.shape
    packed = weight.reshape(groups, out // groups, inner * math.prod(kernel)).transpose(0, 2, 1)
    pads = padding if len(padding) == 4 else [*padding, *padding][:4]
    settings = {
        "kernel": list(kernel),
        "strides": ints(attrs.strides),
        "pads": pads,
        "dilations": ints(attrs.dilation),
        "groups": groups,
    }
    return (x, relax.const(np.ascontiguousarray(packed))), settings


GPU_LEGALIZE: dict[str, Callable[[Any, Any], Any]] = {
    **NAN_SAFE,
    "relax.power": CPU_LEGALIZE["relax.power"],
    "relax.concat": CPU_LEGALIZE["relax.concat"],
    "relax.matmul": _legalize_matmul,
    "relax.nn.conv2d": _legalize_conv2d,
}
