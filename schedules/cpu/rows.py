"""Kernels that go over rows: softmax, normalisation, attention; a row's stages run while it is in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import PARALLEL_GRAIN, Fixed, Work, divisors, extent, finish_tile, lanes, tile_score

__all__ = ["Attention", "RowNorm", "StridedSoftmax"]


class RowNorm(Fixed):
    """Template of `softmax_out` and `norm_out`: rows in parallel, every stage of a row inside its iteration."""

    def __init__(self, name: str) -> None:
        self.name = name

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Compute each stage at the row loop of the last one."""
        sch, index = work.sch, work.index(self.name)
        stages = [i for i in range(index) if work.names[i].startswith(("softmax", "norm", "row_"))]
        for i in range(index):
            if i not in stages:
                sch.compute_inline(work.blocks[i])
        for block in work.blocks[index:-1]:
            sch.compute_inline(block)
        out = work.blocks[-1]
        row, *_ = sch.get_loops(out)
        size = 1
        for loop in sch.get_loops(out):
            size *= extent(sch, loop)
        if size * 4 >= PARALLEL_GRAIN and extent(sch, row) > 1:
            sch.parallel(row)
        for i in reversed(stages):
            self._stage(sch, work.blocks[i], work.names[i], row, lanes(device))
        _vectorise_columns(sch, out, lanes(device))

    def _stage(self, sch: Any, block: Any, name: str, row: Any, width: int) -> None:
        sch.compute_at(block, row)
        if "_lanes" in name:
            _vectorise_lanes(sch, block, sch.get_loops(block)[1:])
        elif name.endswith(("_exp", "_centred")):
            _vectorise_columns(sch, block, width)


def _vectorise_columns(sch: Any, block: Any, width: int) -> None:
    """Make vectors of a row's columns where they are whole ones; by itself LLVM makes them half as wide."""
    if int(sch.get(block).iter_vars[-1].dom.extent) % width == 0:
        finish_tile(sch, block, 1, width)


