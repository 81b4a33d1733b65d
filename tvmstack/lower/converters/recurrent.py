"""LSTM, GRU and RNN over a fixed number of steps.

The input projection of all steps is one matrix product; what is left, the recurrence, is one kernel for each direction
with the time loop inside. Its product with the recurrent weights runs over panels of gates packed side by side, so that
a panel's sums stay in vector registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import Context, Converter, Expr, cast, const, shape_of
from tvmstack.lower.vector_math import exp_f32, sigmoid_f32, tanh_f32

__all__ = ["CONVERTERS"]

_op = relax.op
_PANEL = 32
# Sequences of a batch that are summed together.
_ROWS = 4
# Multiply-adds of one step from which waking the other threads repays.
_PARALLEL_WORK = 1 << 19
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Default alpha and beta of the activations that have them.
_PARAMETERS = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, 0.0),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "ThresholdedRelu": (1.0, 0.0),
}


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


def _activation(name: str, alpha: float, beta: float) -> Callable[[Any], Any]:
    table: dict[str, Callable[[Any], Any]] = {
        "Affine": lambda v: v * _f(alpha) + _f(beta),
        "Elu": lambda v: tirx.Select(v < _f(0), (exp_f32(v) - _f(1)) * _f(alpha), v),
        "HardSigmoid": lambda v: tirx.max(tirx.min(v * _f(alpha) + _f(beta), _f(1)), _f(0)),
        "LeakyRelu": lambda v: tirx.Select(v < _f(0), v * _f(alpha), v),
        "Relu": lambda v: tirx.Select(v < _f(0), _f(0), v),
        "ScaledTanh": lambda v: tanh_f32(v * _f(beta)) * _f(alpha),
        "Sigmoid": sigmoid_f32,
        "Softplus": lambda v: tirx.log(exp_f32(v) + _f(1)),
        "Softsign": lambda v: v / (tirx.abs(v) + _f(1)),
        "Tanh": tanh_f32,
        "ThresholdedRelu": lambda v: tirx.Select(v > _f(alpha), v, _f(0)),
    }
    known = {key.lower(): func for key, func in table.items()}
    if name.lower() not in known:
        raise ModelError(f"unknown activation {name}")
    return known[name.lower()]


@dataclass(frozen=True)
class _Cell:
    """One direction of a recurrent node.

    `recurrent` holds packed panels (panels, hidden, lanes): all gates, or for a GRU that resets before the product the
    update and reset gates, and then `candidate` those of the candidate.
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    backwards: bool
    functions: tuple[Callable[[Any], Any], ...]
    clip: float | None
    coupled: bool
    reset_after: bool
    recurrent: np.ndarray
    candidate: np.ndarray | None
    recurrent_bias: np.ndarray | None
    peepholes: np.ndarray | None


