"""Unary, binary and activation operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    broadcast_shape,
    cast,
    const,
    dtype_of,
    is_float,
    scalar,
    shape_of,
    widened,
)

__all__ = ["CONVERTERS", "cast_to", "gelu_erf", "gelu_tanh"]

_op = relax.op
# From here on x*x + 1 is x*x, and log(2x) is all that is left of asinh and acosh.
_HUGE = 1e6


def _unary(func: Callable[[Expr], Expr]) -> Converter:
    return lambda ctx: widened(ctx, func, ctx.input(0))


def _plain(func: Callable[[Expr], Expr]) -> Converter:
    return lambda ctx: func(ctx.input(0))


def _binary(func: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda ctx: func(ctx.input(0), ctx.input(1))


def _fold(func: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(ctx: Context) -> Expr:
        values = [ctx.input(i) for i in range(len(ctx.inputs))]
        return functools.reduce(lambda a, b: ctx.emit(func(a, b)), values)

    return convert


def _mean(ctx: Context) -> Expr:
    return _op.divide(ctx.emit(_fold(_op.add)(ctx)), scalar(len(ctx.inputs), ctx.dtype()))


def _elementwise(name: str, func: Callable[..., Any]) -> Converter:
    """Return a converter whose kernel computes `func` on broadcast elements."""

    def convert(ctx: Context) -> Expr:
        args = [ctx.input(i) for i in range(len(ctx.inputs))]
        return ctx.te(lambda *tensors: _broadcast_compute(func, tensors, name), *args, name=name)

    return convert


def _broadcast_compute(func: Callable[..., Any], tensors: tuple[Any, ...], name: str) -> Any:
    shapes = [tuple(int(d) for d in t.shape) for t in tensors]
    out = broadcast_shape(*shapes)

    def element(*index: Any) -> Any:
        values = []
        for tensor, shape in zip(tensors, shapes, strict=True):
            own = index[len(index) - len(shape) :]
            values.append(tensor(*(0 if d == 1 else i for i, d in zip(own, shape, strict=True))))
        return func(*values)

    return te.compute(out, element, name=name)


def _div(ctx: Context) -> Expr:
    if is_float(ctx.dtype()):
        return _op.divide(ctx.input(0), ctx.input(1))
    # ONNX truncates toward zero; relax.divide of integers floors.
    return _elementwise("truncated_divide", tirx.truncdiv)(ctx)


def _mod(ctx: Context) -> Expr:
    if ctx.attr("fmod", 0):
        return _elementwise("truncated_mod", tirx.truncmod)(ctx)
    return _elementwise("floor_mod", tirx.floormod)(ctx)


def _pow(ctx: Context) -> Expr:
    base, exponent = ctx.input(0), ctx.input(1)
    dtype = dtype_of(base)
    known = ctx.constant(1)
    if known is not None and known.size == 1 and is_float(dtype):
        power = float(known.reshape(-1)[0])
        simple = _small_power(ctx, base, power)
        if simple is not None:
            return _op.reshape(simple, broadcast_shape(shape_of(base), known.shape))
    if is_float(dtype):
        return widened(ctx, _op.power, base, ctx.emit(cast(exponent, dtype)))
    if (
        not is_float(dtype_of(exponent))
        and known is not None
        and known.size == 1
        and 0 <= int(known.reshape(-1)[0]) < 64
    ):
        return _integer_power(ctx, base, int(known.reshape(-1)[0]))
    wide = _op.power(ctx.emit(cast(base, "float64")), ctx.emit(cast(exponent, "float64")))
    return cast(ctx.emit(wide), dtype)


def _small_power(ctx: Context, base: Expr, power: float) -> Expr | None:
    if power == 1.0:
        return base
    if power == 2.0:
        return ctx.emit(_op.multiply(base, base))
    if power == 3.0:
        return ctx.emit(_op.multiply(ctx.emit(_op.multiply(base, base)), base))
    return None


def _integer_power(ctx: Context, base: Expr, power: int) -> Expr:
    if power == 0:
        return _op.full(shape_of(base), scalar(1, dtype_of(base)), dtype_of(base))
    result = base
    for _ in range(power - 1):
        result = ctx.emit(_op.multiply(result, base))
    return result


def _shift(ctx: Context) -> Expr:
    dtype = ctx.dtype()
    bits = int(np.dtype(dtype).itemsize) * 8
    left = ctx.attr("direction") == "LEFT"

    def shift(value: Any, amount: Any) -> Any:
        # In int64, because TVM's simplifier fails on comparisons of uint32 and uint64.
        wide = tirx.Cast("int64", amount)
        inside = tirx.all(wide >= tirx.const(0, "int64"), wide < tirx.const(bits, "int64"))
        safe = tirx.Cast(dtype, tirx.Select(inside, wide, tirx.const(0, "int64")))
        return tirx.Select(inside, value << safe if left else value >> safe, tirx.const(0, dtype))

    return _elementwise("bit_shift", shift)(ctx)


def _leaky_relu(ctx: Context) -> Expr:
    return _op.nn.leakyrelu(ctx.input(0), float(ctx.attr("alpha", 0.01)))


def _prelu(ctx: Context) -> Expr:
    x, slope = ctx.input(0), ctx.input(1)
    negative = _op.less(x, scalar(0, dtype_of(x)))
    return _op.where(ctx.emit(negative), ctx.emit(_op.multiply(x, slope)), x)


def _where_negative(ctx: Context, func: Callable[[Expr], Expr]) -> Expr:
    """Keep what is positive (or NaN) and apply `func` to the rest."""
    x = ctx.input(0)
    return widened(ctx, lambda v: _op.where(_op.less(v, scalar(0, dtype_of(v))), func(v), v), x)


def _expm1(x: Expr) -> Expr:
    return _op.subtract(_op.exp(x), scalar(1, dtype_of(x)))


def _elu(ctx: Context) -> Expr:
    alpha = float(ctx.attr("alpha", 1.0))
    return _where_negative(ctx, lambda v: _op.multiply(_expm1(v), scalar(alpha, dtype_of(v))))


def _celu(ctx: Context) -> Expr:
    alpha = float(ctx.attr("alpha", 1.0))

    def low(v: Expr) -> Expr:
        factor = scalar(alpha, dtype_of(v))
        return _op.multiply(_expm1(ctx.emit(_op.divide(v, factor))), factor)

    return _where_negative(ctx, low)


def _selu(ctx: Context) -> Expr:
    alpha = float(ctx.attr("alpha", 1.67326319217681884765625))
    gamma = float(ctx.attr("gamma", 1.05070102214813232421875))

    def selu(v: Expr) -> Expr:
        dtype = dtype_of(v)
        low = _op.multiply(_expm1(v), scalar(alpha, dtype))
        return _op.multiply(_op.where(_op.greater(v, scalar(0, dtype)), v, low), scalar(gamma, dtype))

    return widened(ctx, selu, ctx.input(0))


def _thresholded_relu(ctx: Context) -> Expr:
    x, dtype = ctx.input(0), ctx.dtype()
    over = _op.greater(x, scalar(float(ctx.attr("alpha", 1.0)), dtype))
    return _op.where(ctx.emit(over), x, scalar(0, dtype))


def _shrink(ctx: Context) -> Expr:
    x, dtype = ctx.input(0), ctx.dtype()
    lambd, bias = scalar(ctx.attr("lambd", 0.5), dtype), scalar(ctx.attr("bias", 0.0), dtype)
    low = _op.where(_op.less(x, _op.negative(lambd)), _op.add(x, bias), scalar(0, dtype))
    return _op.where(_op.greater(x, lambd), _op.subtract(x, bias), low)


def _hard_sigmoid_of(x: Expr, alpha: float, beta: float) -> Expr:
    dtype = dtype_of(x)
    return _op.clip(_op.add(_op.multiply(x, scalar(alpha, dtype)), scalar(beta, dtype)), 0.0, 1.0)


def _hard_sigmoid(ctx: Context) -> Expr:
    alpha, beta = float(ctx.attr("alpha", 0.2)), float(ctx.attr("beta", 0.5))
    return widened(ctx, lambda v: _hard_sigmoid_of(v, alpha, beta), ctx.input(0))


def _hard_swish(x: Expr) -> Expr:
    return _op.multiply(x, _hard_sigmoid_of(x, 1.0 / 6.0, 0.5))


def _softplus(x: Expr) -> Expr:
    dtype = dtype_of(x)
    small = _op.log(_op.add(_op.exp(_op.negative(_op.abs(x))), scalar(1, dtype)))
    return _op.add(_op.maximum(x, scalar(0, dtype)), small)


def _softsign(x: Expr) -> Expr:
    return _op.divide(x, _op.add(_op.abs(x), scalar(1, dtype_of(x))))


def _mish(x: Expr) -> Expr:
    return _op.multiply(x, _op.tanh(_softplus(x)))


def _swish(ctx: Context) -> Expr:
    alpha = float(ctx.attr("alpha", 1.702 if ctx.node.op_type == "QuickGelu" else 1.0))
    return widened(
        ctx, lambda v: _op.multiply(v, _op.sigmoid(_op.multiply(v, scalar(alpha, dtype_of(v))))), ctx.input(0)
    )


def gelu_erf(x: Expr) -> Expr:
    """Return the exact Gelu."""
    return _op.nn.gelu(x)


def gelu_tanh(x: Expr) -> Expr:
    """Return Gelu's approximation by tanh."""
    return _op.nn.gelu_tanh(x)


