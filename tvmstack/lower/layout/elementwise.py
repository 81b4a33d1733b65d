"""Operators that follow whatever representation their inputs have."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmstack._tvm import is_constant, relax
from tvmstack.lower.layout.rewriter import Rewriter, Value, handles, shape_of

__all__: list[str] = []

_UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "floor",
    "log",
    "negative",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "clip",
    "astype",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
]
_NN_UNARY = [
    "relu",
    "relu6",
    "silu",
    "gelu",
    "gelu_tanh",
    "leakyrelu",
    "selu",
    "softplus",
]
_BROADCAST = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "floor_mod",
    "mod",
    "power",
    "maximum",
    "minimum",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "where",
]


# Operators that give a finite number for any finite number the padded channels may hold.
_SAFE_UNARY = frozenset(
    [
        "relax.abs",
        "relax.ceil",
        "relax.cos",
        "relax.erf",
        "relax.floor",
        "relax.negative",
        "relax.round",
        "relax.sigmoid",
        "relax.sign",
        "relax.sin",
        "relax.square",
        "relax.tanh",
        "relax.trunc",
        "relax.clip",
        "relax.nn.relu",
        "relax.nn.relu6",
        "relax.nn.silu",
        "relax.nn.gelu",
        "relax.nn.gelu_tanh",
        "relax.nn.leakyrelu",
    ]
)
_SAFE_BROADCAST = frozenset(
    f"relax.{n}" for n in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "where")
)


@handles(*(f"relax.{n}" for n in _UNARY), *(f"relax.nn.{n}" for n in _NN_UNARY))
def unary(rewriter: Rewriter, call: Any) -> Value | None:
    """Apply an elementwise operator to the representation there is."""
    value = rewriter.value(call.args[0])
    rest = list(call.args[1:])
    if value.blocked is not None and (not value.is_padded or call.op.name in _SAFE_UNARY):
        return Value(shape=value.shape, blocked=rewriter.rebuild(call, [value.blocked, *rest]))
    if value.rows is not None:
        return Value(shape=value.shape, rows=rewriter.rebuild(call, [value.rows, *rest]))
    return None


@handles(*(f"relax.{n}" for n in _BROADCAST))
def broadcast(rewriter: Rewriter, call: Any) -> Value | None:
    """Apply a broadcasting operator in blocked form or in rows where every operand can follow."""
    values = [rewriter.value(a) for a in call.args]
    shape = shape_of(call)
    if shape is None or any(v.shape is None for v in values):
        return None
    if any(v.blocked is not None for v in values):
        return _in_blocks(rewriter, call, values, shape)
    if any(v.rows is not None for v in values):
        return _in_rows(rewriter, call, values, shape)
    return None


def _in_blocks(rewriter: Rewriter, call: Any, values: list[Value], shape: tuple[int, ...]) -> Value | None:
    lead = max((v for v in values if v.blocked is not None), key=lambda v: int(np.prod(v.shape or ())))
    if lead.nchw is None or len(shape) != len(lead.shape or ()) or shape[1] != lead.nchw[1]:
        return None
    divides = call.op.name == "relax.divide"
    if lead.is_padded and call.op.name not in _SAFE_BROADCAST:
        return None
    args = [_blocked_operand(rewriter, v, lead, len(shape), int(divides and i == 1)) for i, v in enumerate(values)]
    if any(a is None for a in args):
        return None
    return Value(shape=shape, blocked=rewriter.rebuild(call, args))


def _blocked_operand(rewriter: Rewriter, value: Value, lead: Value, rank: int, fill: int) -> Any:
    """Return `value` in a form that broadcasts against blocks of `lead`, padded with `fill` if constant, or None."""
    assert value.shape is not None
    assert lead.nchw is not None
    block, channels = lead.block, lead.nchw[1]
    if int(np.prod(value.shape)) == 1:
        return value.plain if value.plain is not None and not value.shape else _scalar(rewriter, value)
    if len(value.shape) > rank:
        return None
    aligned = (1,) * (rank - len(value.shape)) + value.shape
    n, c, h, w = aligned if rank == 4 else (aligned[0], aligned[1], 1, aligned[2])
    if c == 1:
        return rewriter.reshape(rewriter.plain(value), (n, 1, h, w, 1))
    if c != channels:
        return None
    if value.plain is not None and is_constant(value.plain):
        array = np.pad(
            value.plain.value.numpy().reshape(n, c, h, w),
            ((0, 0), (0, -c % block), (0, 0), (0, 0)),
            constant_values=fill,
        ).reshape(n, -(-c // block), block, h, w)
        return relax.const(np.ascontiguousarray(array.transpose(0, 1, 3, 4, 2)))
    if fill and lead.is_padded:
        return None
    if len(value.shape) != rank:
        value = Value(shape=aligned, plain=rewriter.reshape(rewriter.plain(value), aligned))
    return rewriter.blocked(value, block)


def _scalar(rewriter: Rewriter, value: Value) -> Any:
    return rewriter.reshape(rewriter.plain(value), ())


def _in_rows(rewriter: Rewriter, call: Any, values: list[Value], shape: tuple[int, ...]) -> Value | None:
    if not shape or not any(v.rows is not None and v.shape == shape for v in values):
        return None
    args = []
    for value in values:
        assert value.shape is not None
        if value.shape == shape:
            args.append(rewriter.rows(value))
        elif int(np.prod(value.shape)) == 1:
            args.append(_scalar(rewriter, value))
        elif value.shape[-1] == shape[-1] and int(np.prod(value.shape)) == shape[-1]:
            args.append(rewriter.reshape(rewriter.plain(value), (shape[-1],)))
        elif value.shape[:-1] == shape[:-1] and value.shape[-1] == 1:
            args.append(rewriter.reshape(rewriter.plain(value), (int(np.prod(shape[:-1])), 1)))
        elif tuple(d for d in value.shape if d != 1) == tuple(d for d in shape if d != 1):
            args.append(rewriter.reshape(rewriter.plain(value), (int(np.prod(shape[:-1])), shape[-1])))
        else:
            return None
    return Value(shape=shape, rows=rewriter.rebuild(call, args))


@handles("relax.permute_dims")
def permute_dims(rewriter: Rewriter, call: Any) -> Value | None:
    """Transpose a constant at compile time, and an attention's heads back into the rows for nothing."""
    axes = [int(a) for a in call.attrs.axes] if call.attrs.axes is not None else None
    value = rewriter.value(call.args[0])
    if value.heads_inside is not None and axes == [0, 2, 1, 3]:
        return Value(shape=shape_of(call), plain=value.heads_inside)
    array = rewriter.array(call.args[0])
    if array is None:
        return None
    moved = np.ascontiguousarray(array.transpose(axes))
    return Value(shape=moved.shape, plain=relax.const(moved))


