"""Tensor expressions of the kernels that `schedules/` has templates for.

Each is written so that its template needs no predicate inside the inner loops: the anchor (the reduction) is computed
on extents
padded to whole tiles, reading its input at a clamped index, and a last stage crops to the real extents. The name of the
anchor's block is the template's name.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tvmstack._tvm import te, tirx
from tvmstack.lower.vector_math import exp_nonpositive_f32

__all__ = [
    "attention",
    "batch_matmul",
    "concat",
    "conv2d_nchwc",
    "dense",
    "depthwise_conv2d_nchwc",
    "from_blocked",
    "interleave_nchwc",
    "layer_norm",
    "padded_extent",
    "pool2d_nchwc",
    "softmax",
    "softmax_strided",
    "spatial_max_nchwc",
    "spatial_mean_nchwc",
    "to_blocked",
]

_TILES = range(5, 15)


def padded_extent(extent: int) -> int:
    """Return the least extent >= `extent` that a tile of 5 to 14 rows divides, or `extent` where it is small."""
    if extent <= 14:
        return extent
    limit = extent + max(1, extent // 16)
    for padded in range(extent, limit + 1):
        if any(padded % tile == 0 for tile in _TILES if tile >= 6):
            return padded
    return extent


def _shape(tensor: Any) -> list[int]:
    return [int(d) for d in tensor.shape]


def _clamp(index: Any, extent: int, bound: int) -> Any:
    """Keep `index`, which may reach `bound`, inside `extent`."""
    return index if bound < extent else te.min(index, extent - 1)


def to_blocked(x: Any, block: int) -> Any:
    """(N, C, H, W) -> (N, ceil(C/block), H, W, block), the last block padded with zeros."""
    n, c, h, w = _shape(x)

    def item(b: Any, co: Any, y: Any, xx: Any, ci: Any) -> Any:
        channel = co * block + ci
        if c % block == 0:
            return x[b, channel, y, xx]
        return tirx.if_then_else(channel < c, x[b, channel, y, xx], tirx.const(0, x.dtype))

    return te.compute((n, -(-c // block), h, w, block), item, name="to_blocked")


def from_blocked(x: Any, channels: int) -> Any:
    """(N, C/block, H, W, block) -> (N, channels, H, W); channels beyond `channels` are dropped."""
    n, _, h, w, block = _shape(x)
    return te.compute((n, channels, h, w), lambda b, c, y, xx: x[b, c // block, y, xx, c % block], name="from_blocked")


def _padded_input(x: Any, pads: Sequence[int], block: int | None, need: tuple[int, int]) -> Any:
    """Return x zero-padded to at least `need` rows and columns, and blocked by `block` if x is plain."""
    top, left, _, _ = pads
    shape = _shape(x)
    h, w = shape[2], shape[3]
    rows, cols = max(need[0], h + top), max(need[1], w + left)
    zero = tirx.const(0, x.dtype)

    def value(b: Any, co: Any, y: Any, xx: Any, ci: Any) -> Any:
        at = (b, co, y - top, xx - left, ci) if block is None else (b, co * block + ci, y - top, xx - left)
        item = x(*at)
        inside = tirx.all(y >= top, y < h + top, xx >= left, xx < w + left)
        return tirx.if_then_else(inside, item, zero)

    inner = shape[4] if block is None else block
    chunks = shape[1] if block is None else shape[1] // block
    return te.compute((shape[0], chunks, rows, cols, inner), value, name="pad_input")


def interleave_nchwc(x: Any, strides: Sequence[int], crop: Sequence[int], size: Sequence[int]) -> Any:
    """(N, sh*sw*C/c, H, W, c) -> (N, C/c, *size, c): output (y, xx) is phase ((y + top) mod sh, (xx + left) mod sw)."""
    (sh, sw), (top, left) = strides, crop
    n, chunks, rows, cols, block = _shape(x)
    panels = chunks // (sh * sw)
    is_whole = (size[0] - 1 + top) // sh < rows and (size[1] - 1 + left) // sw < cols

    def item(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        py, px = y + top, xx + left
        value = x[b, (py % sh * sw + px % sw) * panels + o, py // sh, px // sw, c]
        inside = tirx.all(py // sh < rows, px // sw < cols)
        return value if is_whole else tirx.if_then_else(inside, value, tirx.const(0, x.dtype))

    return te.compute((n, panels, size[0], size[1], block), item, name="interleave")


def concat(*parts: Any, axis: int) -> Any:
    """Concatenate along `axis`; its template splits the loop at the borders, so each part is a plain copy."""
    shape = _shape(parts[0])
    sizes = [_shape(p)[axis] for p in parts]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]

    def item(*index: Any) -> Any:
        at = index[axis]
        value = parts[0](*index)
        for part, start in zip(parts[1:], starts[1:], strict=True):
            value = tirx.if_then_else(at >= start, part(*index[:axis], at - start, *index[axis + 1 :]), value)
        return value

    return te.compute((*shape[:axis], sum(sizes), *shape[axis + 1 :]), item, name=f"concat_axis{axis}")


def conv2d_nchwc(
    x: Any,
    weight: Any,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    channels: int,
    plain_block: int | None = None,
) -> Any:
    """Direct convolution in blocked layout.

    Args:
        x: (N, C/ic, H, W, ic), or (N, C, H, W) when `plain_block` gives ic.
        weight: (ceil(O/oc), C/groups/ic, KH, KW, ic, oc), packed at compile time, padded with zeros.
        strides: along H and W.
        pads: top, left, bottom, right.
        dilations: along H and W.
        groups: number of groups; with more than one, oc divides O/groups and ic divides C/groups.
        channels: O; the padded channels of the last block come out as 0.
        plain_block: the input block ic, for an input in plain layout.

    Returns:
        (N, O/oc, OH, OW, oc)
    """
    n, ic = _shape(x)[0], plain_block or _shape(x)[4]
    h, w = _shape(x)[2], _shape(x)[3]
    co, ci, kh, kw, _, oc = _shape(weight)
    (sh, sw), (dh, dw) = strides, dilations
    oh = (h + pads[0] + pads[2] - dh * (kh - 1) - 1) // sh + 1
    ow = (w + pads[1] + pads[3] - dw * (kw - 1) - 1) // sw + 1
    owp = padded_extent(ow)
    last = ((oh - 1) * sh + (kh - 1) * dh, (owp - 1) * sw + (kw - 1) * dw)
    if any(pads) or plain_block:
        x = _padded_input(x, pads, plain_block, (last[0] + 1, last[1] + 1))
    cols = _shape(x)[3]
    per_group = co // groups
    rc, ri = te.reduce_axis((0, ci), "rc"), te.reduce_axis((0, ic), "ri")
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")

    def product(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        chunk = rc if groups == 1 else (o // per_group) * ci + rc
        col = _clamp(xx * sw + rx * dw, cols, last[1])
        return te.sum(x[b, chunk, y * sh + ry * dh, col, ri] * weight[o, rc, ry, rx, ri, c], axis=[rc, ry, rx, ri])

    acc = te.compute((n, co, oh, owp, oc), product, name="conv2d_nchwc")

    def crop(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        value = acc[b, o, y, xx, c]
        return value if channels == co * oc else tirx.Select(o * oc + c < channels, value, tirx.const(0, x.dtype))

    return te.compute((n, co, oh, ow, oc), crop, name="crop")


def depthwise_conv2d_nchwc(
    x: Any,
    weight: Any,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Any:
    """Depthwise convolution in blocked layout: x (N, C/c, H, W, c), weight (C/c, KH, KW, c) -> (N, C/c, OH, OW, c)."""
    n, co, h, w, block = _shape(x)
    _, kh, kw, _ = _shape(weight)
    (sh, sw), (dh, dw) = strides, dilations
    oh = (h + pads[0] + pads[2] - dh * (kh - 1) - 1) // sh + 1
    ow = (w + pads[1] + pads[3] - dw * (kw - 1) - 1) // sw + 1
    owp = padded_extent(ow)
    last = ((oh - 1) * sh + (kh - 1) * dh, (owp - 1) * sw + (kw - 1) * dw)
    if any(pads):
        x = _padded_input(x, pads, None, (last[0] + 1, last[1] + 1))
    cols = _shape(x)[3]
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")

    def product(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        col = _clamp(xx * sw + rx * dw, cols, last[1])
        return te.sum(x[b, o, y * sh + ry * dh, col, c] * weight[o, ry, rx, c], axis=[ry, rx])

    acc = te.compute((n, co, oh, owp, block), product, name="depthwise_nchwc")
    return te.compute((n, co, oh, ow, block), lambda b, o, y, xx, c: acc[b, o, y, xx, c], name="crop")


def pool2d_nchwc(
    x: Any,
    *,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
    count_include_pad: bool,
) -> Any:
    """Max or average pooling in blocked layout: (N, C/c, H, W, c) -> (N, C/c, *out, c), windows clipped to the input.

    A maximum keeps NaN, as onnxruntime's does not promise but IEEE users expect from ONNX's definition.
    """
    n, co, h, w, block = _shape(x)
    (kh, kw), (sh, sw), (dh, dw) = kernel, strides, dilations
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    top, left = pads[0], pads[1]
    rows, cols = (out[0] - 1) * sh + (kh - 1) * dh, (out[1] - 1) * sw + (kw - 1) * dw
    padded = top or left or rows >= h or cols >= w
    fill = tirx.min_value(x.dtype) if kind == "max" else tirx.const(0, x.dtype)
    if padded:
        source = x

        def value(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
            inside = tirx.all(y >= top, y < h + top, xx >= left, xx < w + left)
            return tirx.if_then_else(inside, source[b, o, y - top, xx - left, c], fill)

        x = te.compute((n, co, max(rows + 1, h + top), max(cols + 1, w + left), block), value, name="pad_input")

    def item(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        return x[b, o, y * sh + ry * dh, xx * sw + rx * dw, c]

    shape = (n, co, out[0], out[1], block)
    if kind == "max":
        return te.compute(shape, lambda *i: te.max(item(*i), axis=[ry, rx]), name="pool_nchwc")
    total = te.compute(shape, lambda *i: te.sum(item(*i), axis=[ry, rx]), name="pool_nchwc")

    def scaled(b: Any, o: Any, y: Any, xx: Any, c: Any) -> Any:
        if count_include_pad or not padded:
            # the window is clipped to the padded input, which the padding given bounds
            rows_in = _span(y, sh, dh, kh, 0, h + pads[0] + pads[2]) if padded else kh
            cols_in = _span(xx, sw, dw, kw, 0, w + pads[1] + pads[3]) if padded else kw
        else:
            rows_in, cols_in = _span(y, sh, dh, kh, top, h), _span(xx, sw, dw, kw, left, w)
        return total[b, o, y, xx, c] / tirx.Cast(x.dtype, rows_in * cols_in)

    return te.compute(shape, scaled, name="average")


def _span(index: Any, stride: int, dilation: int, kernel: int, before: int, extent: int) -> Any:
    """How many taps of the window at `index` fall inside [0, extent)."""
    start = index * stride - before
    if dilation == 1:
        return te.max(te.min(start + kernel, extent) - te.max(start, 0), 1)
    first = te.max(0, (-start + dilation - 1) // dilation)
    last = te.min(kernel - 1, (extent - 1 - start) // dilation)
    return te.max(last - first + 1, 1)


def spatial_mean_nchwc(x: Any) -> Any:
    """Mean over H and W in blocked layout: (N, C/c, H, W, c) -> (N, C/c, 1, 1, c)."""
    n, co, h, w, block = _shape(x)
    ry, rx = te.reduce_axis((0, h), "ry"), te.reduce_axis((0, w), "rx")
    total = te.compute(
        (n, co, 1, 1, block),
        lambda b, o, y, xx, c: te.sum(x[b, o, y + ry, xx + rx, c], axis=[ry, rx]),
        name="pool_nchwc",
    )
    scale = tirx.const(1.0 / (h * w), x.dtype)
    return te.compute(total.shape, lambda *i: total(*i) * scale, name="average")


def spatial_max_nchwc(x: Any) -> Any:
    """Maximum over H and W in blocked layout: (N, C/c, H, W, c) -> (N, C/c, 1, 1, c)."""
    n, co, h, w, block = _shape(x)
    ry, rx = te.reduce_axis((0, h), "ry"), te.reduce_axis((0, w), "rx")
    return te.compute(
        (n, co, 1, 1, block),
        lambda b, o, y, xx, c: te.max(x[b, o, y + ry, xx + rx, c], axis=[ry, rx]),
        name="pool_nchwc",
    )


def dense(x: Any, weight: Any, columns: int) -> Any:
    """Matrix product with packed weights: x (M, K), weight (N/panel, K, panel) -> (M, columns); columns <= N."""
    m, k = _shape(x)
    panels, _, width = _shape(weight)
    rows = padded_extent(m)
    rk = te.reduce_axis((0, k), "rk")
    acc = te.compute(
        (rows, panels * width),
        lambda i, j: te.sum(x[_clamp(i, m, rows - 1), rk] * weight[j // width, rk, j % width], axis=rk),
        name="dense",
    )
    return te.compute((m, columns), lambda i, j: acc[i, j], name="crop")


def batch_matmul(x: Any, y: Any, *, lanes: int, transposed: bool = False) -> Any:
    """Batched product of two computed operands: x (B, M, K), y (B, K, N), or (B, N, K) when `transposed` -> (B, M, N).

    A batch of one on either side broadcasts. y is packed into panels of `lanes` columns once a call.
    """
    bx, m, k = _shape(x)
    by, n = _shape(y)[0], _shape(y)[1 if transposed else 2]
    batch, rows = max(bx, by), padded_extent(m)
    panels = -(-n // lanes)
    rk = te.reduce_axis((0, k), "rk")

    def packed_item(b: Any, p: Any, r: Any, lane: Any) -> Any:
        col = _clamp(p * lanes + lane, n, panels * lanes - 1)
        return y[b, col, r] if transposed else y[b, r, col]

    packed = te.compute((by, panels, k, lanes), packed_item, name="pack_panels")
    acc = te.compute(
        (batch, rows, panels * lanes),
        lambda b, i, j: te.sum(
            x[b if bx > 1 else 0, _clamp(i, m, rows - 1), rk] * packed[b if by > 1 else 0, j // lanes, rk, j % lanes],
            axis=rk,
        ),
        name="batch_matmul",
    )
    return te.compute((batch, m, n), lambda b, i, j: acc[b, i, j], name="crop")


def _row_reduce(kind: str, item: Any, lead: Sequence[int], length: int, lanes: int, name: str) -> Any:
    """Reduce `item(*lead, k)` over k in [0, length): whole vectors lane by lane, the rest singly, then across."""
    reduce = te.sum if kind == "sum" else te.max
    both = operator.add if kind == "sum" else te.max

    def pairwise(items: list[Any]) -> Any:
        half = len(items) // 2
        return both(pairwise(items[:half]), pairwise(items[half:])) if half else items[0]

    whole = length // lanes
    parts = []
    if whole:
        rv = te.reduce_axis((0, whole), "rv")
        by_lane = te.compute(
            (*lead, lanes), lambda *i: reduce(item(*i[:-1], rv * lanes + i[-1]), axis=rv), name=f"{name}_lanes"
        )
        parts.append(
            te.compute(tuple(lead), lambda *i: pairwise([by_lane(*i, a) for a in range(lanes)]), name=f"{name}_across")
        )
    if length % lanes:
        rt = te.reduce_axis((0, length % lanes), "rt")
        parts.append(
            te.compute(tuple(lead), lambda *i: reduce(item(*i, whole * lanes + rt), axis=rt), name=f"{name}_tail")
        )
    if len(parts) == 1:
        return parts[0]
    return te.compute(tuple(lead), lambda *i: both(parts[0](*i), parts[1](*i)), name=f"{name}_both")


def softmax(x: Any, *, lanes: int, log: bool = False) -> Any:
    """Softmax (or its logarithm) over the last axis of x (rows, length)."""
    rows, length = _shape(x)
    top = _row_reduce("max", lambda i, k: x[i, k], (rows,), length, lanes, "softmax_max")
    shifted = te.compute((rows, length), lambda i, j: exp_nonpositive_f32(x[i, j] - top[i]), name="softmax_exp")
    total = _row_reduce("sum", lambda i, k: shifted[i, k], (rows,), length, lanes, "softmax_sum")
    if log:
        shift = te.compute((rows,), lambda i: top[i] + te.log(total[i]), name="softmax_shift")
        return te.compute((rows, length), lambda i, j: x[i, j] - shift[i], name="softmax_out")
    inverse = te.compute((rows,), lambda i: tirx.const(1, x.dtype) / total[i], name="softmax_inverse")
    return te.compute((rows, length), lambda i, j: shifted[i, j] * inverse[i], name="softmax_out")


def softmax_strided(x: Any, *, log: bool = False) -> Any:
    """Softmax (or its logarithm) over the middle axis of x (outer, length, inner)."""
    outer, length, inner = _shape(x)
    r0, r1 = te.reduce_axis((0, length), "r0"), te.reduce_axis((0, length), "r1")
    top = te.compute((outer, inner), lambda o, i: te.max(x[o, r0, i], axis=r0), name="strided_max")
    shifted = te.compute(
        (outer, length, inner), lambda o, r, i: exp_nonpositive_f32(x[o, r, i] - top[o, i]), name="strided_exp"
    )
    total = te.compute((outer, inner), lambda o, i: te.sum(shifted[o, r1, i], axis=r1), name="strided_sum")
    if log:
        shift = te.compute((outer, inner), lambda o, i: top[o, i] + te.log(total[o, i]), name="strided_shift")
        return te.compute((outer, length, inner), lambda o, r, i: x[o, r, i] - shift[o, i], name="softmax_strided")
    inverse = te.compute((outer, inner), lambda o, i: tirx.const(1, x.dtype) / total[o, i], name="strided_inverse")
    return te.compute((outer, length, inner), lambda o, r, i: shifted[o, r, i] * inverse[o, i], name="softmax_strided")


def layer_norm(x: Any, gamma: Any, beta: Any, *, epsilon: float, lanes: int) -> Any:
    """Layer normalisation over the last axis of x (rows, length), the variance in a second pass (no cancellation)."""
    rows, length = _shape(x)
    scale, eps = tirx.const(1.0 / length, x.dtype), tirx.const(epsilon, x.dtype)
    total = _row_reduce("sum", lambda i, k: x[i, k], (rows,), length, lanes, "norm_sum")
    mean = te.compute((rows,), lambda i: total[i] * scale, name="norm_mean")
    centred = te.compute((rows, length), lambda i, j: x[i, j] - mean[i], name="norm_centred")
    square = _row_reduce("sum", lambda i, k: centred[i, k] * centred[i, k], (rows,), length, lanes, "norm_square")
    factor = te.compute(
        (rows,), lambda i: tirx.const(1, x.dtype) / te.sqrt(square[i] * scale + eps), name="norm_factor"
    )
    return te.compute((rows, length), lambda i, j: centred[i, j] * factor[i] * gamma[j] + beta[j], name="norm_out")


def attention(q: Any, k: Any, v: Any, mask: Any | None, *, scale: float, lanes: int) -> Any:
    """Scaled dot-product attention, the scores never written to memory.

    The heads lie inside the rows, as the dense layers before and after have them, so that nothing is transposed.

    Args:
        q: (B, M, H, D) float32.
        k: (B, N, H, D) float32.
        v: (B, N, H, E) float32.
        mask: added to the scores, (B or 1, H or 1, M or 1, N), or None.
        scale: factor on the scores.
        lanes: floats of a vector register.

    Returns:
        (B, M, H, E)
    """
    batch, m, heads, depth = _shape(q)
    n, width = _shape(v)[1], _shape(v)[3]
    rows, whole = padded_extent(m), -(-n // lanes)
    panels = whole + whole % 2 if whole > 3 else whole
    cols = panels * lanes
    factor = tirx.const(scale, "float32")

    def key(b: Any, h: Any, p: Any, r: Any, lane: Any) -> Any:
        return k[b, _clamp(p * lanes + lane, n, cols - 1), h, r]

    packed = te.compute((batch, heads, panels, depth, lanes), key, name="pack_panels")
    rd = te.reduce_axis((0, depth), "rd")
    dots = te.compute(
        (batch, heads, rows, cols),
        lambda b, h, i, j: te.sum(
            q[b, _clamp(i, m, rows - 1), h, rd] * packed[b, h, j // lanes, rd, j % lanes], axis=rd
        ),
        name="attention_scores",
    )
    # A factor that keeps the order can wait until the largest score is taken away.
    is_late = mask is None and scale > 0

    def score(b: Any, h: Any, i: Any, j: Any) -> Any:
        value = dots[b, h, i, j] if is_late else dots[b, h, i, j] * factor
        if mask is None:
            return value
        at = (b, h, _clamp(i, m, rows - 1), _clamp(j, n, whole * lanes - 1))
        return value + mask[tuple(0 if size == 1 else a for size, a in zip(_shape(mask), at, strict=True))]

    # Keys behind the last one repeat it: they change no maximum, and nothing else reads them.
    lead = (batch, heads, rows)
    masked = te.compute((*lead, whole * lanes), score, name="attention_masked")
    top = _row_reduce("max", lambda *i: masked[i], lead, whole * lanes, lanes, "attention_max")

    def exponential(*i: Any) -> Any:
        shifted = masked[i] - top[i[:-1]]
        return exp_nonpositive_f32(shifted * factor if is_late else shifted)

    weight = te.compute((*lead, whole * lanes), exponential, name="attention_exp")
    total = _row_reduce("sum", lambda *i: weight[i], lead, n, lanes, "attention_sum")
    inverse = te.compute(lead, lambda b, h, i: tirx.const(1, "float32") / total[b, h, i], name="attention_sum_inverse")
    share = te.compute((*lead, cols), lambda b, h, i, j: weight[b, h, i, j] * inverse[b, h, i], name="attention_share")
    rn = te.reduce_axis((0, n), "rn")
    acc = te.compute(
        (*lead, width), lambda b, h, i, e: te.sum(share[b, h, i, rn] * v[b, rn, h, e], axis=rn), name="attention"
    )
    return te.compute((batch, m, heads, width), lambda b, i, h, e: acc[b, h, i, e], name="crop")