def _gelu(ctx: Context) -> Expr:
    return widened(ctx, gelu_tanh if ctx.attr("approximate", "none") == "tanh" else gelu_erf, ctx.input(0))


def _biased(func: Callable[[Expr], Expr]) -> Converter:
    def convert(ctx: Context) -> Expr:
        x = ctx.input(0)
        bias = ctx.optional(1)
        return widened(ctx, func, x if bias is None else ctx.emit(_op.add(x, bias)))

    return convert


def _clip(ctx: Context) -> Expr:
    x, dtype = ctx.input(0), ctx.dtype()
    low, high = _bound(ctx, 1, "min"), _bound(ctx, 2, "max")
    if all(b is None or isinstance(b, np.ndarray) for b in (low, high)) and is_float(dtype):
        # An absent bound is the type's largest finite value, so that infinities are cut as well (as onnxruntime does).
        limit = float(np.finfo(np.dtype(dtype)).max)
        lo = -limit if low is None else max(float(low.reshape(())), -limit)
        hi = limit if high is None else min(float(high.reshape(())), limit)
        if lo <= hi:
            return _op.clip(x, lo, hi)
    if low is not None:
        x = ctx.emit(_op.maximum(x, _as_expr(low, dtype)))
    return x if high is None else _op.minimum(x, _as_expr(high, dtype))


