"""Kernels without a register tile: elementwise and injective chains, layout moves, pooling, plain reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmstack._tvm import replay_trace
from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import (
    PARALLEL_GRAIN,
    Fixed,
    Work,
    divisors,
    extent,
    flatten_parallel,
    lanes,
    worth_parallel,
)

__all__ = ["AsWritten", "Concat", "Generic", "Injective", "Pool", "Replay"]


class Pool(Fixed):
    """Template of `pool_nchwc`: the channel panel in vectors, `ow` outputs of a row at once."""

    name = "pool_nchwc"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Accumulate in registers and finish each tile in place."""
        sch, index = work.sch, work.index(self.name)
        anchor = work.blocks[index]
        for block, name in zip(work.blocks[:index], work.names[:index], strict=True):
            if not name.startswith("pad_input"):
                sch.compute_inline(block)
        is_parallel = worth_parallel(sch, anchor)
        n, co, oh, ow, c, ry, rx = sch.get_loops(anchor)
        wo, wi = sch.split(ow, [None, max(divisors(extent(sch, ow), 8))])
        sch.reorder(n, co, oh, wo, ry, rx, wi, c)
        fused = sch.fuse(n, co, oh)
        if is_parallel:
            sch.parallel(fused)
        after = work.blocks[index + 1 :]
        for block in after[:-1]:
            sch.compute_inline(block)
        if after:
            sch.set_scope(anchor, 0, "local")
            sch.reverse_compute_at(after[-1], wo)
            last = sch.get_loops(after[-1])[-1]
            if 1 < extent(sch, last) <= 64:
                sch.vectorize(last)
        if extent(sch, c) > 1:
            sch.vectorize(c)
        sch.unroll(wi)
        sch.decompose_reduction(anchor, ry)
        if work.index("pad_input") >= 0:
            pad = work.blocks[work.index("pad_input")]
            sch.compute_at(pad, fused)
            last = sch.get_loops(pad)[-1]
            if 1 < extent(sch, last) <= 64:
                sch.vectorize(last)


class Injective(Fixed):
    """All blocks injective: all but the last inlined, its outer loops in parallel; LLVM vectorises the inner one."""

    name = "injective"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Inline, then run in parallel."""
        for block in work.blocks[:-1]:
            work.sch.compute_inline(block)
        parallel_injective(work.sch, work.blocks[-1])


class Concat(Fixed):
    """Template of `concat_axis`: the loop is split at the borders between the parts, and each part is a copy."""

    name = "concat_axis"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Partition the concatenated loop."""
        sch, block = work.sch, work.blocks[-1]
        axis = int(work.names[-1].removeprefix(self.name).split("_")[0])
        loops = sch.get_loops(block)
        sizes = [int(r.source.shape[axis]) for r in sch.get(block).reads]
        outer, total = loops[:axis], 1
        for loop in loops:
            total *= extent(sch, loop)
        if outer and total >= 2 * PARALLEL_GRAIN:
            fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
            if extent(sch, fused) > 1:
                sch.parallel(fused)
        sch.loop_partition(loops[axis], [*sizes[:-1], None])


class AsWritten(Fixed):
    """A function written as plain loops, scheduled by its author."""

    name = "as_written"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Leave the function as it is."""


class Replay(Fixed):
    """Template "meta_schedule": replays a trace that MetaSchedule's sketches and search found; for any kernel."""

    name = "meta_schedule"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Apply the trace, its post-processing included."""
        replay_trace(decisions["trace"], work.sch)


class Generic(Fixed):
    """Anything else: each block on its own, its data-parallel loops outside and in parallel, its reduction inside."""

    name = "generic"

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Schedule each block by its kind; what has a shape we do not know is left as it is written."""
        sch = work.sch
        for block in work.blocks:
            kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
            loops = sch.get_loops(block)
            if len(loops) != len(kinds) or any(k not in (0, 2) for k in kinds):
                continue
            if 2 not in kinds:
                if not _inlined(sch, block):
                    parallel_injective(sch, block)
                continue
            _reduction(sch, block, loops, kinds, lanes(device))


def parallel_injective(sch: Any, block: Any) -> None:
    """Parallelise an injective block, keeping an inner loop long enough to vectorise."""
    loops = sch.get_loops(block)
    if not loops:
        return
    keep = 1
    if len(loops) > 1 and extent(sch, loops[-1]) < 16:
        keep = 2
    flatten_parallel(sch, block, keep=keep)


def _inlined(sch: Any, block: Any) -> bool:
    """Inline an elementwise producer of one consumer; a block that writes an output or feeds several stays."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1:
        return False
    try:
        sch.compute_inline(block)
    except RuntimeError:
        return False
    return True


def _reduction(sch: Any, block: Any, loops: list[Any], kinds: list[int], width: int) -> None:
    """Data-parallel loops outside and in parallel; the loop that walks memory in vectors."""
    work = 1
    for loop in loops:
        work *= extent(sch, loop)
    if work < PARALLEL_GRAIN:
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    reduce = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    walker = _contiguous(sch, block)
    if walker is not None and kinds[walker] == 0:
        _accumulate_columns(sch, block, spatial, reduce, loops[walker], width)
        return
    partial = None
    if walker == len(loops) - 1 and extent(sch, loops[-1]) % width == 0 and extent(sch, loops[-1]) >= 2 * width:
        _, lane = sch.split(loops[-1], [None, width])
        partial = sch.rfactor(lane, len(spatial))
    outer = sch.get_loops(block)[: len(spatial)]
    fused = None
    if outer:
        fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        sch.parallel(fused)
    if partial is not None:
        _vectorise_partial(sch, partial, fused, len(spatial))


def _contiguous(sch: Any, block: Any) -> int | None:
    """Return which loop walks the last dim of the first operand in steps of one, or None."""
    node = sch.get(block)
    reads = [r for r in node.reads if len(r.region)]
    if not reads:
        return None
    index = reads[0].region[-1].min
    return next((i for i, v in enumerate(node.iter_vars) if v.var.same_as(index)), None)


def _accumulate_columns(sch: Any, block: Any, spatial: list[Any], reduce: list[Any], column: Any, width: int) -> None:
    """Add up whole rows: the columns are the inner loop, in chunks that stay in registers or in L1."""
    others = [loop for loop in spatial if not loop.same_as(column)]
    size = extent(sch, column)
    chunk = next((c for c in (width * 8, width * 4, width) if size % c == 0), size)
    outer, inner = sch.split(column, [None, chunk])
    sch.reorder(*others, outer, *reduce, inner)
    fused = sch.fuse(*others, outer)
    if extent(sch, fused) > 1:
        sch.parallel(fused)
    sch.decompose_reduction(block, reduce[0])


def _vectorise_partial(sch: Any, partial: Any, at: Any, spatial: int) -> None:
    """Accumulate lane by lane in one vector, inside the loop that the lanes are summed in."""
    if at is not None:
        sch.compute_at(partial, at)
        spatial = 1
    loops = sch.get_loops(partial)[spatial:]
    kinds = [int(v.iter_type) for v in sch.get(partial).iter_vars]
    sch.vectorize(loops[-1])
    if 2 in kinds and len(loops) > 1:
        sch.decompose_reduction(partial, loops[0])
