"""Float32 exp, tanh, erf and sigmoid as polynomials that LLVM can vectorise; library calls would run lane by lane.

Their accuracy against float64 over the whole range is tested in tests/lower/test_vector_math.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmstack._tvm import tirx

__all__ = ["erf_f32", "exp_f32", "exp_nonpositive_f32", "sigmoid_f32", "tanh_f32"]

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
# exp(r) for |r| <= ln2/2: the minimax polynomial of Cephes' expf (S. Moshier), degree 5 above 1 + r
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _f(value: float) -> Any:
    return tirx.const(float(np.float32(value)), "float32")


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    result = _f(coefficients[0])
    for c in coefficients[1:]:
        result = result * x + _f(c)
    return result


def _let(value: Any, body: Any) -> Any:
    """Bind `value` once and return body(variable)."""
    var = tirx.Var("m", "float32")
    return tirx.Let(var, value, body(var))


def exp_f32(x: Any) -> Any:
    """exp(x): 2**n times a polynomial of the rest; overflow gives inf, NaN stays NaN, results below 2**-126 are 0."""

    def of(v: Any) -> Any:
        bounded = tirx.Select(v > _f(88.72283), _f(88.72283), tirx.Select(v < _f(-87.33654), _f(-87.33654), v))
        return _let(bounded, lambda b: _exp_bounded(v, b))

    return _let(x, of)


def _exp_bounded(v: Any, b: Any) -> Any:
    def scaled(n: Any) -> Any:
        rest = b - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW)
        return _let(rest, lambda r: _assemble(v, n, _horner(r, _EXP) * r * r + r + _f(1.0)))

    # round to nearest by adding and taking away 1.5 * 2**23
    magic = _f(12582912.0)
    return _let(b * _f(_LOG2E) + magic, lambda m: _let(m - magic, scaled))


def _assemble(v: Any, n: Any, mantissa: Any) -> Any:
    # 2**128 has no float: multiply by 2**127, then by 2
    exponent = tirx.Cast("int32", tirx.Select(n > _f(127.0), _f(127.0), n)) + tirx.const(127, "int32")
    power = tirx.reinterpret("float32", exponent << tirx.const(23, "int32"))
    value = mantissa * power * tirx.Select(n > _f(127.0), _f(2.0), _f(1.0))
    high = tirx.Select(v > _f(88.72283), _f(float("inf")), value)
    low = tirx.Select(v < _f(-87.33654), _f(0.0), high)
    return tirx.Select(v != v, v, low)


def exp_nonpositive_f32(x: Any) -> Any:
    """exp(x) for x <= 0, as a softmax needs it, in two thirds of the instructions; NaN stays NaN, below -87 it is 0."""

    def of(v: Any) -> Any:
        return _let(tirx.Select(v < _f(-87.0), _f(-87.0), v), lambda b: tirx.Select(v < _f(-87.0), _f(0.0), wide(b)))

    def wide(b: Any) -> Any:
        return _let(b * _f(_LOG2E) + magic, lambda m: _let(m - magic, lambda n: scaled(b, m, n)))

    def scaled(b: Any, m: Any, n: Any) -> Any:
        # the lowest bits of m hold n; 2**n is made of them without a conversion
        bits = tirx.reinterpret("int32", m) + tirx.const(127, "int32")
        power = tirx.reinterpret("float32", bits << tirx.const(23, "int32"))
        rest = b - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW)
        return _let(rest, lambda r: (_horner(r, _EXP) * r * r + r + _f(1.0)) * power)

    magic = _f(12582912.0)
    return _let(x, of)


# tanh(x) = x + x**3 P(x**2) for |x| < 0.625 (Cephes' tanhf), else by exp
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# erf(x) = x P(x**2) / Q(x**2) on [-4, 4], by reweighted linear least squares; relative error 2.5e-8 before rounding
_ERF_P = (1.986882726e-6, 2.845569633e-4, 3.882871233e-3, 5.310026501e-2, 1.935337267e-1, 1.128379139)
_ERF_Q = (3.74207713e-5, 1.185460437e-3, 1.52062932e-2, 1.153453317e-1, 5.048473571e-1, 1.0)


def tanh_f32(x: Any) -> Any:
    """tanh(x), odd, exact at 0 and at infinity, NaN kept."""

    def of(v: Any) -> Any:
        def by_size(a: Any) -> Any:
            square = v * v
            small = v + v * square * _horner(square, _TANH)
            large = _f(1.0) - _f(2.0) / (exp_f32(a + a) + _f(1.0))
            signed = _let(large, lambda t: tirx.Select(v < _f(0.0), _f(0.0) - t, t))
            return tirx.Select(a < _f(0.625), small, tirx.Select(v != v, v, signed))

        return _let(tirx.Select(v < _f(0.0), _f(0.0) - v, v), by_size)

    return _let(x, of)


def erf_f32(x: Any) -> Any:
    """erf(x), odd, 1 beyond 4, NaN kept."""

    def clamp(v: Any, limit: float) -> Any:
        return tirx.Select(v > _f(limit), _f(limit), tirx.Select(v < _f(-limit), _f(-limit), v))

    def of(v: Any) -> Any:
        return _let(v * v, lambda t: _let(v * _horner(t, _ERF_P) / _horner(t, _ERF_Q), lambda y: clamp(y, 1.0)))

    return _let(x, lambda v: _let(clamp(v, 4.0), of))


def sigmoid_f32(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _f(1.0) / (_f(1.0) + exp_f32(_f(0.0) - x))
