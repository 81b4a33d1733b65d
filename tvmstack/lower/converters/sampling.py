"""Operators that read a picture at computed places: GridSample, AffineGrid, RoiAlign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import relax, te, tirx
from tvmstack.lower.converters._context import Context, Converter, Expr, cast, const, dtype_of, shape_of, widened

__all__ = ["CONVERTERS"]

_op = relax.op
_CUBIC = -0.75
# Places farther out than this are as good as infinite; the bound keeps the conversion to int32 defined, even of NaN.
_FAR = 1.0e7


def _grid_sample(ctx: Context) -> Expr:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(ctx.attr("mode", "linear"), ctx.attr("mode", "linear"))
    padding, align = ctx.attr("padding_mode", "zeros"), bool(ctx.attr("align_corners", 0))

    def sample(x: Expr, grid: Expr) -> Expr:
        return ctx.te(
            lambda data, places: _sample_compute(data, places, mode, padding, align), x, grid, name="grid_sample"
        )

    dtype = ctx.dtype()
    grid = ctx.emit(cast(ctx.input(1), dtype))
    return widened(ctx, sample, ctx.input(0), grid)


def _sample_compute(data: Any, grid: Any, mode: str, padding: str, align: bool) -> Any:
    dims = [int(d) for d in data.shape[2:]]
    rank, dtype = len(dims), str(data.dtype)
    out = (*data.shape[:2], *grid.shape[1:-1])
    f = _float_maker(dtype)

    def at(n: Any, c: Any, *index: Any) -> Any:
        # The grid's last axis counts from the innermost spatial axis outwards.
        places = [_unnormalised(grid(n, *index, rank - 1 - i), dims[i], align, f) for i in range(rank)]
        if mode != "cubic" and padding != "zeros":
            places = [_moved_inside(p, d, padding, align, f) for p, d in zip(places, dims, strict=True)]
        bounded = [tirx.max(tirx.min(p, f(_FAR)), f(-_FAR)) for p in places]
        read = _reader(data, n, c, dims, padding, align, f)
        if mode == "nearest":
            return read([tirx.nearbyint(p) for p in bounded])
        taps = [_cubic_taps(p, f) if mode == "cubic" else _linear_taps(p, f) for p in bounded]
        return _tensor_product(taps, read)

    return te.compute(out, at, name="grid_sample")


def _float_maker(dtype: str) -> Callable[[float], Any]:
    return lambda value: tirx.const(value, dtype)


def _unnormalised(value: Any, dim: int, align: bool, f: Callable[[float], Any]) -> Any:
    if align:
        return (value + f(1)) * f(0.5) * f(dim - 1)
    return ((value + f(1)) * f(dim) - f(1)) * f(0.5)


def _moved_inside(place: Any, dim: int, padding: str, align: bool, f: Callable[[float], Any]) -> Any:
    if padding == "border":
        return tirx.max(tirx.min(place, f(dim - 1)), f(0))
    low, high = (0.0, dim - 1.0) if align else (-0.5, dim - 0.5)
    return tirx.max(tirx.min(_reflected(place, low, high, f), f(dim - 1)), f(0))


def _reflected(place: Any, low: float, high: float, f: Callable[[float], Any]) -> Any:
    span = high - low
    if span <= 0:
        return f(0)
    distance = tirx.abs(place - f(low))
    periods = tirx.floor(distance / f(span))
    rest = distance - periods * f(span)
    even = (periods * f(0.5)) == tirx.floor(periods * f(0.5))
    return tirx.Select(even, rest + f(low), f(high) - rest)


def _reader(
    data: Any, n: Any, c: Any, dims: Sequence[int], padding: str, align: bool, f: Callable[[float], Any]
) -> Callable[[list[Any]], Any]:
    def read(places: list[Any]) -> Any:
        if padding == "reflection":
            low_high = [(0.0, d - 1.0) if align else (-0.5, d - 0.5) for d in dims]
            places = [_reflected(p, lo, hi, f) for p, (lo, hi) in zip(places, low_high, strict=True)]
        cells = [p.astype("int32") for p in places]
        safe = [tirx.max(tirx.min(cell, d - 1), 0) for cell, d in zip(cells, dims, strict=True)]
        value = data(n, c, *safe)
        if padding != "zeros":
            return value
        inside = tirx.all(*(t for cell, d in zip(cells, dims, strict=True) for t in (cell >= 0, cell < d)))
        return tirx.Select(inside, value, f(0))

    return read


def _linear_taps(place: Any, f: Callable[[float], Any]) -> list[tuple[Any, Any]]:
    low = tirx.floor(place)
    rest = place - low
    return [(low, f(1) - rest), (low + f(1), rest)]


def _cubic_taps(place: Any, f: Callable[[float], Any]) -> list[tuple[Any, Any]]:
    low = tirx.floor(place)
    rest = place - low
    a = _CUBIC

    def near(d: Any) -> Any:
        return (f(a + 2) * d - f(a + 3)) * d * d + f(1)

    def far(d: Any) -> Any:
        return ((f(a) * d - f(5 * a)) * d + f(8 * a)) * d - f(4 * a)

    return [
        (low - f(1), far(rest + f(1))),
        (low, near(rest)),
        (low + f(1), near(f(1) - rest)),
        (low + f(2), far(f(2) - rest)),
    ]


def _tensor_product(taps: Sequence[list[tuple[Any, Any]]], read: Callable[[list[Any]], Any]) -> Any:
    def walk(axis: int, places: list[Any]) -> Any:
        if axis == len(taps):
            return read(places)
        total = None
        for place, weight in taps[axis]:
            term = walk(axis + 1, [*places, place]) * weight
            total = term if total is None else total + term
        return total

    return walk(0, [])


def _affine_grid(ctx: Context) -> Expr:
    theta, size = ctx.input(0), ctx.ints(1)
    dims, align = size[2:], bool(ctx.attr("align_corners", 0))
    lines = []
    for d in dims:
        steps = np.arange(d, dtype=np.float64)
        lines.append((2 * steps / (d - 1) - 1 if d > 1 else np.zeros(1)) if align else (2 * steps + 1) / d - 1)
    mesh = np.meshgrid(*lines, indexing="ij")
    base = np.stack([m.reshape(-1) for m in reversed(mesh)] + [np.ones(mesh[0].size)], -1)

    def product(t: Expr) -> Expr:
        rank = len(dims)
        turned = ctx.emit(_op.permute_dims(t, [0, 2, 1]))
        flat = ctx.emit(_op.matmul(const(base, dtype_of(t)), turned))
        return _op.reshape(flat, (shape_of(t)[0], *dims, rank))

    return widened(ctx, product, theta)


def _roi_align(ctx: Context) -> Expr:
    out = (int(ctx.attr("output_height", 1)), int(ctx.attr("output_width", 1)))
    ratio, scale = int(ctx.attr("sampling_ratio", 0)), float(ctx.attr("spatial_scale", 1.0))
    half = (
        ctx.attr("coordinate_transformation_mode", "half_pixel" if ctx.opset >= 16 else "output_half_pixel")
        == "half_pixel"
    )

    def align(x: Expr, rois: Expr) -> Expr:
        def compute(data: Any, boxes: Any, batches: Any) -> Any:
            return _roi_compute(data, boxes, batches, out, ratio, scale, half)

        return ctx.te(compute, x, rois, ctx.input(2), name="roi_align")

    return widened(ctx, align, ctx.input(0), ctx.input(1))


def _roi_compute(
    data: Any, boxes: Any, batches: Any, out: tuple[int, int], ratio: int, scale: float, half: bool
) -> Any:
    dtype = str(data.dtype)
    dims = [int(d) for d in data.shape[2:]]
    f = _float_maker(dtype)
    iy, ix = te.reduce_axis((0, ratio), "iy"), te.reduce_axis((0, ratio), "ix")
    offset = f(0.5 if half else 0.0)

    def place(r: Any, axis: int, cell: Any, sample: Any) -> Any:
        start = boxes(r, 1 - axis) * f(scale) - offset
        size = boxes(r, 3 - axis) * f(scale) - offset - start
        size = size if half else tirx.max(size, f(1))
        step = size / f(out[axis])
        return start + tirx.Cast(dtype, cell) * step + (tirx.Cast(dtype, sample) + f(0.5)) * step / f(ratio)

    def at(r: Any, c: Any, y: Any, x: Any) -> Any:
        places = [place(r, 0, y, iy.var), place(r, 1, x, ix.var)]
        outside = tirx.any(*(t for p, d in zip(places, dims, strict=True) for t in (p < f(-1), p > f(d))))
        taps = []
        for p, d in zip(places, dims, strict=True):
            inner = tirx.min(tirx.max(p, f(0)), f(d - 1))
            taps.append(_linear_taps(inner, f))

        def read(cells: list[Any]) -> Any:
            safe = [tirx.max(tirx.min(cell.astype("int32"), d - 1), 0) for cell, d in zip(cells, dims, strict=True)]
            return data(batches(r), c, *safe)

        return te.sum(tirx.Select(outside, f(0), _tensor_product(taps, read)) * f(1.0 / (ratio * ratio)), axis=[iy, ix])

    return te.compute((boxes.shape[0], data.shape[1], *out), at, name="roi_align")


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "AffineGrid"): _affine_grid,
    ("", "GridSample"): _grid_sample,
    ("", "RoiAlign"): _roi_align,
}