def _bound(ctx: Context, index: int, name: str) -> Any:
    value = ctx.attr(name) if ctx.opset < 11 else ctx.constant(index)
    if value is not None:
        return np.asarray(value, ctx.dtype()).reshape(())
    return ctx.optional(index) if ctx.opset >= 11 else None


def _as_expr(value: Any, dtype: str) -> Expr:
    if isinstance(value, np.ndarray):
        return scalar(value.item(), dtype)
    return _op.reshape(value, ()) if shape_of(value) else value


def cast_to(ctx: Context, x: Expr, dtype: str) -> Expr:
    """Return ONNX's Cast: to bool by comparing with zero, floats to integers toward zero."""
    source = dtype_of(x)
    if source == dtype:
        return x
    if dtype == "bool":
        return _op.not_equal(x, scalar(0, source))
    if source == "bool":
        return _op.astype(ctx.emit(_op.astype(x, "uint8")), dtype)
    if source in ("float32", "float64", "float16") and np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize < 4:
        return _op.astype(ctx.emit(_op.astype(x, "int32")), dtype)
    return _op.astype(x, dtype)


def _cast(ctx: Context) -> Expr:
    import onnx_ir

    to = onnx_ir.DataType(int(ctx.attr("to"))).numpy().name
    known = ctx.constant(0)
    if known is not None and is_float(ctx.dtype()) and is_float(to):
        return const(known, to)
    return cast_to(ctx, ctx.input(0), to)