@handles("relax.reshape")
def reshape(rewriter: Rewriter, call: Any) -> Value | None:
    """Reshape a constant at compile time; drop or add dims of rows, and shape pictures anew, without a move."""
    shape = shape_of(call)
    value = rewriter.value(call.args[0])
    if shape is None:
        return None
    if value.plain is not None and is_constant(value.plain):
        return Value(shape=shape, plain=rewriter.reshape(value.plain, shape))
    if value.rows is not None and value.shape and shape and value.shape[-1] == shape[-1]:
        return Value(shape=shape, rows=value.rows)
    if (
        value.nchw is not None
        and value.blocked is not None
        and value.nchw[2] * value.nchw[3] == 1
        and not value.is_padded
    ):
        return Value(shape=shape, plain=rewriter.reshape(value.blocked, shape))
    picture = Value(shape=shape).nchw
    if value.blocked is not None and value.nchw is not None and picture is not None and picture[:2] == value.nchw[:2]:
        n, blocks, _, _, block = shape_of(value.blocked) or ()
        return Value(shape=shape, blocked=rewriter.reshape(value.blocked, (n, blocks, *picture[2:], block)))
    return None


@handles("relax.concat")
def concat(rewriter: Rewriter, call: Any) -> Value | None:
    """Concatenate in blocked form where one block divides every input's channels."""
    values = rewriter.value(call.args[0]).fields
    axis = int(call.attrs.axis) if call.attrs.axis is not None else 0
    held = [v for v in values if v.blocked is not None]
    if not held or any(v.nchw is None for v in values):
        return None
    rank = len(values[0].shape or ())
    axis = axis % rank
    block = max({v.block for v in held}, key=lambda b: sum(v.block == b for v in held))
    whole = values[:-1] if axis == 1 else []
    if axis == 0 or any(v.nchw is not None and v.nchw[1] % block for v in whole):
        return None
    parts = [rewriter.blocked(v, block) for v in values]
    at = axis if axis == 1 or rank == 4 else 3
    return Value(shape=shape_of(call), blocked=rewriter.emit(relax.op.concat(parts, at)))


