"""Matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.core.errors import ModelError
from tvmstack.lower.converters._context import (
    Context,
    Converter,
    Expr,
    cast,
    const,
    dtype_of,
    is_float,
    scalar,
    shape_of,
    widened,
)

__all__ = ["CONVERTERS", "swap_last", "transposed"]

_op = relax.op


def transposed(ctx: Context, index: int) -> Expr:
    """Return an input with its last two axes swapped; a constant is swapped now."""
    known = ctx.constant(index)
    if known is not None:
        return const(np.swapaxes(known, -1, -2))
    return swap_last(ctx, ctx.input(index))


def swap_last(ctx: Context, x: Expr) -> Expr:
    """Return the tensor with its last two axes swapped."""
    rank = len(shape_of(x))
    return ctx.emit(_op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def _matmul(ctx: Context) -> Expr:
    return widened(ctx, _op.matmul, ctx.input(0), ctx.input(1))


def _gemm(ctx: Context) -> Expr:
    alpha, beta = float(ctx.attr("alpha", 1.0)), float(ctx.attr("beta", 1.0))
    a = transposed(ctx, 0) if ctx.attr("transA", 0) else ctx.input(0)
    b = transposed(ctx, 1) if ctx.attr("transB", 0) else ctx.input(1)
    y = ctx.emit(widened(ctx, _op.matmul, a, b))
    y = _scaled(ctx, y, alpha)
    if not ctx.has(2) or beta == 0.0:
        return y
    return _op.add(y, _scaled(ctx, ctx.input(2), beta))


def _scaled(ctx: Context, x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    dtype = dtype_of(x)
    if is_float(dtype):
        return ctx.emit(_op.multiply(x, scalar(factor, dtype)))
    wide = ctx.emit(_op.multiply(ctx.emit(cast(x, "float64")), scalar(factor, "float64")))
    return ctx.emit(cast(wide, dtype))


def _fused_matmul(ctx: Context) -> Expr:
    sides = []
    for index, name in ((0, "A"), (1, "B")):
        side = ctx.input(index)
        if ctx.attr(f"transBatch{name}", 0):
            rank = len(shape_of(side))
            side = ctx.emit(_op.permute_dims(side, [*range(1, rank - 1), 0, rank - 1]))
        if ctx.attr(f"trans{name}", 0) and len(shape_of(side)) > 1:
            side = swap_last(ctx, side)
        sides.append(side)
    return _scaled(ctx, ctx.emit(widened(ctx, _op.matmul, *sides)), float(ctx.attr("alpha", 1.0)))


def _einsum(ctx: Context) -> Expr:
    operands = [ctx.input(i) for i in range(len(ctx.inputs))]
    terms, result = _einsum_terms(ctx.attr("equation"), [len(shape_of(x)) for x in operands])
    sizes: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, dim in zip(term, shape_of(x), strict=True):
            sizes[letter] = max(sizes.get(letter, 1), dim)
    product = _einsum_as_matmul(ctx, terms, result, operands, sizes)
    if product is not None:
        return product
    return widened(
        ctx,
        lambda *xs: ctx.te(lambda *ts: _einsum_compute(ts, terms, result, sizes), *xs, name="einsum"),
        *operands,
    )


def _einsum_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Spell the ellipsis out with letters of its own, and the result where it is left to the reader."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    used = set(left) | set(right)
    spare = [c for c in map(chr, range(0x3B1, 0x3B1 + 64)) if c not in used]
    widths = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    widest = max((w for t, w in zip(terms, widths, strict=True) if "..." in t), default=0)
    dots = "".join(spare[:widest])
    spelled = [t.replace("...", dots[widest - w :] if w else "") for t, w in zip(terms, widths, strict=True)]
    if arrow:
        return spelled, right.replace("...", dots)
    letters = "".join(terms).replace(".", "")
    once = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return spelled, (dots if "..." in left else "") + once


def _einsum_as_matmul(
    ctx: Context, terms: Sequence[str], result: str, operands: Sequence[Expr], sizes: Mapping[str, int]
) -> Expr | None:
    """Return two-operand products of distinct letters as transposes around one batched matmul, else None."""
    if len(terms) != 2 or any(len(set(t)) != len(t) for t in terms):
        return None
    a, b = terms
    if any(shape_of(x) != tuple(sizes[c] for c in t) for t, x in zip(terms, operands, strict=True)):
        return None
    batch = [c for c in a if c in b and c in result]
    inner = [c for c in a if c in b and c not in result]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if not inner or any(c not in result for c in rows + columns):
        return None

    def size(letters: Sequence[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    def arranged(x: Expr, term: str, *groups: Sequence[str]) -> Expr:
        order = [term.index(c) for group in groups for c in group]
        x = x if order == list(range(len(order))) else ctx.emit(_op.permute_dims(x, order))
        return ctx.emit(_op.reshape(x, [size(group) for group in groups]))

    left = arranged(operands[0], a, batch, rows, inner)
    right = arranged(operands[1], b, batch, inner, columns)
    if not batch:
        left, right = (ctx.emit(_op.reshape(v, shape_of(v)[1:])) for v in (left, right))
    product = ctx.emit(widened(ctx, _op.matmul, left, right))
    letters = [*batch, *rows, *columns]
    spread = ctx.emit(_op.reshape(product, [sizes[c] for c in letters]))
    order = [letters.index(c) for c in result]
    return spread if order == list(range(len(order))) else _op.permute_dims(spread, order)


def _einsum_compute(tensors: Sequence[Any], terms: Sequence[str], result: str, sizes: Mapping[str, int]) -> Any:
    inner = sorted({c for t in terms for c in t} - set(result))
    axes = {c: te.reduce_axis((0, sizes[c]), f"k{i}") for i, c in enumerate(inner)}

    def at(*index: Any) -> Any:
        place = dict(zip(result, index, strict=True)) | axes
        factors = [
            t(*(tirx.const(0, "int64") if int(d) == 1 else place[c] for c, d in zip(term, t.shape, strict=True)))
            for t, term in zip(tensors, terms, strict=True)
        ]
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return te.sum(product, axis=list(axes.values())) if axes else product

    return te.compute([sizes[c] for c in result], at, name="einsum")


def _attention(ctx: Context) -> Expr:
    q, k, v = (ctx.input(i) for i in range(3))
    flat = len(shape_of(q)) == 3
    dtype = dtype_of(q)
    if flat:
        q, k, v = (
            _heads(ctx, x, int(ctx.attr(n))) for x, n in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    q, k, v = (ctx.emit(cast(x, "float32" if dtype == "float16" else dtype)) for x in (q, k, v))
    wide = dtype_of(q)
    k, v = (_repeat_heads(ctx, x, shape_of(q)[1]) for x in (k, v))
    scale = ctx.attr("scale")
    factor = 1.0 / math.sqrt(shape_of(q)[3]) if scale is None else float(scale)
    scores = ctx.emit(_op.matmul(q, swap_last(ctx, k)))
    scores = ctx.emit(_op.multiply(scores, scalar(factor, wide)))
    cap = float(ctx.attr("softcap", 0.0))
    if cap:
        scores = ctx.emit(_op.multiply(_op.tanh(_op.divide(scores, scalar(cap, wide))), scalar(cap, wide)))
    scores = _masked(ctx, scores, wide)
    y = ctx.emit(cast(ctx.emit(_op.matmul(ctx.emit(_op.nn.softmax(scores, -1)), v)), dtype))
    if not flat:
        return y
    batch, heads, length, size = shape_of(y)
    return _op.reshape(ctx.emit(_op.permute_dims(y, [0, 2, 1, 3])), (batch, length, heads * size))


def _heads(ctx: Context, x: Expr, heads: int) -> Expr:
    batch, length, width = shape_of(x)
    split = ctx.emit(_op.reshape(x, (batch, length, heads, width // heads)))
    return ctx.emit(_op.permute_dims(split, [0, 2, 1, 3]))


def _repeat_heads(ctx: Context, x: Expr, heads: int) -> Expr:
    own = shape_of(x)[1]
    if heads % own:
        raise ModelError(f"{heads} query heads cannot share {own} key heads")
    return x if own == heads else ctx.emit(_op.repeat(x, heads // own, 1))


def _masked(ctx: Context, scores: Expr, wide: str) -> Expr:
    rows, columns = shape_of(scores)[-2:]
    if ctx.attr("is_causal", 0):
        above = np.where(np.tril(np.ones((rows, columns), bool)), 0.0, -np.inf).astype(wide)
        scores = ctx.emit(_op.add(scores, const(above)))
    if not ctx.has(3):
        return scores
    mask = ctx.input(3)
    if dtype_of(mask) == "bool":
        return ctx.emit(_op.where(mask, scores, scalar(-math.inf, wide)))
    return ctx.emit(_op.add(scores, ctx.emit(cast(mask, wide))))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Attention"): _attention,
    ("", "Einsum"): _einsum,
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("com.microsoft", "FusedMatMul"): _fused_matmul,
}
