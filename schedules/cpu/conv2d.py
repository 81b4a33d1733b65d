"""Direct convolution in NCHWc: a register tile of rows x columns x output panels inside the reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import (
    BYTES_THAT_REPAY_BLOCKS,
    READS_THAT_REPAY_BLOCKS,
    Work,
    divisors,
    extent,
    finish_tile,
    flatten_parallel,
    fuse_epilogue,
    lanes,
    most_tiles,
    reduction_blocks,
    tile_score,
    worth_parallel,
)

__all__ = ["Conv2d", "Depthwise"]


class Conv2d:
    """Template of `conv2d_nchwc`.

    Decisions: `oh`, `ow`, `oc` (the register tile: rows, columns, panels of output channels); `order` (0: panels,
    then rows
    are the parallel loop; 1: rows, then panels; 2: rows are parallel and panels run inside; 0 where the weights are
    larger than the images, 1 or 2 elsewhere: alone, a kernel does not show what finding its rows in its own core's
    cache is worth); `k` (0: the whole
    reduction in registers; else input panels of a block that all rows of a task pass before the next); `pad` (0: the
    padded input is
    made once, in parallel; 1: each task pads the rows it reads).
    """

    name = "conv2d_nchwc"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the tiles that fit the registers, the loop orders and, where there is padding, its place."""
        _, co, oh, ow, _ = _spatial(work, self.name)
        found = {
            "oh": divisors(oh, 7),
            "ow": divisors(ow, 28),
            "oc": divisors(co, 8),
            "order": [1, 2] if self._by_rows(work) else [0],
            "k": [0, *self._blocks(work)],
        }
        if any(n.startswith("pad_input") for n in work.names):
            found["pad"] = [0, 1]
        return found

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Pick the tile of the best score that leaves every core something to do."""
        n, co, oh, ow, c = _spatial(work, self.name)
        width = -(-c // lanes(device))

        def rate(tile: tuple[int, int, int]) -> tuple[float, int]:
            rows, cols, panels = tile
            tasks = n * (oh // rows) * (co // panels)
            busy = min(1.0, tasks / (-(-tasks // device.cores) * device.cores))
            return tile_score(rows * cols, panels, width, device) * busy, cols

        tiles = [(r, w, p) for r in divisors(oh, 4) for w in divisors(ow, 28) for p in divisors(co, 8)]
        rows, cols, panels = max(tiles, key=rate)
        steps = self._steps(work)
        total = 4 * co * c * steps * extent(work.sch, work.sch.get_loops(work.blocks[work.index(self.name)])[5])
        is_read_often = (oh // rows) * (ow // cols) >= READS_THAT_REPAY_BLOCKS
        blocks = self._blocks(work) if total >= BYTES_THAT_REPAY_BLOCKS and is_read_often else []
        depth = min(blocks, key=lambda d: abs(d * steps - 128), default=0)
        decisions = {"oh": rows, "ow": cols, "oc": panels, "order": int(self._by_rows(work)), "k": depth}
        if any(name.startswith("pad_input") for name in work.names):
            decisions["pad"] = 0 if co // panels > 1 else 1
        return decisions

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Tile, place the epilogue in the tile, place the padding."""
        sch, anchor = work.sch, work.blocks[work.index(self.name)]
        out = fuse_epilogue(work, work.index(self.name))
        sch.set_scope(anchor, 0, "local")
        is_parallel = worth_parallel(sch, anchor)
        n, co, oh, ow, c, rc, ry, rx, ri = sch.get_loops(anchor)
        wo, wi = sch.split(ow, [None, decisions["ow"]])
        ho, hi = sch.split(oh, [None, decisions["oh"]])
        coo, coi = sch.split(co, [None, decisions["oc"]])
        steps = [wo, rc, ry, rx, ri]
        if decisions["k"]:
            tile_bytes = 4 * decisions["oh"] * decisions["oc"] * decisions["ow"] * extent(sch, c)
            cols = most_tiles(extent(sch, wo), tile_bytes)
            rows = most_tiles(extent(sch, ho), tile_bytes * cols) if cols == extent(sch, wo) else 1
            wo, wt = sch.split(wo, [None, cols])
            ho, ht = sch.split(ho, [None, rows])
            rc, rt = sch.split(rc, [None, decisions["k"]])
            steps = [wo, rc, ht, wt, rt, ry, rx, ri]
        outer = [n, coo, ho] if decisions["order"] == 0 else [n, ho, coo]
        sch.reorder(*outer, *steps, hi, wi, coi, c)
        serial = outer[2:] if decisions["order"] == 2 else []
        fused = sch.fuse(*outer[: 3 - len(serial)])
        if is_parallel:
            sch.parallel(fused)
        place = [fused, *serial, wo]
        sch.reverse_compute_at(out, place[-1])
        finish_tile(sch, out, len(place), lanes(device))
        _vectorise_panel(sch, c, (hi, wi, coi))
        sch.decompose_reduction(anchor, rc)
        _place_padding(work, fused, decisions.get("pad", 0))

    def _by_rows(self, work: Work) -> bool:
        """Whether the images are larger than the weights: a core then finds what it wrote in its own cache."""
        n, co, oh, ow, c = _spatial(work, self.name)
        inputs, *_, lanes_in = (extent(work.sch, r) for r in work.sch.get_loops(work.blocks[work.index(self.name)])[5:])
        return n * oh * ow * (co * c + inputs * lanes_in) > co * c * inputs * self._steps(work)

    def _blocks(self, work: Work) -> list[int]:
        """Return how many input panels may make a block of the reduction."""
        sch, anchor = work.sch, work.blocks[work.index(self.name)]
        return reduction_blocks(extent(sch, sch.get_loops(anchor)[5]), self._steps(work))

    def _steps(self, work: Work) -> int:
        """Return the steps of the reduction over one input panel."""
        loops = work.sch.get_loops(work.blocks[work.index(self.name)])[6:]
        return math.prod(extent(work.sch, loop) for loop in loops)


