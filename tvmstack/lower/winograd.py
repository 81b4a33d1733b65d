"""Winograd convolution F(m x m, 3 x 3) in blocked layout: fewer multiplications, a few more digits of error.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016: an output tile of m x m is A^T [U * V] A with
U = G g G^T of
the weights (made at compile time in float64) and V = B^T d B of the (m + 2) x (m + 2) inputs below it; the
element-wise product, summed over the channels, is (m + 2)^2 independent matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import te, tirx

__all__ = ["TILES", "conv2d_winograd", "transforms", "winograd_weight"]

TILES = (2, 4)
"""Output tiles there are: F(2x2, 3x3) saves 2.25, F(4x4, 3x3) saves 4 times the multiplications."""

# Interpolation points beside infinity. Small ones of mixed sign keep the transforms well conditioned.
_POINTS: dict[int, tuple[float, ...]] = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 0.5, -2.0)}
_TAPS = 3


def transforms(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A^T (tile, n), G (n, 3) and B^T (n, n), float64, of F(tile, 3) with n = tile + 2, by Toom and Cook.

    With a point p_i the rows of A^T and G are its powers; G is scaled by the Lagrange weight of p_i, and B^T is what
    makes A^T [(G g) * (B^T d)] the correlation of d with g.
    """
    points = _POINTS[tile]
    n = tile + _TAPS - 1
    at = np.zeros((tile, n))
    g = np.zeros((n, _TAPS))
    for i, p in enumerate(points):
        at[:, i] = [p**k for k in range(tile)]
        weight = np.prod([p - q for q in points if q != p])
        g[i] = [p**k / weight for k in range(_TAPS)]
    at[tile - 1, n - 1] = g[n - 1, _TAPS - 1] = 1.0
    # sum over i of at[y, i] * g[i, k] * bt[i, x] is 1 where x == y + k, else 0: linear equations for each column of bt
    left = np.einsum("yi,ik->yki", at, g).reshape(tile * _TAPS, n)
    right = np.zeros((tile, _TAPS, n))
    for y in range(tile):
        for k in range(_TAPS):
            right[y, k, y + k] = 1.0
    bt = np.linalg.lstsq(left, right.reshape(tile * _TAPS, n), rcond=None)[0]
    return at, g, np.asarray(bt.round(12))


def winograd_weight(weight: np.ndarray, tile: int, ic: int, oc: int) -> np.ndarray:
    """(O, I, 3, 3) -> (n, n, ceil(O/oc), ceil(I/ic), ic, oc), transformed in float64, padded with zeros."""
    _, g, _ = transforms(tile)
    o, i = weight.shape[:2]
    made = np.einsum("ay,oiyx,bx->aboi", g, weight.astype(np.float64), g)
    made = np.pad(made, ((0, 0), (0, 0), (0, -o % oc), (0, -i % ic)))
    n = tile + _TAPS - 1
    blocks = made.reshape(n, n, -(-o // oc), oc, -(-i // ic), ic).transpose(0, 1, 2, 4, 5, 3)
    return np.ascontiguousarray(blocks.astype(weight.dtype))


def conv2d_winograd(x: Any, weight: Any, *, pads: Sequence[int], tile: int) -> Any:
    """Convolution of 3 x 3 taps, stride 1, one group.

    Args:
        x: (N, I/ic, H, W, ic) float32.
        weight: (n, n, O/oc, I/ic, ic, oc) by `winograd_weight`.
        pads: top, left, bottom, right.
        tile: m, the side of an output tile.

    Returns:
        (N, O/oc, OH, OW, oc)
    """
    batch, ci, h, w, ic = (int(d) for d in x.shape)
    n, _, co, _, _, oc = (int(d) for d in weight.shape)
    top, left, bottom, right = pads
    oh, ow = h + top + bottom - 2, w + left + right - 2
    rows, cols = -(-oh // tile), -(-ow // tile)
    tiles = batch * rows * cols
    at, _, bt = transforms(tile)

    def patch_item(t: Any, c: Any, i: Any, j: Any, lane: Any) -> Any:
        y, xx = t // cols % rows * tile + i - top, t % cols * tile + j - left
        inside = tirx.all(y >= 0, y < h, xx >= 0, xx < w)
        return tirx.if_then_else(inside, x[t // (rows * cols), c, y, xx, lane], tirx.const(0, x.dtype))

    patch = te.compute((tiles, ci, n, n, ic), patch_item, name="winograd_patch")
    half = te.compute(
        (tiles, ci, n, n, ic),
        lambda t, c, a, j, lane: _rows_of(bt, a, lambda i: patch[t, c, i, j, lane]),
        name="winograd_columns",
    )
    data = te.compute(
        (n, n, ci, tiles, ic),
        lambda a, b, c, t, lane: _rows_of(bt, b, lambda j: half[t, c, a, j, lane]),
        name="winograd_input",
    )
    rc, ri = te.reduce_axis((0, ci), "rc"), te.reduce_axis((0, ic), "ri")
    product = te.compute(
        (n, n, co, tiles, oc),
        lambda a, b, o, t, c: te.sum(data[a, b, rc, t, ri] * weight[a, b, o, rc, ri, c], axis=[rc, ri]),
        name="winograd",
    )
    back = te.compute(
        (co, tiles, tile, n, oc),
        lambda o, t, p, b, c: _rows_of(at, p, lambda a: product[a, b, o, t, c]),
        name="winograd_back",
    )
    out = te.compute(
        (co, tiles, tile, tile, oc),
        lambda o, t, p, q, c: _rows_of(at, q, lambda b: back[o, t, p, b, c]),
        name="winograd_output",
    )
    return te.compute(
        (batch, co, oh, ow, oc),
        lambda b, o, y, xx, c: out[o, (b * rows + y // tile) * cols + xx // tile, y % tile, xx % tile, c],
        name="crop",
    )


def _rows_of(matrix: np.ndarray, row: Any, item: Callable[[int], Any]) -> Any:
    """Return row `row` of `matrix` times the vector `item`; the choice of the row folds where its loop is unrolled."""
    value = _combine(matrix[-1], item)
    for index in range(len(matrix) - 2, -1, -1):
        value = tirx.Select(row == index, _combine(matrix[index], item), value)
    return value


def _combine(weights: np.ndarray, item: Callable[[int], Any]) -> Any:
    """Return the sum of `weights[i] * item(i)`, zeros left out, ones not multiplied."""
    total: Any = None
    for index, weight in enumerate(weights):
        if weight == 0:
            continue
        term = item(index) if abs(weight) == 1 else item(index) * tirx.const(abs(float(weight)), "float32")
        if total is None:
            total = term if weight > 0 else tirx.const(0, "float32") - term
        else:
            total = total + term if weight > 0 else total - term
    return total