@handles("relax.split")
def split(rewriter: Rewriter, call: Any) -> Value | None:
    """Split into slices, which fuse with their readers; in blocked form where the parts are whole blocks."""
    value = rewriter.value(call.args[0])
    if value.shape is None:
        return None
    axis = int(call.attrs.axis) % len(value.shape)
    parts = [shape_of_type(f) for f in call.ty.fields]
    blocked = value.blocked is not None and axis == 1 and all(p[1] % value.block == 0 for p in parts[:-1])
    unit = value.block if blocked else 1
    source = value.blocked if blocked else rewriter.plain(value)
    made, start = [], 0
    for part in parts:
        stop = start + -(-part[axis] // unit)
        piece = _slice(rewriter, source, axis, start, stop)
        made.append(Value(shape=part, blocked=piece) if blocked else Value(shape=part, plain=piece))
        start = stop
    return Value(fields=made)


def shape_of_type(ty: Any) -> Any:
    """Return the static shape of a tensor type."""
    return tuple(int(d) for d in ty.shape.values)


def _slice(rewriter: Rewriter, expr: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    return rewriter.emit(relax.op.strided_slice(expr, [axis], [start], [stop], [step]))


@handles("relax.strided_slice")
def strided_slice(rewriter: Rewriter, call: Any) -> Value | None:
    """Slice a blocked tensor along its rows, columns or whole blocks of channels."""
    value = rewriter.value(call.args[0])
    if value.blocked is None or value.nchw is None or value.shape is None or len(value.shape) != 4:
        return None
    shape, bounds = shape_of(call), _slice_bounds(call)
    if shape is None or bounds is None:
        return None
    expr = value.blocked
    for axis, start, step in bounds:
        size = shape[axis]
        if axis == 1:
            block = value.block
            if step != 1 or start % block or (size % block and start + size != value.nchw[1]):
                return None
            expr = _slice(rewriter, expr, 1, start // block, -(-(start + size) // block))
        elif axis in (2, 3) and step > 0:
            expr = _slice(rewriter, expr, axis, start, start + (size - 1) * step + 1, step)
        else:
            return None
    return Value(shape=shape, blocked=expr)


def _slice_bounds(call: Any) -> list[tuple[int, int, int]] | None:
    """Return (axis, start, step) of a slice with constant bounds, starts counted from the front."""
    source = shape_of(call.args[0])
    texts = [_constants(a) for a in call.args[1:]]
    if source is None or any(t is None for t in texts) or len(texts) < 3:
        return None
    axes, begins = texts[0] or [], texts[1] or []
    steps = texts[3] if len(texts) > 3 and texts[3] else [1] * len(axes)
    found = []
    for axis, begin, step in zip(axes, begins, steps, strict=True):
        at = axis % len(source)
        start = begin + source[at] if begin < 0 else begin
        found.append((at, min(max(start, 0), source[at]), step))
    return found


def _constants(arg: Any) -> list[int] | None:
    items = getattr(arg, "fields", None) or getattr(arg, "values", None)
    if items is None:
        return None
    numbers = [getattr(i, "value", None) for i in items]
    return [n for n in numbers if isinstance(n, int)] if all(isinstance(n, int) for n in numbers) else None


@handles("relax.take")
def take(rewriter: Rewriter, call: Any) -> Value | None:
    """Gather rows or columns of a blocked tensor (a nearest-neighbour resize is two of these)."""
    value = rewriter.value(call.args[0])
    if value.blocked is None or value.shape is None or len(value.shape) != 4 or call.attrs.axis is None:
        return None
    axis, index = int(call.attrs.axis) % 4, shape_of(call.args[1])
    if axis not in (2, 3) or index is None or len(index) != 1:
        return None
    made = rewriter.rebuild(call, [value.blocked, rewriter.plain(rewriter.value(call.args[1]))])
    return Value(shape=shape_of(call), blocked=made)


@handles("relax.nn.pad")
def pad(rewriter: Rewriter, call: Any) -> Value | None:
    """Pad the rows and columns of a blocked tensor."""
    value = rewriter.value(call.args[0])
    if value.blocked is None or value.shape is None or len(value.shape) != 4 or str(call.attrs.pad_mode) != "constant":
        return None
    width = [int(w) for w in call.attrs.pad_width]
    if any(width[:4]):
        return None
    args = (str(call.attrs.pad_mode), float(call.attrs.pad_value))
    made = rewriter.emit(relax.op.nn.pad(value.blocked, [*width, 0, 0], *args))
    return Value(shape=shape_of(call), blocked=made)


@handles("relax.image.resize2d")
def resize2d(rewriter: Rewriter, call: Any) -> Value | None:
    """Upsample by whole factors with nearest neighbours in blocked form."""
    value, shape = rewriter.value(call.args[0]), shape_of(call)
    if value.blocked is None or value.nchw is None or shape is None or str(call.attrs.layout) != "NCHW":
        return None
    _, _, h, w = value.nchw
    plain_nearest = str(call.attrs.method) == "nearest_neighbor" and str(call.attrs.coordinate_transformation_mode) in (
        "asymmetric",
        "half_pixel",
    )
    if not plain_nearest or shape[2] % h or shape[3] % w:
        return None
    asymmetric = str(call.attrs.coordinate_transformation_mode) == "asymmetric"
    if asymmetric and str(call.attrs.rounding_method) not in ("floor", ""):
        return None
    expr = value.blocked
    for axis, factor in ((2, shape[2] // h), (3, shape[3] // w)):
        if factor > 1:
            expr = rewriter.emit(relax.op.repeat(expr, factor, axis))
    return Value(shape=shape, blocked=expr)
