"""Quantisation: scales per tensor, axis or block; integer products exact in int32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import is_constant, relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import Context, Converter, Expr, cast, const, dtype_of, scalar, shape_of
from tvmstack.lower.converters.convolution import convolve, explicit_pads

__all__ = ["CONVERTERS"]

_op = relax.op
# 256 products of two differences of bytes sum to less than 2**24, up to which float32 counts exactly.
_EXACT_TERMS = 256


def _spread(ctx: Context, index: int, shape: Sequence[int], axis: int, block: int) -> Expr | None:
    """Return scale or zero point in a shape that broadcasts with the data."""
    if not ctx.has(index):
        return None
    value, own, known = ctx.input(index), ctx.shape(index), ctx.constant(index)
    if int(np.prod(own)) == 1 and not block:
        target: tuple[int, ...] = ()
    elif block:
        if known is not None:
            full = np.repeat(known, block, axis)
            return const(full[tuple(slice(0, d) for d in shape)])
        repeated = ctx.emit(_op.repeat(value, block, axis))
        return ctx.emit(_op.strided_slice(repeated, [axis], [0], [shape[axis]], assume_inbound=True))
    else:
        target = tuple(shape[axis] if i == axis else 1 for i in range(len(shape)))
    if known is not None:
        return const(known.reshape(target))
    return ctx.emit(_op.reshape(value, target))


def _block(ctx: Context) -> tuple[int, int]:
    rank = len(ctx.shape())
    axis = int(ctx.attr("axis", 1))
    return (axis + rank if axis < 0 else axis), int(ctx.attr("block_size", 0))


def _dequantize(ctx: Context) -> Expr:
    if all(ctx.constant(i) is not None for i in range(len(ctx.inputs)) if ctx.has(i)):
        return const(_dequantized_now(ctx))
    shape, (axis, block) = ctx.shape(), _block(ctx)
    scale, zero = _spread(ctx, 1, shape, axis, block), _spread(ctx, 2, shape, axis, block)
    target = dtype_of(scale)
    # Integers of 32 bits may exceed what float32 holds: the zero point is taken away before the conversion.
    narrow = ctx.dtype() != "int32"
    x = ctx.emit(cast(ctx.input(0), "int32"))
    if zero is not None and not _all_zero(ctx.constant(2)):
        x = ctx.emit(_op.subtract(x, ctx.emit(cast(zero, "int32"))))
    if target == "float16" or not narrow:
        wide = ctx.emit(_op.multiply(ctx.emit(cast(x, "float32")), ctx.emit(cast(scale, "float32"))))
        return cast(wide, target)
    return _op.multiply(ctx.emit(cast(x, target)), scale)


def _dequantized_now(ctx: Context) -> np.ndarray:
    """Return constant weights as floats: the layout pass packs only what is a constant before it runs."""
    axis, block = _block(ctx)

    def spread(value: np.ndarray) -> np.ndarray:
        if block:
            return np.repeat(value, block, axis)[tuple(slice(0, d) for d in ctx.shape())]
        if value.size == 1:
            return value.reshape(())
        return value.reshape([-1 if i == axis else 1 for i in range(len(ctx.shape()))])

    values, scale, zero = np.asarray(ctx.constant(0)), np.asarray(ctx.constant(1)), ctx.constant(2)
    centred = values.astype(np.int64) - (0 if zero is None else spread(zero).astype(np.int64))
    return (centred.astype(np.float32) * spread(scale).astype(np.float32)).astype(scale.dtype)


def _all_zero(value: np.ndarray | None) -> bool:
    return value is not None and not np.any(value)


def _quantize(ctx: Context) -> Expr:
    shape, (axis, block) = ctx.shape(), _block(ctx)
    scale, zero = _spread(ctx, 1, shape, axis, block), _spread(ctx, 2, shape, axis, block)
    return _quantized(ctx, ctx.input(0), scale, zero, _quantized_type(ctx, 2))


def _quantized_type(ctx: Context, zero_index: int) -> str:
    if ctx.has(zero_index):
        return ctx.dtype(zero_index)
    code = int(ctx.attr("output_dtype", 0))
    if not code:
        return "uint8"
    import onnx_ir

    return str(onnx_ir.DataType(code).numpy().name)


def _limits(dtype: str) -> tuple[float, float]:
    info = np.iinfo(np.dtype(dtype))
    return float(info.min), float(info.max)


def _saturated(value: Any, low: float, high: float, dtype: str) -> Any:
    """Clamp. TVM's min and max give their second operand where one is NaN, so NaN becomes `low`.

    Every operand stands once: fusion writes an expression out at each place that names it.
    """
    return tirx.max(tirx.min(tirx.const(high, dtype), value), tirx.const(low, dtype))


def _quantized(ctx: Context, x: Expr, scale: Expr, zero: Expr | None, dtype: str) -> Expr:
    """Return saturate(round_half_even(x / scale) + zero); NaN gives the lowest value, as in onnxruntime."""
    low, high = _limits(dtype)
    args = [x, scale, *([] if zero is None else [zero])]
    wide = "float64" if dtype_of(x) == "float64" else "float32"

    def element(value: Any, factor: Any, *offset: Any) -> Any:
        scaled = tirx.nearbyint(value.astype(wide) / factor.astype(wide))
        if offset:
            scaled = scaled + offset[0].astype(wide)
        return _saturated(scaled, low, high, wide).astype("int32").astype(dtype)

    return _elementwise_te(ctx, element, args, "quantize")


def _elementwise_te(ctx: Context, func: Any, args: Sequence[Expr], name: str) -> Expr:
    out = np.broadcast_shapes(*(shape_of(a) for a in args))

    def compute(*tensors: Any) -> Any:
        def at(*index: Any) -> Any:
            values = []
            for tensor in tensors:
                dims = [int(d) for d in tensor.shape]
                own = index[len(index) - len(dims) :]
                values.append(tensor(*(0 if d == 1 else i for i, d in zip(own, dims, strict=True))))
            return func(*values)

        return te.compute(out, at, name=name)

    return ctx.te(compute, *args, name=name)


def _dynamic_quantize(ctx: Context) -> list[Expr]:
    x = ctx.input(0)
    zero = scalar(0.0, "float32")
    low = ctx.emit(_op.minimum(zero, ctx.emit(_op.min(x))))
    high = ctx.emit(_op.maximum(zero, ctx.emit(_op.max(x))))
    span = ctx.emit(_op.divide(ctx.emit(_op.subtract(high, low)), scalar(255.0, "float32")))
    flat = ctx.emit(_op.equal(span, zero))
    scale = ctx.emit(_op.where(flat, scalar(1.0, "float32"), span))

    def point(value: Any, factor: Any) -> Any:
        f = tirx.nearbyint((tirx.const(0, "float32") - value) / factor)
        bounded = tirx.max(tirx.min(f, tirx.const(255, "float32")), tirx.const(0, "float32"))
        return bounded.astype("int32").astype("uint8")

    offset = _elementwise_te(ctx, point, [low, scale], "zero_point")
    return [_quantized(ctx, x, scale, offset, "uint8"), scale, offset]


def _centred(ctx: Context, index: int, zero: int, axis_from_end: int | None) -> Expr:
    """Return integers as int32 with the zero point taken away; a zero point with an axis runs along that axis."""
    value = ctx.emit(cast(ctx.input(index), "int32"))
    known = ctx.constant(index)
    zero_known = ctx.constant(zero)
    if not ctx.has(zero) or _all_zero(zero_known):
        return const(known.astype(np.int32)) if known is not None else value
    own = ctx.shape(zero)
    if int(np.prod(own)) == 1:
        target: tuple[int, ...] = ()
    elif len(own) > 1:
        target = own
    else:
        target = (*own, *([1] * ((axis_from_end or 1) - 1)))
    if known is not None and zero_known is not None:
        return const(known.astype(np.int32) - zero_known.astype(np.int32).reshape(target))
    offset = ctx.emit(_op.reshape(ctx.emit(cast(ctx.input(zero), "int32")), target))
    return ctx.emit(_op.subtract(value, offset))


def _matmul_integer(ctx: Context) -> Expr:
    # A zero point of A is one a row, of B one a column.
    return _integer_product(ctx, _centred(ctx, 0, 2, 2), _centred(ctx, 1, 3, 1))


def _integer_product(ctx: Context, a: Expr, b: Expr) -> Expr:
    """Return the int32 product, computed where float32 is exact and the templates are fast: 256 terms at a time."""
    inner, total = shape_of(a)[-1], None
    for start in range(0, inner, _EXACT_TERMS):
        stop = min(inner, start + _EXACT_TERMS)
        left = ctx.emit(cast(_part(ctx, a, -1, start, stop), "float32"))
        right = ctx.emit(cast(_part(ctx, b, max(-2, -len(shape_of(b))), start, stop), "float32"))
        part = ctx.emit(cast(ctx.emit(_op.matmul(left, right)), "int32"))
        total = part if total is None else ctx.emit(_op.add(total, part))
    return total


def _part(ctx: Context, x: Expr, axis: int, start: int, stop: int) -> Expr:
    """Return a stretch of an axis; of a constant as a constant, in float32."""
    if is_constant(x):
        return const(np.take(x.value.numpy(), np.arange(start, stop), axis), "float32")
    if stop - start == shape_of(x)[axis]:
        return x
    return ctx.emit(_op.strided_slice(x, [axis % len(shape_of(x))], [start], [stop], assume_inbound=True))


def _qlinear_matmul(ctx: Context) -> Expr:
    total = _integer_product(ctx, _centred(ctx, 0, 2, 2), _centred(ctx, 3, 5, 1))
    a_scale = _row_scale(ctx, 1)
    factor = ctx.emit(_op.divide(ctx.emit(_op.multiply(a_scale, _flat_scale(ctx, 4))), _flat_scale(ctx, 6)))
    return _requantized(ctx, total, factor, _flat_scale(ctx, 7), ctx.dtype(7))


def _row_scale(ctx: Context, index: int) -> Expr:
    shape = ctx.shape(index)
    if len(shape) == 1 and shape[0] > 1:
        return ctx.emit(_op.reshape(ctx.input(index), (shape[0], 1)))
    return _flat_scale(ctx, index)


def _flat_scale(ctx: Context, index: int) -> Expr:
    value = ctx.input(index)
    return ctx.emit(_op.reshape(value, ())) if ctx.shape(index) == (1,) else value


def _requantized(ctx: Context, total: Expr, factor: Expr, zero: Expr, dtype: str) -> Expr:
    low, high = _limits(dtype)

    def element(value: Any, scale: Any, offset: Any) -> Any:
        scaled = tirx.nearbyint(value.astype("float32") * scale) + offset.astype("float32")
        return _saturated(scaled, low, high, "float32").astype("int32").astype(dtype)

    return _elementwise_te(ctx, element, [total, factor, zero], "requantize")


def _integer_conv(ctx: Context, x: Expr, w: Expr) -> Expr:
    """Return the int32 convolution; as the zero point is gone already, padding with zero is right."""
    spatial, kernel = shape_of(x)[2:], shape_of(w)[2:]
    rank = len(spatial)
    if rank > 2:
        raise ModelError("integer convolution over more than two axes")
    strides = [int(s) for s in ctx.attr("strides", (1,) * rank)]
    dilations = [int(d) for d in ctx.attr("dilations", (1,) * rank)]
    before, after = explicit_pads(ctx, spatial, kernel, strides, dilations)
    return ctx.emit(convolve(ctx, x, w, strides, before + after, dilations, int(ctx.attr("group", 1)), "int32"))


def _conv_integer(ctx: Context) -> Expr:
    return _integer_conv(ctx, _centred(ctx, 0, 2, None), _centred(ctx, 1, 3, len(ctx.shape(1))))


def _qlinear_conv(ctx: Context) -> Expr:
    rank = len(ctx.shape())
    total = _integer_conv(ctx, _centred(ctx, 0, 2, None), _centred(ctx, 3, 5, rank))

    def per_channel(value: Expr) -> Expr:
        size = int(np.prod(shape_of(value)))
        return ctx.emit(_op.reshape(value, () if size == 1 else (1, size, *([1] * (rank - 2)))))

    if ctx.has(8):
        total = ctx.emit(_op.add(total, per_channel(ctx.input(8))))
    scale = ctx.emit(_op.multiply(_flat_scale(ctx, 1), per_channel(ctx.input(4))))
    factor = ctx.emit(_op.divide(scale, _flat_scale(ctx, 6)))
    return _requantized(ctx, total, factor, _flat_scale(ctx, 7), ctx.dtype(7))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "ConvInteger"): _conv_integer,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "QuantizeLinear"): _quantize,
}
