"""Matrix products and convolutions as implicit ones: tiles staged in shared memory, sums in registers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tvmstack._tvm import shared_bytes, tirx, tvm
from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.schedules.cpu.blocks import Work, extent, open_schedule
from tvmstack.schedules.cuda.blocks import bind_flat, gpu_of, inline_producers, require, spatial_loops
from tvmstack.schedules.cuda.estimate import Tile, product_seconds

__all__ = ["Gemm"]

_TILES, _THREAD_TILES = (16, 32, 64, 128), (1, 2, 4, 8)
_STEPS, _SPLITS = (8, 16, 32), (1, 2, 4, 8)
_PADDING = 1
# How many tiles an untuned build tries to schedule, the best by estimate first.
_TRIES = 64


class Gemm:
    """Block tile bm x bn, thread tile tm x tn, bk steps staged at a time, the sum in `split` parts, `unroll`."""

    name = "gemm"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return the tiles; what does not fit the GPU is left out by `fits`."""
        _, rows, columns, steps = _sizes(work)
        return {
            "bm": _upto(_TILES, rows),
            "bn": _upto(_TILES, columns),
            "tm": list(_THREAD_TILES),
            "tn": list(_THREAD_TILES),
            "bk": _upto(_STEPS, steps),
            "split": [s for s in _SPLITS if s == 1 or steps >= 128 * s],
            "double": [0, 1],
            "unroll": [0, 1],
        }

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """Whether the GPU can run a candidate, by threads, shared memory and registers."""
        return not _tile(decisions).refusal(gpu_of(device))

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return the tile of the least estimated time that can be scheduled."""
        gpu, sizes = gpu_of(device), _sizes(work)
        table = {k: v for k, v in self.space(work, device).items() if k not in ("double", "unroll")}
        rated = []
        for values in itertools.product(*table.values()):
            decisions = {**dict(zip(table, values, strict=True)), "double": 0, "unroll": 1}
            tile = _tile(decisions)
            if not tile.refusal(gpu):
                rated.append((product_seconds(sizes, tile, decisions["split"], gpu), decisions))
        rated.sort(key=lambda item: item[0])
        for _, decisions in rated[:_TRIES]:
            try:
                self.schedule(open_schedule(work.sch.mod["main"]), decisions, device)
            except (TuningError, RuntimeError, ValueError):
                continue
            return decisions
        return rated[0][1]

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Schedule the product and what comes after it as one kernel, as two where the sum is divided."""
        tile, gpu = _tile(decisions), gpu_of(device)
        refusal = tile.refusal(gpu)
        require(not refusal, refusal)
        sch = work.sch
        gemm = sch.get_sblock("gemm")
        last = _fused_last(work)
        if decisions["split"] > 1:
            part = _divided(work, gemm, decisions["split"], tile)
            kept = sch.cache_write(part, 0, "local")
            thread = _tiled(work, part, decisions, tile)
            sch.reverse_compute_at(kept, thread)
            _added_up(work, gemm, last, gpu.threads_per_block // 4)
            _require_shared(work, gpu.shared_per_block)
            return
        is_joined = _follow_product(work, last)
        sch.pad_einsum(gemm, [1, tile.rows, tile.columns, tile.steps])
        crop = _maybe(sch, "gemm_pad")
        if crop is not None:
            sch.compute_inline(crop)
        kept = None if is_joined else sch.cache_write(gemm, 0, "local")
        thread = _tiled(work, gemm, decisions, tile)
        if kept is None:
            sch.set_scope(gemm, 0, "local")
            sch.reverse_compute_at(last, thread)
            _unroll_small(sch, last)
        else:
            sch.reverse_compute_at(kept, thread)
            bind_flat(work, spatial_loops(work, last), gpu.threads_per_block // 4)
        _require_shared(work, gpu.shared_per_block)


def _require_shared(work: Work, limit: int) -> None:
    """Refuse what takes too much shared memory: TVM does not always see how little of a stage a block needs."""
    taken = shared_bytes(work.sch.mod["main"])
    require(taken <= limit, f"{taken} bytes of shared memory a block, allowed are {limit}")


def _upto(sizes: tuple[int, ...], limit: int) -> list[int]:
    """Return the sizes of which the next smaller one does not already cover `limit`."""
    return [s for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < limit]


def _sizes(work: Work) -> tuple[int, int, int, int]:
    block = work.blocks[work.index("gemm_right") + 1]
    batch, rows, columns, steps = (int(v.dom.extent) for v in work.sch.get(block).iter_vars)
    return batch, rows, columns, steps


def _tile(d: Mapping[str, Any]) -> Tile:
    return Tile(d["bm"], d["bn"], d["tm"], d["tn"], d["bk"], 1 + int(d.get("double", 0)))


def _maybe(sch: Any, name: str) -> Any:
    try:
        return sch.get_sblock(name)
    except (RuntimeError, ValueError):
        return None


def _fused_last(work: Work) -> Any:
    """Inline all but the operands, the product and the last block; return the last block."""
    stages = [b for b, n in zip(work.blocks, work.names, strict=True) if n.startswith(("gemm_left", "gemm_right"))]
    inline_producers(work, stages)
    return work.blocks[-1]


def _follow_product(work: Work, last: Any) -> bool:
    """Give the last block the axes of the product, so that each thread finishes what it summed.

    Returns False where the block reads the product at several places or not one to one.
    """
    sch = work.sch
    block = sch.get(last)
    places = [r.region for r in block.reads if str(r.source.name) == "gemm"]
    if len(places) != 1 or any(not _is_one(axis.extent) for axis in places[0]):
        return False
    variables = [v.var for v in block.iter_vars]
    indices = [axis.min for axis in places[0] if not isinstance(axis.min, tirx.IntImm)]
    try:
        sch.transform_block_layout(last, tvm.tirx.IndexMap(variables, indices, None))
    except (RuntimeError, ValueError):
        return False
    return _is_own_place(sch.get(last))


def _is_own_place(block: Any) -> bool:
    """Whether a block reads the product at its own axes, so that a thread needs no sum but its own.

    TVM does not see through every division of an index: what it cannot prove would read another thread's registers.
    """
    axes = [v.var for v in block.iter_vars]
    batch, *rest = next([axis.min for axis in r.region] for r in block.reads if str(r.source.name) == "gemm")
    places = rest if isinstance(batch, tirx.IntImm) else [batch, *rest]
    return all(any(place.same_as(var) for var in axes) for place in places)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _tiled(work: Work, gemm: Any, decisions: Mapping[str, Any], tile: Tile) -> Any:
    """Bind the loops of the padded product and stage its operands; return the loop of a thread."""
    sch = work.sch
    *outer, i, j, k = sch.get_loops(gemm)
    io, it, ii = sch.split(i, [None, tile.rows // tile.thread_rows, tile.thread_rows])
    jo, jt, ji = sch.split(j, [None, tile.columns // tile.thread_columns, tile.thread_columns])
    ko, ki = sch.split(k, [None, tile.steps])
    batch = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.reorder(batch, io, jo, it, jt, ko, ki, ii, ji)
    for loop, axis in ((batch, "blockIdx.z"), (io, "blockIdx.y"), (jo, "blockIdx.x")):
        sch.bind(loop, axis)
    sch.bind(it, "threadIdx.y")
    sch.bind(jt, "threadIdx.x")
    steps = extent(sch, ko)
    for side in ("left", "right"):
        _stage(work, side, ko, tile)
    if decisions.get("unroll"):
        for loop in (ii, ji):
            sch.unroll(loop)
        sch.annotate(ki, "pragma_auto_unroll_max_step", 64)
        sch.annotate(ki, "pragma_unroll_explicit", 0)
    if decisions.get("double") and steps > 2:
        sch.annotate(ko, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(ko, "software_pipeline_order", [0, 1, 2])
    sch.decompose_reduction(gemm, ko)
    return jt


def _stage(work: Work, side: str, at: Any, tile: Tile) -> None:
    """Load an operand's tile into shared memory, neighbouring threads along memory."""
    sch = work.sch
    name = next(n for n in work.names if n.startswith(f"gemm_{side}"))
    padded, plain = _maybe(sch, f"{name}_pad"), _maybe(sch, name)
    if padded is not None:
        sch.compute_inline(plain)
    stage = padded if padded is not None else plain
    sch.set_scope(stage, 0, "shared")
    sch.compute_at(stage, at)
    steps, along = sch.get_loops(stage)[-2:]
    if name.endswith("_k"):
        sch.reorder(along, steps)
        steps, along = along, steps
        sch.storage_align(stage, 0, axis=1, factor=4, offset=_PADDING)
    flat = sch.fuse(steps, along)
    _, ty, tx = sch.split(flat, [None, tile.rows // tile.thread_rows, tile.columns // tile.thread_columns])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")


def _unroll_small(sch: Any, last: Any) -> None:
    """Unroll the loops over a thread's own tile."""
    for loop in sch.get_loops(last)[-2:]:
        if extent(sch, loop) <= max(_THREAD_TILES):
            sch.unroll(loop)


def _divided(work: Work, gemm: Any, split: int, tile: Tile) -> Any:
    """Divide the sum into `split` parts that different blocks of threads compute; return the block of the parts."""
    sch = work.sch
    sch.pad_einsum(gemm, [1, tile.rows, tile.columns, tile.steps * split])
    ko, _ = sch.split(sch.get_loops(gemm)[-1], [split, None])
    part = sch.rfactor(ko, 0)
    batch, i, j, outer, inner = sch.get_loops(part)
    sch.reorder(outer, batch, i, j, inner)
    return part


def _added_up(work: Work, gemm: Any, last: Any, threads: int) -> None:
    """Add the parts in a second kernel that also does what comes after the product."""
    sch = work.sch
    crop = _maybe(sch, "gemm_pad")
    if crop is not None:
        sch.compute_inline(crop)
    thread = bind_flat(work, spatial_loops(work, last), threads)
    sch.set_scope(gemm, 0, "local")
    sch.compute_at(gemm, thread)
