"""Kernels that go over rows: softmax, layer normalisation, attention; each row's stages run while it is in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import PARALLEL_GRAIN, Work, extent, lanes

__all__ = ["RowNorm"]


class RowNorm:
    """Template of `softmax_out` and `norm_out`: rows in parallel, every stage of a row inside its iteration."""

    def __init__(self, name: str) -> None:
        self.name = name

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Nothing to tune: one pass over memory whatever the order."""
        return {}

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return no decisions."""
        return {}

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

    def _stage(self, sch: Any, block: Any, name: str, row: Any, width: int) -> None:
        sch.compute_at(block, row)
        loops = sch.get_loops(block)[1:]
        if "_lanes" in name and loops:
            spatial, reduce = loops[0], loops[-1]
            sch.reorder(reduce, spatial)
            sch.vectorize(spatial)
            sch.decompose_reduction(block, reduce)
