"""What an unscheduled kernel means, worked out by numpy alone: the reference that scheduled kernels are compared with.

Each block is evaluated over all its points at once, or slice by slice along its first axis where that would take much
memory. Nothing of TVM's lowering or code generation takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import tirx
from tvmstack.schedules.cpu.blocks import open_schedule

__all__ = ["evaluate"]

_POINTS = 1 << 24
erf = np.vectorize(math.erf, otypes=[np.float64])
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: np.divide(a, b) if np.asarray(a).dtype.kind == "f" else np.trunc(a / b).astype(a.dtype),
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Mod": np.fmod,
    "Min": np.minimum,
    "Max": np.maximum,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "erf": erf,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "pow": np.power,
    "fabs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "nearbyint": np.round,
    "isnan": np.isnan,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
}


def evaluate(func: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the buffers of a function's parameters after a run on `arguments`, in their order."""
    work = open_schedule(func)
    params = work.sch.mod["main"].params
    memory = {_key(param): value.copy() for param, value in zip(params, arguments, strict=True)}
    for block in work.blocks:
        _run_block(work.sch.get(block), memory)
    return [memory[_key(param)] for param in params]


def _key(buffer: Any) -> str:
    return str(buffer.name)


def _array(buffer: Any, memory: dict[str, np.ndarray]) -> np.ndarray:
    key = _key(buffer)
    if key not in memory:
        memory[key] = np.zeros([int(d) for d in buffer.shape], str(buffer.dtype))
    return memory[key]


def _run_block(block: Any, memory: dict[str, np.ndarray]) -> None:
    axes = [(v.var, int(v.dom.min), int(v.dom.extent), int(v.iter_type) == 2) for v in block.iter_vars]
    stores = _stores(block.body)
    if str(block.name_hint) == "gemm":
        left, right = (memory[n] for n in _operands(block))
        target = _array(stores[0][0], memory)
        target[...] = np.matmul(left.transpose(0, 2, 1).astype(np.float64), right.astype(np.float64))
        return
    points = math.prod(extent for _, _, extent, _ in axes)
    first = next((i for i, a in enumerate(axes) if not a[3]), None)
    slices = 1 if first is None else min(axes[first][2], max(1, math.ceil(points / _POINTS)))
    for part in range(slices):
        ranges = [np.arange(low, low + extent) for _, low, extent, _ in axes]
        if first is not None:
            ranges[first] = np.array_split(ranges[first], slices)[part]
        _run_points(axes, ranges, stores, memory)


def _operands(block: Any) -> list[str]:
    names = [str(r.source.name) for r in block.reads]
    return [next(n for n in names if n.startswith(f"gemm_{side}")) for side in ("left", "right")]


def _run_points(axes: list[Any], ranges: list[np.ndarray], stores: list[Any], memory: dict[str, np.ndarray]) -> None:
    rank = len(axes)
    env: dict[Any, Any] = {}
    for place, ((var, _, _, _), values) in enumerate(zip(axes, ranges, strict=True)):
        env[var] = values.reshape([-1 if i == place else 1 for i in range(rank)])
    shape = tuple(len(r) for r in ranges)
    reduced = tuple(i for i, a in enumerate(axes) if a[3])
    results = []
    for buffer, indices, value, lets in stores:
        scope = dict(env)
        for var, bound in lets:
            scope[var] = bound
        target = _array(buffer, memory)
        places = tuple(_eval(i, env, memory) for i in indices)
        if not reduced:
            results.append((target, places, np.broadcast_to(_eval(value, scope, memory), shape)))
            continue
        kind, rest = _update(value, buffer, scope)
        total = np.broadcast_to(_eval(rest, scope, memory), shape)
        if total.dtype == np.float32:
            total = total.astype(np.float64)
        folded = {"Add": np.sum, "Max": np.max, "Min": np.min, "Mul": np.prod}[kind](total, axis=reduced, keepdims=True)
        results.append((target, places, folded))
    for target, places, value in results:
        where = np.broadcast_arrays(*places) if places else ()
        kept = tuple(w for w in where)
        target[kept] = np.broadcast_to(value, kept[0].shape) if kept else value.reshape(())


def _stores(stmt: Any, lets: tuple[Any, ...] = ()) -> list[Any]:
    """Return each store of a block's body with the values its variables stand for."""
    if isinstance(stmt, tirx.SeqStmt):
        found: list[Any] = []
        for item in stmt.seq:
            if isinstance(item, tirx.Bind):
                lets = (*lets, (item.var, item.value))
            else:
                found += _stores(item, lets)
        return found
    if isinstance(stmt, tirx.BufferStore):
        return [(stmt.buffer, list(stmt.indices), stmt.value, lets)]
    raise TypeError(f"no meaning for {type(stmt).__name__}")


def _update(value: Any, buffer: Any, scope: Mapping[Any, Any]) -> tuple[str, Any]:
    """Take `combine(old, new)` apart: its kind and the new value."""
    while isinstance(value, tirx.Var) and value in scope:
        value = scope[value]
    kind = type(value).__name__
    for own, other in ((value.a, value.b), (value.b, value.a)):
        if type(own).__name__ == "TensorLoad" and str(own.source.name) == str(buffer.name):
            return kind, other
    raise TypeError(f"no reduction: {value}")


def _eval(expr: Any, env: Mapping[Any, Any], memory: dict[str, np.ndarray]) -> Any:
    kind = type(expr).__name__
    if kind == "Var":
        found = env[expr]
        return found if isinstance(found, np.ndarray) else _eval(found, env, memory)
    if kind in ("IntImm", "FloatImm"):
        return np.asarray(expr.value, str(expr.ty.dtype))
    if kind in _BINARY:
        return _BINARY[kind](_eval(expr.a, env, memory), _eval(expr.b, env, memory))
    if kind == "Not":
        return np.logical_not(_eval(expr.a, env, memory))
    if kind == "Cast":
        return np.asarray(_eval(expr.value, env, memory)).astype(str(expr.ty.dtype))
    if kind == "Select":
        return np.where(*(_eval(e, env, memory) for e in (expr.condition, expr.true_value, expr.false_value)))
    if kind == "TensorLoad":
        array = _array(expr.source, memory)
        places = [_eval(i, env, memory) for i in expr.indices]
        # Places that a condition around this load excludes may lie outside.
        return array[tuple(np.clip(p, 0, n - 1) for p, n in zip(places, array.shape, strict=True))]
    if kind == "Let":
        return _eval(expr.body, {**env, expr.var: np.asarray(_eval(expr.value, env, memory))}, memory)
    if kind == "Call":
        return _call(expr, env, memory)
    raise TypeError(f"no meaning for {kind}: {expr}")


def _call(expr: Any, env: Mapping[Any, Any], memory: dict[str, np.ndarray]) -> Any:
    name = str(expr.op.name).rsplit(".", 1)[-1]
    arguments = [_eval(a, env, memory) for a in expr.args]
    if name == "if_then_else":
        return np.where(*arguments)
    if name not in _CALLS:
        raise TypeError(f"no meaning for a call of {name}")
    made = np.asarray(_CALLS[name](*arguments))
    return made.astype(arguments[0].dtype) if made.dtype == np.float64 else made
