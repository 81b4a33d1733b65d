"""Winograd convolution: transforms beside the matrix products, so that what they exchange stays in the caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import Work, divisors, extent, finish_tile, lanes, tile_score

__all__ = ["Winograd"]

# What a core's L2 holds beside the rest.
_CACHE_BYTES = 1536 << 10


class Winograd:
    """Template of `winograd`.

    Decisions: `rows` (rows of tiles one task makes), `m` and `oc` (the register tile of the products: tiles and
    panels of output channels),
    `order` (0: a task transforms the tiles it needs and makes all their channels; 1: the input is transformed first,
    then a task makes `oc`
    panels).
    """

    name = "winograd"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the blocks of tiles, the register tiles and the orders."""
        size = _Size(work, self.name)
        return {
            "rows": divisors(size.rows, 14),
            "m": [m for m in divisors(size.rows * size.cols, 14) if m > 1] or [1],
            "oc": divisors(size.panels, 8),
            "order": [0, 1],
        }

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Pick what keeps the accumulators in registers, every core busy and the data in a core's cache."""
        size = _Size(work, self.name)

        def rate(choice: tuple[int, int, int, int]) -> tuple[float, int, int]:
            order, rows, m, panels = choice
            tasks = size.batch * (size.rows // rows) * (size.panels // panels if order else 1)
            busy = tasks / (-(-tasks // device.cores) * device.cores)
            held = size.weight_bytes + size.tile_bytes * rows * size.cols
            kept = 0.95 if order else 1.0 if held <= _CACHE_BYTES else 0.75
            return tile_score(m, panels, -(-size.lane // lanes(device)), device) * busy * kept, rows, m

        choices = [
            (order, rows, m, panels)
            for order in (0, 1)
            for rows in divisors(size.rows, 14)
            for m in divisors(rows * size.cols, 14)
            for panels in divisors(size.panels, 4)
        ]
        order, rows, m, panels = max(choices, key=rate)
        return {"rows": rows, "m": m, "oc": panels, "order": order}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Split the image into tasks, place the transforms in them, keep the products' accumulators in registers."""
        sch, size = work.sch, _Size(work, self.name)
        at = work.index(self.name + "_patch")
        patch, columns, data, anchor, back, tile_out = work.blocks[at : at + 6]
        *middle, out = work.blocks[at + 6 :]
        for block in middle:
            sch.compute_inline(block)
        acc = sch.cache_write(anchor, 0, "global")
        n, co, oh, ow, c = sch.get_loops(out)
        ty, p = sch.split(oh, [None, size.tile])
        tx, q = sch.split(ow, [None, size.tile])
        to, ti = sch.split(ty, [None, decisions["rows"]])
        panel, inner = sch.split(co, [None, decisions["oc"]])
        sch.reorder(n, to, panel, inner, ti, tx, p, q, c)
        task = sch.fuse(n, to) if decisions["order"] == 0 else sch.fuse(n, to, panel)
        sch.parallel(task)
        sch.compute_at(tile_out, tx, preserve_unit_loops=True)
        sch.compute_at(back, tx, preserve_unit_loops=True)
        for block in (back, tile_out):
            sch.set_scope(block, 0, "local")
        self._products(work, anchor, acc, panel if decisions["order"] == 0 else task, decisions)
        if decisions["order"] == 0:
            sch.compute_at(data, task, preserve_unit_loops=True)
        _transform(sch, data, columns, patch, is_parallel=decisions["order"] == 1)
        _finish(sch, back, tile_out, out, device)

    def _products(self, work: Work, anchor: Any, acc: Any, place: Any, decisions: Mapping[str, Any]) -> None:
        sch = work.sch
        sch.compute_at(acc, place, preserve_unit_loops=True)
        a, b, co, t, c = sch.get_loops(acc)[-5:]
        outer, inner = sch.split(t, [None, decisions["m"]])
        coo, coi = sch.split(co, [None, decisions["oc"]])
        sch.reorder(a, b, coo, outer, inner, coi, c)
        sch.vectorize(c)
        sch.compute_at(anchor, outer, preserve_unit_loops=True)
        sch.set_scope(anchor, 0, "local")
        *_, coi, t, c, rc, ri = sch.get_loops(anchor)
        sch.reorder(rc, ri, t, coi, c)
        sch.vectorize(c)
        sch.unroll(t)
        sch.unroll(coi)
        sch.decompose_reduction(anchor, rc)


def _transform(sch: Any, data: Any, columns: Any, patch: Any, is_parallel: bool) -> None:
    a, b, ci, t, lane = sch.get_loops(data)[-5:]
    sch.reorder(ci, t, a, b, lane)
    for block in (columns, patch):
        sch.compute_at(block, t, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
        sch.vectorize(sch.get_loops(block)[-1])
    if is_parallel:
        sch.parallel(sch.fuse(ci, t))
    sch.vectorize(lane)
    sch.unroll(b)
    a, j, _ = sch.get_loops(columns)[-3:]
    sch.reorder(j, a)
    sch.unroll(a)


def _finish(sch: Any, back: Any, tile_out: Any, out: Any, device: Device) -> None:
    p, b, c = sch.get_loops(back)[-3:]
    sch.reorder(b, p)
    sch.unroll(p)
    sch.vectorize(c)
    _, q, c = sch.get_loops(tile_out)[-3:]
    sch.unroll(q)
    sch.vectorize(c)
    finish_tile(sch, out, len(sch.get_loops(out)) - 1, lanes(device))


class _Size:
    """Extents of the kernel."""

    def __init__(self, work: Work, name: str) -> None:
        sch = work.sch
        blocks = {n: work.blocks[i] for i, n in enumerate(work.names)}
        a, _, co, tiles, lane, ci, ic = (extent(sch, loop) for loop in sch.get_loops(blocks[name]))
        back = [extent(sch, loop) for loop in sch.get_loops(blocks[name + "_back"])]
        last = [extent(sch, loop) for loop in sch.get_loops(work.blocks[-1])]
        self.tile, self.panels, self.lane = back[2], co, lane
        self.batch, self.rows, self.cols = last[0], -(-last[2] // self.tile), -(-last[3] // self.tile)
        self.weight_bytes = 4 * a * a * co * ci * ic * lane
        self.tile_bytes = 4 * a * a * (ci * ic + co * lane)
        assert tiles == self.batch * self.rows * self.cols
