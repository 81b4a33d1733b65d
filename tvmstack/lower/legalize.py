"""Our lowering of the operators whose stock TIR calls a scalar library function in the inner loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmstack._tvm import is_constant, te, tirx
from tvmstack.lower import kernels
from tvmstack.lower.converters._legalize import NAN_SAFE
from tvmstack.lower.vector_math import erf_f32, exp_f32, sigmoid_f32, tanh_f32

__all__ = ["LEGALIZE", "stock"]

_SQRT_HALF, _SQRT_2_OVER_PI = 0.7071067811865476, 0.7978845608028654


def _const(value: float) -> Any:
    return tirx.const(value, "float32")


def _bound(x: Any, body: Callable[[Any], Any]) -> Any:
    var = tirx.Var("v", "float32")
    return tirx.Let(var, x, body(var))


def _silu(x: Any) -> Any:
    return _bound(x, lambda v: v * sigmoid_f32(v))


def _gelu(x: Any) -> Any:
    return _bound(x, lambda v: _const(0.5) * v * (_const(1.0) + erf_f32(v * _const(_SQRT_HALF))))


def _gelu_tanh(x: Any) -> Any:
    def body(v: Any) -> Any:
        inner = _const(_SQRT_2_OVER_PI) * (v + _const(0.044715) * v * v * v)
        return _const(0.5) * v * (_const(1.0) + tanh_f32(inner))

    return _bound(x, body)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "relax.exp": exp_f32,
    "relax.tanh": tanh_f32,
    "relax.erf": erf_f32,
    "relax.sigmoid": sigmoid_f32,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
}


def _elementwise(name: str, expand: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def legalize(bb: Any, call: Any) -> Any:
        if str(call.ty.dtype) != "float32":
            return stock(name, bb, call)

        def compute(x: Any) -> Any:
            return te.compute(x.shape, lambda *i: expand(x(*i)), name=name.rsplit(".", 1)[-1])

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name.rsplit(".", 1)[-1])

    return legalize


def stock(name: str, bb: Any, call: Any) -> Any:
    """Lower as TVM does."""
    from tvmstack._tvm import tvm

    return tvm.ir.Op.get(name).get_attr("FLegalize")(bb, call)


def _power(bb: Any, call: Any) -> Any:
    """x**2 and x**3 by multiplication; anything else as TVM does."""
    base, exponent = call.args
    factor = exponent.value.numpy() if is_constant(exponent) else None
    if (
        factor is None
        or factor.size != 1
        or float(factor.reshape(())) not in (2.0, 3.0)
        or str(call.ty.dtype) != "float32"
    ):
        return stock("relax.power", bb, call)
    square = float(factor.reshape(())) == 2.0

    def product(v: Any) -> Any:
        return v * v if square else v * v * v

    def compute(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: product(x(*i)), name="power")

    return bb.call_te(compute, base, primfunc_name_hint="power")


def _concat(bb: Any, call: Any) -> Any:
    """One kernel of plain copies; never fused, since inlined it becomes a choice per element."""
    parts = list(call.args[0].fields) if hasattr(call.args[0], "fields") else None
    if parts is None or len(parts) < 2 or call.attrs.axis is None:
        return stock("relax.concat", bb, call)
    rank = len(call.ty.shape.values)
    axis = int(call.attrs.axis) % rank
    made = bb.call_te(lambda *p: kernels.concat(*p, axis=axis), *parts, primfunc_name_hint="concat")
    return made


LEGALIZE: dict[str, Callable[[Any, Any], Any]] = {
    **NAN_SAFE,
    **{name: _elementwise(name, expand) for name, expand in _UNARY.items()},
    "relax.power": _power,
    "relax.concat": _concat,
}