def _is_inf(ctx: Context) -> Expr:
    positive, negative = ctx.attr("detect_positive", 1), ctx.attr("detect_negative", 1)
    x, dtype = ctx.input(0), ctx.dtype()
    if dtype == "float16":
        x, dtype = ctx.emit(cast(x, "float32")), "float32"
    high = _op.equal(x, scalar(math.inf, dtype))
    low = _op.equal(x, scalar(-math.inf, dtype))
    if positive and negative:
        return _op.logical_or(ctx.emit(high), ctx.emit(low))
    if positive or negative:
        return high if positive else low
    return _op.full(shape_of(x), relax.const(False, "bool"), "bool")


def _sign(ctx: Context) -> Expr:
    dtype = ctx.dtype()
    if dtype.startswith("uint"):
        return cast(ctx.emit(_op.greater(ctx.input(0), scalar(0, dtype))), dtype)

    def sign(value: Any) -> Any:
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        same = zero if not is_float(dtype) else tirx.Select(tirx.isnan(value), value, zero)
        return tirx.Select(value > zero, one, tirx.Select(value < zero, tirx.const(-1, dtype), same))

    return _elementwise("sign", sign)(ctx)


def _neg(ctx: Context) -> Expr:
    return _op.negative(ctx.input(0))


def _round(ctx: Context) -> Expr:
    # Half to even, as ONNX demands; te.round rounds half away from zero.
    return widened(
        ctx,
        lambda v: ctx.te(lambda t: te.compute(t.shape, lambda *i: te.nearbyint(t(*i)), name="round"), v, name="round"),
        ctx.input(0),
    )


def _reciprocal(x: Expr) -> Expr:
    return _op.divide(scalar(1, dtype_of(x)), x)


def _where(ctx: Context) -> Expr:
    return _op.where(ctx.input(0), ctx.input(1), ctx.input(2))


def _identity(ctx: Context) -> Expr:
    return ctx.input(0)


def _dropout(ctx: Context) -> Expr | list[Expr]:
    x = ctx.input(0)
    if not ctx.wants(1):
        return x
    return [x, const(np.ones(shape_of(x), bool))]


