"""What the GPU templates share: limits, and bindings of loops to threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.core.gpu import Gpu
from tvmstack.schedules.cpu.blocks import Work, extent

__all__ = [
    "bind_flat",
    "gpu_of",
    "inline_producers",
    "is_reduction",
    "require",
    "spatial_loops",
    "split_loops",
]


def gpu_of(device: Device) -> Gpu:
    """Return the figures of a device that is a GPU."""
    if device.gpu is None:
        raise TuningError(f"{device.id} is no GPU: these schedules bind loops to its threads")
    return device.gpu


def require(holds: bool, words: str) -> None:
    """Refuse a candidate that the GPU cannot run, before anything is built.

    Raises:
        TuningError: what does not fit.
    """
    if not holds:
        raise TuningError(words)


def is_reduction(work: Work, block: Any) -> bool:
    """Whether a block sums over something."""
    return any(int(v.iter_type) == 2 for v in work.sch.get(block).iter_vars)


def split_loops(work: Work, block: Any) -> tuple[list[Any], list[Any]]:
    """Return the spatial and the reduction loops of a block that stands alone."""
    sch = work.sch
    kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
    loops = list(sch.get_loops(block))
    if len(loops) != len(kinds):
        raise ValueError("a block whose loops are not its axes")
    return [x for x, k in zip(loops, kinds, strict=True) if k != 2], [
        x for x, k in zip(loops, kinds, strict=True) if k == 2
    ]


def spatial_loops(work: Work, block: Any) -> list[Any]:
    """Return the spatial loops of a block that stands alone."""
    return split_loops(work, block)[0]


def inline_producers(work: Work, keep: Sequence[Any]) -> None:
    """Inline every block that sums nothing, but for the last and those in `keep`."""
    names = {str(work.sch.get(b).name_hint) for b in keep}
    for block, name in zip(work.blocks[:-1], work.names[:-1], strict=True):
        if name not in names and not is_reduction(work, block):
            work.sch.compute_inline(block)


def bind_flat(work: Work, loops: Sequence[Any], threads: int, vector: int = 1) -> Any:
    """Give each element of some loops, or each `vector` of them, a thread; return the loop bound to the threads."""
    sch = work.sch
    flat = sch.fuse(*loops) if len(loops) > 1 else loops[0] if loops else None
    if flat is None:
        raise ValueError("a block without loops")
    total = extent(sch, flat)
    vector = vector if total % vector == 0 else 1
    threads = min(threads, max(1, math.ceil(total / vector)))
    outer, inner, lanes = sch.split(flat, [None, threads, vector])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
    return inner
