"""Matrix products, attention and row normalisations: packed weights, two-dimensional rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmstack._tvm import relax, tvm
from tvmstack.lower import kernels
from tvmstack.lower.layout.rewriter import Rewriter, Value, dtype_of, handles, shape_of

__all__ = ["pack_dense_weight"]

# Few rows are bound by reading the weights: whole register tiles of panels, whatever the padding costs.
_FEW_ROWS = 4
_PANELS = 8


def pack_dense_weight(weight: np.ndarray, panel: int) -> np.ndarray:
    """(K, N) -> (N/panel, K, panel), the columns padded with zeros to whole panels."""
    k, n = weight.shape
    padded = -(-n // panel) * panel
    if padded != n:
        weight = np.concatenate([weight, np.zeros((k, padded - n), weight.dtype)], axis=1)
    return np.ascontiguousarray(weight.reshape(k, padded // panel, panel).transpose(1, 0, 2))


@handles("relax.matmul")
def matmul(rewriter: Rewriter, call: Any) -> Value | None:
    """Choose between attention, a packed dense product and a batched product."""
    left, right = call.args
    a, b, shape = shape_of(left), shape_of(right), shape_of(call)
    if a is None or b is None or not shape or len(a) < 2 or len(b) < 2 or dtype_of(call) != "float32":
        return None
    if 0 in a or 0 in b or dtype_of(left) != "float32" or dtype_of(right) != "float32":
        return None
    weight = rewriter.array(right)
    if weight is not None and weight.ndim == 2:
        return _dense(rewriter, rewriter.value(left), weight, shape)
    return _attention(rewriter, call, shape) or _batched(rewriter, left, right, shape)


def _dense(rewriter: Rewriter, value: Value, weight: np.ndarray, shape: tuple[int, ...]) -> Value:
    rows, columns = math.prod(shape[:-1]), weight.shape[1]
    panel = rewriter.lanes if columns > rewriter.lanes // 2 else 1 << (columns - 1).bit_length()
    whole = panel * _PANELS if columns > 2 * _PANELS * panel and rows <= _FEW_ROWS else panel
    padded = np.pad(weight, ((0, 0), (0, -columns % whole)))
    made = rewriter.te(kernels.dense, rewriter.rows(value), relax.const(pack_dense_weight(padded, panel)), columns)
    return Value(shape=shape, rows=made)


def _batched(rewriter: Rewriter, left: Any, right: Any, shape: tuple[int, ...]) -> Value | None:
    source, transposed = _untransposed(rewriter, right)
    a, b = shape_of(left), shape_of(source)
    assert a is not None
    assert b is not None
    batch_a, batch_b = math.prod(a[:-2]), math.prod(b[:-2])
    lead_a, lead_b = _squeezed(a[:-2]), _squeezed(b[:-2])
    if lead_a != lead_b and lead_a and lead_b:
        return None
    x = rewriter.reshape(rewriter.plain(rewriter.value(left)), (batch_a, *a[-2:]))
    y = rewriter.reshape(rewriter.plain(rewriter.value(source)), (batch_b, *b[-2:]))
    lanes = min(rewriter.lanes, max(1, b[-2] if transposed else b[-1]))
    made = rewriter.te(kernels.batch_matmul, x, y, lanes=lanes, transposed=transposed)
    return Value(shape=shape, plain=rewriter.reshape(made, shape))


def _squeezed(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in dims if d != 1)


def _untransposed(rewriter: Rewriter, expr: Any) -> tuple[Any, bool]:
    """Look through a transpose of the last two dims."""
    call = rewriter.producer(expr)
    if _is_call(call, "relax.permute_dims") and call.attrs.axes is not None:
        axes = [int(a) for a in call.attrs.axes]
        rank = len(axes)
        if axes == [*range(rank - 2), rank - 1, rank - 2]:
            return call.args[0], True
    return expr, False


def _is_call(call: Any, name: str) -> bool:
    return isinstance(call, tvm.ir.Call) and isinstance(call.op, tvm.ir.Op) and call.op.name == name


def _attention(rewriter: Rewriter, call: Any, shape: tuple[int, ...]) -> Value | None:
    """Match softmax(q k^T * scale + mask) v and emit it as one kernel."""
    found = _match_scores(rewriter, call.args[0])
    if found is None:
        return None
    q, keys, scale, mask = found
    source, transposed = _untransposed(rewriter, keys)
    qs, ks, vs = shape_of(q), shape_of(keys), shape_of(call.args[1])
    if qs is None or ks is None or vs is None or not (qs[:-2] == ks[:-2] == vs[:-2]):
        return None
    if qs[-2] < 2 or ks[-1] < 2 or qs[-1] < 2 or vs[-1] < 2:
        return None
    inside = _inside_rows(rewriter, q, keys, call.args[1])
    lead = qs[:-2] if inside else (math.prod(qs[:-2]), 1)
    mask_expr = _mask(rewriter, mask, lead, qs[:-2], (qs[-2], ks[-1])) if mask is not None else None
    if mask is not None and mask_expr is None:
        return None
    if inside:
        made = rewriter.te(kernels.attention, *inside, mask_expr, scale=scale, lanes=rewriter.lanes)
        return Value(shape=shape, heads_inside=made)
    key = rewriter.plain(rewriter.value(source))
    if not transposed:
        key = rewriter.emit(relax.op.permute_dims(key, [*range(len(ks) - 2), len(ks) - 1, len(ks) - 2]))
    made = rewriter.te(
        kernels.attention,
        rewriter.reshape(rewriter.plain(rewriter.value(q)), (lead[0], qs[-2], 1, qs[-1])),
        rewriter.reshape(key, (lead[0], ks[-1], 1, ks[-2])),
        rewriter.reshape(rewriter.plain(rewriter.value(call.args[1])), (lead[0], vs[-2], 1, vs[-1])),
        mask_expr,
        scale=scale,
        lanes=rewriter.lanes,
    )
    return Value(shape=shape, plain=rewriter.reshape(made, shape))


def _inside_rows(rewriter: Rewriter, q: Any, keys: Any, v: Any) -> list[Any]:
    """Return q, k and v as (B, rows, H, width) where each is a transpose of such a tensor, else nothing."""
    source, transposed = _untransposed(rewriter, keys)
    found = [
        _transposed_from(rewriter, q, (0, 2, 1, 3)),
        _transposed_from(rewriter, *((source, (0, 2, 1, 3)) if transposed else (keys, (0, 2, 3, 1)))),
        _transposed_from(rewriter, v, (0, 2, 1, 3)),
    ]
    if any(expr is None for expr in found):
        return []
    return [rewriter.plain(rewriter.value(expr)) for expr in found]


def _transposed_from(rewriter: Rewriter, expr: Any, axes: tuple[int, ...]) -> Any | None:
    """Return what `expr` is the transpose by `axes` of, or None."""
    call = rewriter.producer(expr)
    if not _is_call(call, "relax.permute_dims") or call.attrs.axes is None:
        return None
    return call.args[0] if tuple(int(a) for a in call.attrs.axes) == axes else None


def _match_scores(rewriter: Rewriter, expr: Any) -> tuple[Any, Any, float, Any | None] | None:
    """Return q, k^T, the scale and the mask of a softmax over scores that nothing else reads."""
    probabilities = rewriter.producer(expr)
    if not _is_call(probabilities, "relax.nn.softmax") or rewriter.uses.get(expr, 0) != 1:
        return None
    rank = len(shape_of(expr) or ())
    if int(probabilities.attrs.axis) % rank != rank - 1:
        return None
    inner, mask, scale = probabilities.args[0], None, 1.0
    call = rewriter.producer(inner)
    if _is_call(call, "relax.add") and _only(rewriter, inner):
        sides = list(call.args)
        scores = next((s for s in sides if _is_scores(rewriter, s)), None)
        if scores is None:
            return None
        inner, mask = scores, sides[1] if sides[0] is scores else sides[0]
        call = rewriter.producer(inner)
    if (_is_call(call, "relax.multiply") or _is_call(call, "relax.divide")) and _only(rewriter, inner):
        factor = rewriter.array(call.args[1])
        if factor is None or factor.size != 1:
            return None
        scale = float(factor.reshape(())) if _is_call(call, "relax.multiply") else 1.0 / float(factor.reshape(()))
        inner = call.args[0]
        call = rewriter.producer(inner)
    if not _is_call(call, "relax.matmul") or not _only(rewriter, inner):
        return None
    return call.args[0], call.args[1], scale, mask


def _only(rewriter: Rewriter, expr: Any) -> bool:
    return rewriter.uses.get(expr, 0) == 1


def _is_scores(rewriter: Rewriter, expr: Any) -> bool:
    call = rewriter.producer(expr)
    if _is_call(call, "relax.multiply") or _is_call(call, "relax.divide"):
        call = rewriter.producer(call.args[0])
    return _is_call(call, "relax.matmul")


def _mask(
    rewriter: Rewriter, mask: Any, lead: tuple[int, ...], dims: tuple[int, ...], last: tuple[int, int]
) -> Any | None:
    """Return the mask in four dims, each whole or 1, or None where it broadcasts otherwise.

    Args:
        rewriter: the walk.
        mask: what is added to scores of the shape `dims` + `last`.
        lead: the first two dims of the scores in the kernel: `dims`, or their product and 1.
        dims: the leading dims of the scores in the model.
        last: rows of queries and of keys.
    """
    shape = shape_of(mask)
    if shape is None or dtype_of(mask) != "float32" or not shape or shape[-1] != last[1]:
        return None
    aligned = (1,) * (len(dims) + 2 - len(shape)) + shape
    if aligned[-2] not in (1, last[0]):
        return None
    batch = aligned[:-2]
    if lead != dims:
        if math.prod(batch) != 1 and batch != dims:
            return None
        batch = (math.prod(batch), 1)
    elif any(size not in (1, whole) for size, whole in zip(batch, dims, strict=True)):
        return None
    return rewriter.reshape(rewriter.plain(rewriter.value(mask)), (*batch, aligned[-2], last[1]))


@handles("relax.nn.softmax", "relax.nn.log_softmax")
def softmax(rewriter: Rewriter, call: Any) -> Value | None:
    """Softmax as a row kernel, or with the axis in the middle."""
    value, shape = rewriter.value(call.args[0]), shape_of(call)
    if not shape or dtype_of(call) != "float32" or 0 in shape:
        return None
    log = call.op.name.endswith("log_softmax")
    axis = int(call.attrs.axis) % len(shape)
    inner = math.prod(shape[axis + 1 :])
    if inner == 1:
        rows = rewriter.reshape(rewriter.plain(value), (math.prod(shape[:axis]), shape[axis]))
        made = rewriter.te(kernels.softmax, rows, lanes=rewriter.lanes, log=log)
        return Value(shape=shape, rows=made) if axis == len(shape) - 1 else _reshaped(rewriter, made, shape)
    three = rewriter.reshape(rewriter.plain(value), (math.prod(shape[:axis]), shape[axis], inner))
    return _reshaped(rewriter, rewriter.te(kernels.softmax_strided, three, log=log), shape)


def _reshaped(rewriter: Rewriter, expr: Any, shape: tuple[int, ...]) -> Value:
    return Value(shape=shape, plain=rewriter.reshape(expr, shape))


@handles("relax.nn.layer_norm")
def layer_norm(rewriter: Rewriter, call: Any) -> Value | None:
    """Layer normalisation over the last axis as a row kernel."""
    value, shape = rewriter.value(call.args[0]), shape_of(call)
    if not shape or dtype_of(call) != "float32" or 0 in shape:
        return None
    if [int(a) % len(shape) for a in call.attrs.axes] != [len(shape) - 1]:
        return None
    gamma, beta = (rewriter.plain(rewriter.value(a)) for a in call.args[1:3])
    if shape_of(gamma) != (shape[-1],) or shape_of(beta) != (shape[-1],):
        return None
    made = rewriter.te(
        kernels.layer_norm, rewriter.rows(value), gamma, beta, epsilon=float(call.attrs.epsilon), lanes=rewriter.lanes
    )
    return Value(shape=shape, rows=made)