def _recurrent(ctx: Context) -> list[Expr]:
    kind = ctx.node.op_type
    x = ctx.emit(cast(ctx.input(0), "float32"))
    batch_first = bool(ctx.attr("layout", 0))
    if batch_first:
        x = ctx.emit(_op.permute_dims(x, [1, 0, 2]))
    direction = ctx.attr("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    parts = [_direction(ctx, kind, x, d, direction == "reverse" or d == 1, batch_first) for d in range(count)]
    y, last, cell = ([p[i] for p in parts] for i in range(3))
    dtype = ctx.dtype()
    outputs = [_stacked(ctx, y, 1), _stacked(ctx, last, 0), _stacked(ctx, cell, 0)]
    if batch_first:
        outputs = [
            ctx.emit(_op.permute_dims(outputs[0], [2, 0, 1, 3])),
            *(ctx.emit(_op.permute_dims(o, [1, 0, 2])) for o in outputs[1:]),
        ]
    return [cast(o, dtype) for o in outputs[: 3 if kind == "LSTM" else 2]]


def _stacked(ctx: Context, parts: Sequence[Expr], axis: int) -> Expr:
    shape = list(shape_of(parts[0]))
    shape.insert(axis, 1)
    raised = [ctx.emit(_op.reshape(p, shape)) for p in parts]
    return raised[0] if len(raised) == 1 else ctx.emit(_op.concat(raised, axis))


def _direction(ctx: Context, kind: str, x: Expr, d: int, backwards: bool, batch_first: bool) -> list[Expr]:
    steps, batch, width = shape_of(x)
    cell, weight, bias = _cell(ctx, kind, d, backwards, steps, batch)
    rows = ctx.emit(_op.reshape(x, (steps * batch, width)))
    projected = ctx.emit(_op.add(ctx.emit(_op.matmul(rows, const(weight))), const(bias)))
    projected = ctx.emit(_op.reshape(projected, (steps, batch, weight.shape[1])))
    states = [_initial(ctx, index, d, batch, cell.hidden, batch_first) for index in (5, 6)]
    lengths = ctx.optional(4)
    optional = {
        "candidate": cell.candidate,
        "recurrent_bias": cell.recurrent_bias,
        "peepholes": cell.peepholes,
    }
    names = [name for name, value in optional.items() if value is not None]
    arrays = [const(np.asarray(optional[name])) for name in names]
    if lengths is not None:
        names.append("lengths")
        arrays.append(ctx.emit(cast(lengths, "int32")))
    result = ctx.te(
        lambda *tensors: _kernel(cell, names, tensors),
        projected,
        states[0],
        states[1],
        const(cell.recurrent),
        *arrays,
        name=kind.lower(),
        attrs={"op_pattern": 8},
    )
    return [ctx.emit(relax.TupleGetItem(result, i)) for i in range(3)]


def _initial(ctx: Context, index: int, d: int, batch: int, hidden: int, batch_first: bool) -> Expr:
    if not ctx.has(index) or (index == 6 and ctx.node.op_type != "LSTM"):
        return const(np.zeros((batch, hidden), np.float32))
    state = ctx.emit(cast(ctx.input(index), "float32"))
    axis = 1 if batch_first else 0
    if shape_of(state)[axis] > 1:
        state = ctx.emit(_op.strided_slice(state, [axis], [d], [d + 1], assume_inbound=True))
    return ctx.emit(_op.reshape(state, (batch, hidden)))


def _cell(
    ctx: Context, kind: str, d: int, backwards: bool, steps: int, batch: int
) -> tuple[_Cell, np.ndarray, np.ndarray]:
    """Return the cell of direction `d`, and the input projection's weights (inputs, gates) and bias in full panels."""
    w, r, b, p = (ctx.constant(i) for i in (1, 2, 3, 7))
    if w is None or r is None or (ctx.has(3) and b is None) or (ctx.has(7) and p is None):
        raise ModelError("the weights are computed at run time")
    hidden, gates = r.shape[2], _GATES[kind]
    r_bias = np.zeros(gates * hidden, np.float32) if b is None else b[d, gates * hidden :].astype(np.float32)
    bias = np.zeros(gates * hidden, np.float32) if b is None else b[d, : gates * hidden].astype(np.float32)
    after = kind == "GRU" and bool(ctx.attr("linear_before_reset", 0))
    split = 2 * hidden if kind == "GRU" and not after else gates * hidden
    own_bias = None
    if after:  # the reset gate scales the candidate's recurrent bias as well: it cannot join the input's
        own_bias = r_bias[2 * hidden :].copy()
        r_bias[2 * hidden :] = 0
    columns = -(-gates * hidden // _PANEL) * _PANEL
    weight = np.zeros((w.shape[2], columns), np.float32)
    weight[:, : gates * hidden] = w[d].T
    total = np.zeros(columns, np.float32)
    total[: gates * hidden] = bias + r_bias
    cell = _Cell(
        kind,
        steps,
        batch,
        hidden,
        backwards,
        _functions(ctx, kind, d),
        None if ctx.attr("clip") is None else float(ctx.attr("clip")),
        bool(ctx.attr("input_forget", 0)),
        after,
        _panels(r[d][:split]),
        None if split == gates * hidden else _panels(r[d][split:]),
        own_bias,
        None if p is None or kind != "LSTM" else p[d].astype(np.float32),
    )
    return cell, weight, total


def _panels(rows: np.ndarray) -> np.ndarray:
    """Pack (gates, hidden) as (panels, hidden, lanes), the last panel filled up with zeros."""
    count, hidden = rows.shape
    panels = -(-count // _PANEL)
    padded = np.zeros((panels * _PANEL, hidden), np.float32)
    padded[:count] = rows
    return np.ascontiguousarray(padded.reshape(panels, _PANEL, hidden).transpose(0, 2, 1))


def _functions(ctx: Context, kind: str, d: int) -> tuple[Callable[[Any], Any], ...]:
    names = list(ctx.attr("activations", _ACTIVATIONS[kind] * 2))
    alphas, betas = list(ctx.attr("activation_alpha", ())), list(ctx.attr("activation_beta", ()))
    chosen = []
    for name in names:
        alpha, beta = next((v for k, v in _PARAMETERS.items() if k.lower() == name.lower()), (0.0, 0.0))
        # Alphas and betas are listed only for the activations that take them.
        if name.lower() in {k.lower() for k in _PARAMETERS} and alphas:
            alpha = float(alphas.pop(0))
        if name.lower() in {"affine", "hardsigmoid", "scaledtanh"} and betas:
            beta = float(betas.pop(0))
        chosen.append(_activation(name, alpha, beta))
    size = len(_ACTIVATIONS[kind])
    return tuple(chosen[d * size : (d + 1) * size])


def _kernel(cell: _Cell, names: Sequence[str], tensors: Sequence[Any]) -> Any:
    n, h = cell.batch, cell.hidden
    width = cell.recurrent.shape[0] * _PANEL
    extra = 0 if cell.candidate is None else cell.candidate.shape[0] * _PANEL
    shapes = [(cell.steps, n, h), (n, h), (n, h), (n, width + extra), (n, h)]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        with IRBuilder() as builder:
            # A loop of one turn: a builder takes one statement, and its wrapper for several warns in code generation.
            with T.serial(0, 1):
                _emit(cell, ins[:4], dict(zip(names, ins[4:], strict=True)), outs)
            return builder.get()

    return te.extern(shapes, list(tensors), body, dtype=["float32"] * len(shapes), name=cell.kind.lower())


def _emit(cell: _Cell, ins: Sequence[Any], extra: Mapping[str, Any], outs: Sequence[Any]) -> None:
    projected, h0, c0, recurrent = ins
    _, hidden, state, products, reset = outs
    with T.serial(0, cell.batch) as n, T.serial(0, cell.hidden) as u:
        T.buffer_store(hidden, h0[n, u], [n, u])
        T.buffer_store(state, c0[n, u], [n, u])
    with T.serial(0, cell.steps) as step:
        _emit_product(cell, recurrent, hidden, products, 0)
        if cell.candidate is not None:
            _emit_reset(cell, projected, extra, step, hidden, products, reset)
            _emit_product(cell, extra["candidate"], reset, products, cell.recurrent.shape[0] * _PANEL)
        _emit_cells(cell, projected, extra, step, outs)


def _emit_product(cell: _Cell, weights: Any, vector: Any, products: Any, offset: int) -> None:
    """products[n, offset + gate] = weights · vector[n], one panel of gates at a time."""
    panels = int(weights.shape[0])
    loop = T.parallel if panels * _PANEL * cell.hidden * cell.batch >= _PARALLEL_WORK and panels > 1 else T.serial
    blocks, rest = divmod(cell.batch, _ROWS)
    with loop(0, panels) as panel:
        if blocks:
            with T.serial(0, blocks) as block:
                _emit_panel(cell, weights, vector, products, offset, panel, [block * _ROWS + i for i in range(_ROWS)])
        for row in range(rest):
            _emit_panel(cell, weights, vector, products, offset, panel, [blocks * _ROWS + row])


def _emit_panel(
    cell: _Cell, weights: Any, vector: Any, products: Any, offset: int, panel: Any, rows: Sequence[Any]
) -> None:
    """The sums of some sequences over one panel; each weight that is loaded serves all of them."""
    totals = [T.alloc_buffer((_PANEL,), "float32", scope="local") for _ in rows]
    for total in totals:
        with T.vectorized(0, _PANEL) as lane:
            T.buffer_store(total, _f(0), [lane])
    with T.serial(0, cell.hidden) as k:
        for total, n in zip(totals, rows, strict=True):
            with T.vectorized(0, _PANEL) as lane:
                T.buffer_store(total, total[lane] + vector[n, k] * weights[panel, k, lane], [lane])
    for total, n in zip(totals, rows, strict=True):
        with T.vectorized(0, _PANEL) as lane:
            T.buffer_store(products, total[lane], [n, panel * _PANEL + lane + offset])


def _place(cell: _Cell, extra: Mapping[str, Any], step: Any, n: Any) -> tuple[Any, Any]:
    """Return the time index that step reads and writes for sequence n, and whether the sequence is that long."""
    if "lengths" not in extra:
        return (cell.steps - 1 - step if cell.backwards else step), None
    length = extra["lengths"][n]
    inside = step < length
    return (tirx.Select(inside, length - 1 - step, step) if cell.backwards else step), inside


def _clipped(cell: _Cell, value: Any) -> Any:
    if cell.clip is None:
        return value
    return tirx.max(tirx.min(value, _f(cell.clip)), _f(-cell.clip))


def _emit_reset(
    cell: _Cell, projected: Any, extra: Mapping[str, Any], step: Any, hidden: Any, products: Any, reset: Any
) -> None:
    with T.serial(0, cell.batch) as n, T.serial(0, cell.hidden) as u:
        time, _ = _place(cell, extra, step, n)
        gate = cell.functions[0](_clipped(cell, projected[time, n, cell.hidden + u] + products[n, cell.hidden + u]))
        T.buffer_store(reset, gate * hidden[n, u], [n, u])


def _emit_cells(cell: _Cell, projected: Any, extra: Mapping[str, Any], step: Any, outs: Sequence[Any]) -> None:
    lanes = next(width for width in (16, 8, 4, 1) if cell.hidden % width == 0)
    with T.serial(0, cell.batch) as n, T.serial(0, cell.hidden // lanes) as block:
        if lanes == 1:
            _emit_unit(cell, projected, extra, step, outs, n, block)
        else:
            with T.vectorized(0, lanes) as lane:
                _emit_unit(cell, projected, extra, step, outs, n, block * lanes + lane)


def _emit_unit(
    cell: _Cell, projected: Any, extra: Mapping[str, Any], step: Any, outs: Sequence[Any], n: Any, u: Any
) -> None:
    y, hidden, state, products, _ = outs
    time, inside = _place(cell, extra, step, n)

    def gate(index: int) -> Any:
        return projected[time, n, index * cell.hidden + u] + products[n, index * cell.hidden + u]

    new_state = None
    if cell.kind == "LSTM":
        new_state = _lstm_state(cell, gate, extra, products, state[n, u], n, u)
        kept = new_state if inside is None else tirx.Select(inside, new_state, state[n, u])
        T.buffer_store(state, kept, [n, u])
        new = _lstm_output(cell, gate, extra, state[n, u], u)
    elif cell.kind == "GRU":
        new = _gru_output(cell, gate, extra, projected[time, n, 2 * cell.hidden + u], products, hidden[n, u], n, u)
    else:
        new = cell.functions[0](_clipped(cell, gate(0)))
    if inside is None:
        T.buffer_store(hidden, new, [n, u])
        T.buffer_store(y, hidden[n, u], [time, n, u])
        return
    T.buffer_store(hidden, tirx.Select(inside, new, hidden[n, u]), [n, u])
    T.buffer_store(y, tirx.Select(inside, hidden[n, u], _f(0)), [time, n, u])


def _peephole(extra: Mapping[str, Any], index: int, hidden: int, u: Any, state: Any) -> Any:
    return extra["peepholes"][index * hidden + u] * state if "peepholes" in extra else _f(0)


def _lstm_state(
    cell: _Cell, gate: Callable[[int], Any], extra: Mapping[str, Any], products: Any, state: Any, n: Any, u: Any
) -> Any:
    """Gates are ordered input, output, forget, cell; peepholes input, output, forget."""
    f, g, _ = cell.functions
    hidden = cell.hidden
    T.buffer_store(products, f(_clipped(cell, gate(0) + _peephole(extra, 0, hidden, u, state))), [n, u])
    if not cell.coupled:
        T.buffer_store(
            products, f(_clipped(cell, gate(2) + _peephole(extra, 2, hidden, u, state))), [n, 2 * hidden + u]
        )
    T.buffer_store(products, g(_clipped(cell, gate(3))), [n, 3 * hidden + u])
    keep = _f(1) - products[n, u] if cell.coupled else products[n, 2 * hidden + u]
    return keep * state + products[n, u] * products[n, 3 * hidden + u]


def _lstm_output(cell: _Cell, gate: Callable[[int], Any], extra: Mapping[str, Any], state: Any, u: Any) -> Any:
    f, _, h = cell.functions
    return f(_clipped(cell, gate(1) + _peephole(extra, 1, cell.hidden, u, state))) * h(state)


def _gru_output(
    cell: _Cell,
    gate: Callable[[int], Any],
    extra: Mapping[str, Any],
    candidate: Any,
    products: Any,
    old: Any,
    n: Any,
    u: Any,
) -> Any:
    f, g = cell.functions
    # Gates go through memory: nested, the expressions of two activations take TVM's simplifier half a minute.
    T.buffer_store(products, f(_clipped(cell, gate(0))), [n, u])
    if cell.reset_after:
        T.buffer_store(products, f(_clipped(cell, gate(1))), [n, cell.hidden + u])
        product = products[n, 2 * cell.hidden + u] + extra["recurrent_bias"][u]
        new = g(_clipped(cell, candidate + products[n, cell.hidden + u] * product))
    else:
        new = g(_clipped(cell, candidate + products[n, cell.recurrent.shape[0] * _PANEL + u]))
    T.buffer_store(products, new, [n, cell.hidden + u])
    update, new = products[n, u], products[n, cell.hidden + u]
    return (_f(1) - update) * new + update * old


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "GRU"): _recurrent,
    ("", "LSTM"): _recurrent,
    ("", "RNN"): _recurrent,
}