def _vectorise_lanes(sch: Any, block: Any, loops: list[Any]) -> None:
    """Reduce lane by lane: the reduction outside, the lanes in one vector; a reduction over one vector has no loop."""
    if int(sch.get(block).iter_vars[-1].dom.extent) == 1:
        if loops and extent(sch, loops[-1]) > 1:
            sch.vectorize(loops[-1])
        return
    *_, lane, reduce = loops
    sch.reorder(reduce, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(block, reduce)


class StridedSoftmax(Fixed):
    """Template of `softmax_strided`: chunks of the inner axis, every stage of a chunk inside its iteration."""

    name = "softmax_strided"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Compute each stage at the chunk of the last one."""
        sch, index = work.sch, work.index(self.name)
        stages = [i for i in range(index) if work.names[i].startswith("strided")]
        for i in range(index):
            if i not in stages:
                sch.compute_inline(work.blocks[i])
        for block in work.blocks[index:-1]:
            sch.compute_inline(block)
        out = work.blocks[-1]
        loops = sch.get_loops(out)
        if len(loops) != 3:
            return
        outer, length, inner = loops
        chunk = max(divisors(extent(sch, inner), 256))
        io, ii = sch.split(inner, [None, chunk])
        sch.reorder(outer, io, length, ii)
        at = sch.fuse(outer, io)
        if extent(sch, at) > 1:
            sch.parallel(at)
        for i in reversed(stages):
            sch.compute_at(work.blocks[i], at)
            kinds = [int(v.iter_type) for v in sch.get(work.blocks[i]).iter_vars]
            tail = sch.get_loops(work.blocks[i])[1:]
            if 2 in kinds and len(tail) == 2:
                sch.reorder(tail[1], tail[0])
                sch.decompose_reduction(work.blocks[i], tail[1])


class Attention:
    """Template of `attention`: a tile of `m` query rows at a time, its scores kept in the cache and never written out.

    Decisions: `m` (rows of a tile), `n` (panels of keys in one register tile of the scores), `e` (vectors of the
    values in one register tile of the result).
    """

    name = "attention"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the tiles of rows, keys and values."""
        rows, panels, vectors = self._extents(work, device)
        return {"m": divisors(rows, 16), "n": divisors(panels, 4), "e": divisors(vectors, 4)}

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Pick the tile that suits both products."""
        rows, panels, vectors = self._extents(work, device)

        def rate(tile: tuple[int, int, int]) -> float:
            m, n, e = tile
            return tile_score(m, n, 1, device) + tile_score(m, e, 1, device)

        tiles = [(m, n, e) for m in divisors(rows, 16) for n in divisors(panels, 4) for e in divisors(vectors, 4)]
        m, n, e = max(tiles, key=rate)
        return {"m": m, "n": n, "e": e}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Tile the rows; compute every stage of a tile inside its iteration."""
        sch, size = work.sch, lanes(device)
        index = dict(zip(work.names, work.blocks, strict=True))
        anchor = index[self.name]
        others = [n for n in work.names if not n.startswith(("attention", "pack_panels"))]
        out = index[others[-1]]
        for name in others[:-1]:
            sch.compute_inline(index[name])
        sch.compute_inline(index["attention_masked"])
        b, h, i, e, rn = sch.get_loops(anchor)
        io, ii = sch.split(i, [None, decisions["m"]])
        lane = size if extent(sch, e) % size == 0 else extent(sch, e)
        eo, em, ei = sch.split(e, [None, decisions["e"], lane])
        sch.reorder(b, h, io, eo, rn, ii, em, ei)
        tile = sch.fuse(b, h, io)
        sch.parallel(tile)
        sch.set_scope(anchor, 0, "local")
        sch.reverse_compute_at(out, tile)
        finish_tile(sch, out, 1, lane)
        for loop in (ii, em):
            sch.unroll(loop)
        sch.vectorize(ei)
        self._softmax(sch, work, tile, size)
        self._scores(sch, index["attention_scores"], tile, decisions["n"], size)
        sch.decompose_reduction(anchor, rn)
        self._pack(sch, index["pack_panels"])

    def _softmax(self, sch: Any, work: Work, tile: Any, size: int) -> None:
        order = ("attention_max", "attention_exp", "attention_sum", "attention_share")
        stages = [n for prefix in order for n in work.names if n.startswith(prefix)]
        for name in reversed(stages):
            block = work.blocks[work.names.index(name)]
            sch.compute_at(block, tile)
            loops = sch.get_loops(block)[1:]
            if name in ("attention_exp", "attention_share") and loops:
                _, inner = sch.split(loops[-1], [None, size])
                sch.vectorize(inner)
            elif "_lanes" in name:
                _vectorise_lanes(sch, block, loops)

    def _scores(self, sch: Any, block: Any, tile: Any, panels: int, size: int) -> None:
        copy = sch.cache_write(block, 0, "local")
        sch.compute_at(copy, tile)
        rows, cols = sch.get_loops(copy)[-2:]
        jo, ji, jv = sch.split(cols, [None, panels, size])
        sch.reorder(jo, rows, ji, jv)
        sch.compute_at(block, jo)
        *_, i, j, rd = sch.get_loops(block)
        inner, lane = sch.split(j, [None, size])
        sch.reorder(rd, i, inner, lane)
        for loop in (i, inner, rows, ji):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.vectorize(jv)
        sch.decompose_reduction(block, rd)

    def _pack(self, sch: Any, block: Any) -> None:
        b, h, p, r, lane = sch.get_loops(block)
        sch.reorder(b, h, p, lane, r)
        sch.parallel(sch.fuse(b, h, p))

    def _extents(self, work: Work, device: Device) -> tuple[int, int, int]:
        """Return the rows, the panels of keys and the vectors of a value."""
        scores = work.blocks[work.index("attention_scores")]
        *_, i, j, _ = work.sch.get_loops(scores)
        anchor = work.blocks[work.names.index(self.name)]
        width, size = extent(work.sch, work.sch.get_loops(anchor)[3]), lanes(device)
        return extent(work.sch, i), extent(work.sch, j) // size, max(1, width // size if width % size == 0 else 1)