# Convolutions beside a depthwise one with C channels have about C / 6 on their other side; their weights outweigh
# their images below C / 8 points.
_CHANNELS_A_POINT = 8


class Depthwise:
    """Template of `depthwise_nchwc`: `oh` x `ow` accumulators of one channel panel; `pad` as in `Conv2d`.

    `order` (0: panels, then rows; 1: rows, then panels) follows the convolutions beside it.
    """

    name = "depthwise_nchwc"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the tiles that fit the registers."""
        _, _, oh, ow, _ = _spatial(work, self.name)
        found = {"oh": divisors(oh, 4), "ow": divisors(ow, 28), "order": [self._order(work)]}
        if any(n.startswith("pad_input") for n in work.names):
            found["pad"] = [0, 1]
        return found

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Pick the widest tile of up to 14 accumulators."""
        _, _, _, ow, c = _spatial(work, self.name)
        limit = max(1, (device.vector_registers // 2 - 2) // -(-c // lanes(device)))
        decisions = {"oh": 1, "ow": max(divisors(ow, limit)), "order": self._order(work)}
        if any(n.startswith("pad_input") for n in work.names):
            decisions["pad"] = 1
        return decisions

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Tile, place the epilogue in the tile, place the padding."""
        sch, anchor = work.sch, work.blocks[work.index(self.name)]
        out = fuse_epilogue(work, work.index(self.name))
        sch.set_scope(anchor, 0, "local")
        is_parallel = worth_parallel(sch, anchor)
        n, co, oh, ow, c, ry, rx = sch.get_loops(anchor)
        wo, wi = sch.split(ow, [None, decisions["ow"]])
        ho, hi = sch.split(oh, [None, decisions["oh"]])
        sch.reorder(n, co, ho, wo, ry, rx, hi, wi, c)
        outer = [n, ho, co] if decisions["order"] else [n, co, ho]
        sch.reorder(*outer)
        fused = sch.fuse(*outer)
        if is_parallel:
            sch.parallel(fused)
        sch.reverse_compute_at(out, wo)
        finish_tile(sch, out, 2, lanes(device))
        _vectorise_panel(sch, c, (hi, wi))
        if extent(sch, rx) <= 5:
            sch.unroll(rx)
        sch.decompose_reduction(anchor, ry)
        _place_padding(work, fused, decisions.get("pad", 0))

    def _order(self, work: Work) -> int:
        _, co, oh, ow, c = _spatial(work, self.name)
        return int(oh * ow * _CHANNELS_A_POINT >= co * c)


def _spatial(work: Work, name: str) -> tuple[int, int, int, int, int]:
    loops = work.sch.get_loops(work.blocks[work.index(name)])[:5]
    n, co, oh, ow, c = (extent(work.sch, loop) for loop in loops)
    return n, co, oh, ow, c


def _vectorise_panel(sch: Any, panel: Any, tile: tuple[Any, ...]) -> None:
    if extent(sch, panel) > 1:
        sch.vectorize(panel)
    for loop in tile:
        sch.unroll(loop)


def _place_padding(work: Work, fused: Any, inside: int) -> None:
    index = work.index("pad_input")
    if index < 0:
        return
    sch, block = work.sch, work.blocks[index]
    if inside:
        sch.compute_at(block, fused)
        last = sch.get_loops(block)[-1]
        if 1 < extent(sch, last) <= 64:
            sch.vectorize(last)
        return
    last = sch.get_loops(block)[-1]
    flatten_parallel(sch, block, keep=2)
    if 1 < extent(sch, last) <= 64:
        sch.vectorize(last)
