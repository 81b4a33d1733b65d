"""Lowerings of Relax operators that keep a NaN, as ONNX and onnxruntime do; TVM's own lose it in one operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvmstack._tvm import is_constant, te, tirx
from tvmstack.lower.converters._context import element_type, is_float

__all__ = ["NAN_SAFE"]


def _is_float(tensor: Any) -> bool:
    return str(tensor.dtype).startswith("float")


# TVM's max(a, b) is "a > b ? a : b": a NaN in b survives, one in a does not. So constants stand first, and no operand
# is named twice, because fusion writes an expression out at each place that names it.
def _relu(bb: Any, call: Any) -> Any:
    def compute(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: tirx.max(tirx.const(0, x.dtype), x(*i)), name="relu")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="relu")


def _clip(bb: Any, call: Any) -> Any:
    def compute(x: Any, low: Any, high: Any) -> Any:
        lo, hi = (tirx.const(_number(v), x.dtype) for v in (low, high))
        return te.compute(x.shape, lambda *i: tirx.max(lo, tirx.min(hi, x(*i))), name="clip")

    return bb.call_te(compute, *call.args, primfunc_name_hint="clip")


def _number(value: Any) -> float:
    return float(getattr(value, "value", value))


def _extreme(name: str, choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def legalize(bb: Any, call: Any) -> Any:
        a, b = call.args
        if is_constant(b) and not np.isnan(np.asarray(b.value.numpy(), np.float64)).any():
            a, b = b, a
        safe = is_constant(a) and not np.isnan(np.asarray(a.value.numpy(), np.float64)).any()

        def element(x: Any, y: Any) -> Any:
            best = choose(x, y)
            return best if safe or not is_float(element_type(x)) else tirx.Select(tirx.isnan(x), x, best)

        return bb.call_te(lambda x, y: _broadcast(element, x, y, name), a, b, primfunc_name_hint=name)

    return legalize


def _broadcast(func: Callable[[Any, Any], Any], a: Any, b: Any, name: str) -> Any:
    shapes = [tuple(int(d) for d in t.shape) for t in (a, b)]
    out = np.broadcast_shapes(*shapes)

    def read(tensor: Any, shape: tuple[int, ...], index: tuple[Any, ...]) -> Any:
        own = index[len(index) - len(shape) :]
        return tensor(*(0 if d == 1 else i for i, d in zip(own, shape, strict=True)))

    return te.compute(out, lambda *i: func(read(a, shapes[0], i), read(b, shapes[1], i)), name=name)


NAN_SAFE: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.clip": _clip,
    "relax.maximum": _extreme("maximum", tirx.max),
    "relax.minimum": _extreme("minimum", tirx.min),
    "relax.nn.relu": _relu,
}