def _compare(func: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(ctx: Context) -> Expr:
        return func(ctx.input(0), ctx.input(1))

    return convert


def _equal(ctx: Context) -> Expr:
    a, b = ctx.input(0), ctx.input(1)
    if dtype_of(a) == "bool":
        a, b = ctx.emit(_op.astype(a, "uint8")), ctx.emit(_op.astype(b, "uint8"))
    return _op.equal(a, b)


def _asinh(x: Expr) -> Expr:
    # log(|x| + sqrt(x*x + 1)) with the sign put back: the plain form cancels for negative x, and overflows for huge x.
    dtype = dtype_of(x)
    size = _op.abs(x)
    small = _op.multiply(x, _op.subtract(scalar(1, dtype), _op.divide(_op.multiply(x, x), scalar(6, dtype))))
    root = _op.sqrt(_op.add(_op.multiply(x, x), scalar(1, dtype)))
    huge = _op.greater(size, scalar(_HUGE, dtype))
    size_log = _op.where(huge, _log_of_double(size, dtype), _op.log(_op.add(size, root)))
    return _op.where(_op.less(size, scalar(0.01, dtype)), small, _op.multiply(_op.sign(x), size_log))


def _log_of_double(x: Expr, dtype: str) -> Expr:
    return _op.add(_op.log(x), scalar(math.log(2.0), dtype))


def _atanh(x: Expr) -> Expr:
    dtype = dtype_of(x)
    one = scalar(1, dtype)
    small = _op.multiply(x, _op.add(one, _op.divide(_op.multiply(x, x), scalar(3, dtype))))
    ratio = _op.divide(_op.add(one, x), _op.subtract(one, x))
    return _op.where(_op.less(_op.abs(x), scalar(0.01, dtype)), small, _op.multiply(_op.log(ratio), scalar(0.5, dtype)))


def _acosh(x: Expr) -> Expr:
    dtype = dtype_of(x)
    root = _op.sqrt(_op.subtract(_op.multiply(x, x), scalar(1, dtype)))
    huge = _op.greater(x, scalar(_HUGE, dtype))
    return _op.where(huge, _log_of_double(x, dtype), _op.log(_op.add(x, root)))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Abs"): _plain(_op.abs),
    ("", "Acos"): _unary(_op.acos),
    ("", "Acosh"): _unary(_acosh),
    ("", "Add"): _binary(_op.add),
    ("", "And"): _binary(_op.logical_and),
    ("", "Asin"): _unary(_op.asin),
    ("", "Asinh"): _unary(_asinh),
    ("", "Atan"): _unary(_op.atan),
    ("", "Atanh"): _unary(_atanh),
    ("", "BitShift"): _shift,
    ("", "BitwiseAnd"): _binary(_op.bitwise_and),
    ("", "BitwiseNot"): _plain(_op.bitwise_not),
    ("", "BitwiseOr"): _binary(_op.bitwise_or),
    ("", "BitwiseXor"): _binary(_op.bitwise_xor),
    ("", "Cast"): _cast,
    ("", "CastLike"): lambda ctx: cast_to(ctx, ctx.input(0), ctx.dtype(1)),
    ("", "Ceil"): _unary(_op.ceil),
    ("", "Celu"): _celu,
    ("", "Clip"): _clip,
    ("", "Cos"): _unary(_op.cos),
    ("", "Cosh"): _unary(_op.cosh),
    ("", "Div"): _div,
    ("", "Dropout"): _dropout,
    ("", "Elu"): _elu,
    ("", "Equal"): _equal,
    ("", "Erf"): _unary(_op.erf),
    ("", "Exp"): _unary(_op.exp),
    ("", "Floor"): _unary(_op.floor),
    ("", "Gelu"): _gelu,
    ("", "Greater"): _compare(_op.greater),
    ("", "GreaterOrEqual"): _compare(_op.greater_equal),
    ("", "HardSigmoid"): _hard_sigmoid,
    ("", "HardSwish"): _unary(_hard_swish),
    ("", "Identity"): _identity,
    ("", "IsInf"): _is_inf,
    ("", "IsNaN"): _plain(_op.isnan),
    ("", "LeakyRelu"): _leaky_relu,
    ("", "Less"): _compare(_op.less),
    ("", "LessOrEqual"): _compare(_op.less_equal),
    ("", "Log"): _unary(_op.log),
    ("", "Max"): _fold(_op.maximum),
    ("", "Mean"): _mean,
    ("", "Min"): _fold(_op.minimum),
    ("", "Mish"): _unary(_mish),
    ("", "Mod"): _mod,
    ("", "Mul"): _binary(_op.multiply),
    ("", "Neg"): _neg,
    ("", "Not"): _plain(_op.logical_not),
    ("", "Or"): _binary(_op.logical_or),
    ("", "PRelu"): _prelu,
    ("", "Pow"): _pow,
    ("", "Reciprocal"): _plain(_reciprocal),
    ("", "Relu"): _plain(_op.nn.relu),
    ("", "Round"): _round,
    ("", "Selu"): _selu,
    ("", "Shrink"): _shrink,
    ("", "Sigmoid"): _unary(_op.sigmoid),
    ("", "Sign"): _sign,
    ("", "Sin"): _unary(_op.sin),
    ("", "Sinh"): _unary(_op.sinh),
    ("", "Softplus"): _unary(_softplus),
    ("", "Softsign"): _unary(_softsign),
    ("", "Sqrt"): _unary(_op.sqrt),
    ("", "Sub"): _binary(_op.subtract),
    ("", "Sum"): _fold(_op.add),
    ("", "Swish"): _swish,
    ("", "Tan"): _unary(_op.tan),
    ("", "Tanh"): _unary(_op.tanh),
    ("", "ThresholdedRelu"): _thresholded_relu,
    ("", "Where"): _where,
    ("", "Xor"): _binary(_op.logical_xor),
    ("com.microsoft", "BiasGelu"): _biased(gelu_erf),
    ("com.microsoft", "FastGelu"): _biased(gelu_tanh),
    ("com.microsoft", "Gelu"): _unary(gelu_erf),
    ("com.microsoft", "QuickGelu"): _swish,
}
