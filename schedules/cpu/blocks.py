"""What the CPU templates share: the blocks of a fused function and the ways of finishing an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvmstack._tvm import SBlockRealize, Schedule, renew_defs, tvm
from tvmstack.core.device import Device

__all__ = [
    "Fixed",
    "Template",
    "Work",
    "anchor_of",
    "divisors",
    "extent",
    "finish_tile",
    "flatten_parallel",
    "fuse_epilogue",
    "is_schedulable",
    "lanes",
    "most_tiles",
    "open_schedule",
    "reduction_blocks",
    "tile_score",
    "worth_parallel",
]

# A parallel region costs a few microseconds; below about this many bytes or multiply-adds it does not repay.
PARALLEL_GRAIN = 16384
PARALLEL_STEPS = 1 << 18


class Template(Protocol):
    """A schedule function with its decisions."""

    name: str

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return each decision with its candidates."""
        ...

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return the decisions of the untuned build."""
        ...

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Schedule the function of `work` in place."""
        ...


class Fixed:
    """A template with nothing to tune by a table of decisions: one pass over memory, or a space that is not ours."""

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return no decisions."""
        return {}

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return no decisions."""
        return {}


@dataclass
class Work:
    """A schedule under construction with the names of its blocks in program order.

    `finished` is the whole function where a template makes it otherwise than by the schedule.
    """

    sch: Any
    blocks: list[Any]
    names: list[str]
    finished: Any = None

    def index(self, anchor: str) -> int:
        """Return the position of the first block whose name begins with `anchor`, or -1."""
        return next((i for i, name in enumerate(self.names) if name.startswith(anchor)), -1)


def open_schedule(func: Any) -> Work:
    """Return a fresh schedule of a `PrimFunc` whose blocks all sit below the root block.

    The function is copied first: a `Schedule` of TVM 0.27 changes the function it was given in place.
    """
    copy = renew_defs(func.with_attr("global_symbol", "main"))
    sch = Schedule(tvm.IRModule({"main": copy}), debug_mask="none")
    if not is_schedulable(func):
        return Work(sch, [], [])
    blocks = list(sch.get_child_blocks(sch.get_sblock("root")))
    return Work(sch, blocks, [str(sch.get(b).name_hint) for b in blocks])


def is_schedulable(func: Any) -> bool:
    """Whether the function is made of blocks; one written as plain loops is taken as it stands."""
    return isinstance(func.body, SBlockRealize) and str(func.body.block.name_hint) == "root"


def anchor_of(names: Sequence[str], anchors: Sequence[str]) -> str | None:
    """Return the first of `anchors` that some block name begins with."""
    return next((a for a in anchors if any(n.startswith(a) for n in names)), None)


def extent(sch: Any, loop: Any) -> int:
    """Return the constant extent of a loop."""
    return int(sch.get(loop).extent)


def divisors(n: int, limit: int) -> list[int]:
    """Return the divisors of n up to `limit`."""
    return [d for d in range(1, min(n, limit) + 1) if n % d == 0]


def lanes(device: Device) -> int:
    """Return how many floats a vector register holds."""
    return device.vector_bits // 32


def worth_parallel(sch: Any, block: Any) -> bool:
    """Whether a reduction has enough multiply-adds to repay a parallel region."""
    steps = 1
    for loop in sch.get_loops(block):
        steps *= extent(sch, loop)
    return steps >= PARALLEL_STEPS


# Accumulators of a task that goes over its reduction in blocks: what stays in L1 beside the operands.
ACCUMULATOR_BYTES = 24576
# Going over the weights in blocks pays from this size on (they come from memory) and from so many register tiles on
# that read them.
BYTES_THAT_REPAY_BLOCKS, READS_THAT_REPAY_BLOCKS = 1 << 20, 4


def most_tiles(count: int, tile_bytes: int) -> int:
    """Return the largest divisor of `count` tiles whose accumulators, `tile_bytes` each, stay in L1; at least 1."""
    return max((d for d in divisors(count, count) if d * tile_bytes <= ACCUMULATOR_BYTES), default=1)


def reduction_blocks(steps: int, unit: int = 1) -> list[int]:
    """Return the divisors of `steps` that make blocks of 64 to 256 steps, each `unit` long, fewer than the whole."""
    return [d for d in divisors(steps, steps // 2) if 64 <= d * unit <= 256]


def tile_score(rows: int, cols: int, width: int, device: Device) -> float:
    """Rate a register tile of `rows` x `cols` panels, each `width` vectors wide: higher is better, 0 is illegal.

    Each step of the reduction loads `cols * width` vectors from L2 and broadcasts `rows` scalars from L1 for
    `rows * cols * width` multiply-adds. Eight accumulators hide the latency of two FMA units.
    """
    accumulators, loads = rows * cols * width, cols * width
    if accumulators + loads > device.vector_registers:
        return 0.0
    score = 1.0 / (1.0 + 0.25 / loads + 0.5 / rows)
    return score * min(1.0, accumulators / 10.0)


def fuse_epilogue(work: Work, anchor: int) -> Any:
    """Inline everything after the anchor into the last block and everything cheap before it; return the last block."""
    sch = work.sch
    for block, name in zip(work.blocks[:anchor], work.names[:anchor], strict=True):
        if not name.startswith(("pad_input", "pack_panels")):
            sch.compute_inline(block)
    *middle, last = work.blocks[anchor + 1 :]
    for block in middle:
        sch.compute_inline(block)
    return last


def finish_tile(sch: Any, block: Any, depth: int, width: int, is_whole: bool = True) -> None:
    """Vectorise the last loop of `block` below `depth` in vectors of `width`.

    Where the columns are cropped (`is_whole` is false) a store is conditional by lane: TVM would take the vector
    apart, LLVM masks it.
    The other loops stay loops: unrolled, an epilogue with an erf in it costs LLVM a minute and the instruction cache
    its size.
    """
    loops = sch.get_loops(block)[depth:]
    if not loops:
        return
    last, size = loops[-1], extent(sch, loops[-1])
    if size > width and size % width == 0:
        _, last = sch.split(last, [None, width])
    if size > 1 and is_whole:
        sch.vectorize(last)


def flatten_parallel(sch: Any, block: Any, keep: int = 1, grain: int = PARALLEL_GRAIN) -> None:
    """Run the outer loops of an injective block in parallel, the last `keep` in order, if there is enough to do."""
    loops = sch.get_loops(block)
    total = 1
    for loop in loops:
        total *= extent(sch, loop)
    if total < 2:
        return
    outer = loops[:-keep] if len(loops) > keep else []
    if not outer:
        if total >= 2 * grain:
            chunk, _ = sch.split(loops[0], [None, max(1, grain // 4)])
            sch.parallel(chunk)
        return
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    if total >= 2 * grain:
        sch.parallel(fused)
