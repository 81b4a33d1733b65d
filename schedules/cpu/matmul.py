"""Matrix products: packed weights (`dense`) and two computed operands (`batch_matmul`), one loop nest for both."""

from __future__ import annotations

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

__all__ = ["BatchMatmul", "Dense"]


class Dense:
    """Template of `dense`: X (M, K) times weights packed in panels.

    Decisions: `m`, `n` (the register tile: rows and panels), `order` (0: panels outermost, each read once from
    memory; 1: rows outermost; 2: a share of the rows for each core, panels outermost inside; 0 where the weights are
    larger than the rows, 1 or 2 elsewhere: alone, a kernel does not show what finding its rows in its own core's cache
    is worth), `k` (0: the whole reduction in registers; else steps of a block that all rows of a task pass before
    the next: the panel's block stays in L1 and its successor is fetched meanwhile).
    """

    name = "dense"
    _batch = 0

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the tiles, the loop orders and the unrolling."""
        rows, panels, _ = self._extents(work, device)
        depth, orders = reduction_blocks(self._depth(work)), [1, 2] if self._by_rows(work, device) else [0]
        return {"m": divisors(rows, 28), "n": divisors(panels, 8), "order": orders, "k": [0, *depth]}

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Pick the tile of the best score that leaves every core something to do."""
        rows, panels, width = self._extents(work, device)
        vectors, by_rows = -(-width // lanes(device)), self._by_rows(work, device)

        def rate(tile: tuple[int, int]) -> tuple[float, int]:
            tasks = (rows // tile[0]) * (1 if by_rows else panels // tile[1])
            busy = min(1.0, tasks / (-(-tasks // device.cores) * device.cores))
            return tile_score(tile[0], tile[1], vectors, device) * busy, tile[1]

        m, n = max(((m, n) for m in divisors(rows, 28) for n in divisors(panels, 8)), key=rate)
        total, is_read_often = 4 * panels * width * self._depth(work), rows // m >= READS_THAT_REPAY_BLOCKS
        depth = reduction_blocks(self._depth(work)) if total >= BYTES_THAT_REPAY_BLOCKS and is_read_often else []
        return {"m": m, "n": n, "order": 2 if by_rows else 0, "k": min(depth, key=lambda d: abs(d - 128), default=0)}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Tile and place the epilogue in the tile."""
        sch, anchor = work.sch, work.blocks[work.index(self.name)]
        _, _, width = self._extents(work, device)
        out = fuse_epilogue(work, work.index(self.name))
        columns = int(sch.get(out).iter_vars[-1].dom.extent)
        sch.set_scope(anchor, 0, "local")
        is_parallel = worth_parallel(sch, anchor)
        *batch, i, j, k = sch.get_loops(anchor)
        io, ii = sch.split(i, [None, decisions["m"]])
        jo, ji, jv = sch.split(j, [None, decisions["n"], width])
        k, *inner = sch.split(k, [None, decisions["k"]]) if decisions["k"] else [k]
        shares = []
        if decisions["order"] == 2:
            *shares, io = sch.split(io, [_shares(extent(sch, io), device.cores), None])
        if decisions["k"]:
            row_bytes = 4 * decisions["m"] * decisions["n"] * width
            io, it = sch.split(io, [None, most_tiles(extent(sch, io), row_bytes)])
            inner = [it, *inner]
        outer = [io, jo] if decisions["order"] == 1 else [jo, io]
        sch.reorder(*batch, *shares, *outer, k, *inner, ii, ji, jv)
        if shares:
            fused, place = sch.fuse(*batch, *shares), sch.fuse(*outer)
        else:
            fused = place = sch.fuse(*batch, *outer)
        if is_parallel:
            sch.parallel(fused)
        sch.reverse_compute_at(out, place)
        finish_tile(sch, out, 2 if shares else 1, width, columns % width == 0)
        if width > 1:
            sch.vectorize(jv)
        sch.unroll(ji)
        sch.unroll(ii)
        sch.decompose_reduction(anchor, k)
        self._place_packing(work)

    def _by_rows(self, work: Work, device: Device) -> bool:
        """Whether the rows are larger than the weights: a core then finds what it wrote in its own cache."""
        rows, panels, width = self._extents(work, device)
        return rows * (self._depth(work) + panels * width) > panels * width * self._depth(work)

    def _depth(self, work: Work) -> int:
        """Return the steps of the reduction."""
        return extent(work.sch, work.sch.get_loops(work.blocks[work.index(self.name)])[-1])

    def _extents(self, work: Work, device: Device) -> tuple[int, int, int]:
        """Return rows, panels and the width of a panel."""
        block = work.blocks[work.index(self.name)]
        *_, i, j, _ = work.sch.get_loops(block)
        rows, cols = extent(work.sch, i), extent(work.sch, j)
        width = self._width(work, block, device)
        return rows, cols // width, width

    def _width(self, work: Work, block: Any, device: Device) -> int:
        reads = work.sch.get(block).reads
        return int(reads[-1].source.shape[-1])

    def _place_packing(self, work: Work) -> None:
        """Nothing to pack: the weights come packed."""


def _shares(tiles: int, cores: int) -> int:
    """Return the least divisor of `tiles` that gives every core a share; all of them where there are fewer."""
    return next((d for d in divisors(tiles, tiles) if d >= cores), tiles)


class BatchMatmul(Dense):
    """Template of `batch_matmul`: as `Dense`, after packing the second operand once a call."""

    name = "batch_matmul"

    def _place_packing(self, work: Work) -> None:
        index = work.index("pack_panels")
        block = work.blocks[index]
        flatten_parallel(work.sch, block, keep=1)
