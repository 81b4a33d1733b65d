"""Sums over the last axes (softmax, norms, means, products with few rows): the threads of a block share each sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import Work, extent
from tvmstack.schedules.cuda.blocks import gpu_of, inline_producers, is_reduction, require, split_loops

__all__ = ["Rows", "row_axes"]

_THREADS = (32, 64, 128, 256, 512)


class Rows:
    """A block of `threads` for each row, or for `rows` of them where a row is one number."""

    name = "rows"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return how many threads share a row, and how many rows a block has."""
        inner = _inner(work)
        single = _is_single(work)
        return {
            "threads": [t for i, t in enumerate(_THREADS) if i == 0 or _THREADS[i - 1] < inner],
            "rows": [1, 2, 4, 8] if single else [1],
        }

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """Whether a block has no more threads than the GPU allows."""
        return decisions["threads"] * decisions["rows"] <= gpu_of(device).threads_per_block

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return a thread for every four numbers of a row, at least a warp; rows that make up 128 threads."""
        table, inner = self.space(work, device), _inner(work)
        threads = min(table["threads"], key=lambda t: abs(math.log2(max(32, min(256, inner / 4)) / t)))
        return {"threads": threads, "rows": max(r for r in table["rows"] if r == 1 or r * threads <= 128)}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Schedule sums and what comes after them as one kernel."""
        require(self.fits(decisions, device), f"more than {gpu_of(device).threads_per_block} threads a block")
        sums = [b for b in work.blocks if is_reduction(work, b)]
        axes = row_axes(work)
        if axes is None:
            raise ValueError("its sums do not go over the last axes")
        inline_producers(work, ())
        if work.blocks[-1] is sums[-1]:
            _only_sum(work, sums, axes, decisions)
        else:
            _sums_and_rest(work, sums, axes, decisions)


def row_axes(work: Work) -> int | None:
    """Return how many leading axes of the last block are rows: every sum has one value for each; None where not so."""
    sums = [b for b in work.blocks if is_reduction(work, b)]
    if not sums:
        return None
    last = _extents(work, work.blocks[-1])[0]
    axes = None
    for block in sums:
        spatial, reduced = _extents(work, block)
        if not reduced:
            return None
        count = next(
            (
                n
                for n in range(min(len(spatial), len(last)), -1, -1)
                if spatial[:n] == last[:n] and math.prod(spatial[n:]) == 1
            ),
            None,
        )
        if count is None or (axes is not None and math.prod(last[: min(axes, count)]) != math.prod(last[:axes])):
            return None
        axes = count if axes is None else min(axes, count)
    return axes


def _extents(work: Work, block: Any) -> tuple[list[int], list[int]]:
    spatial, reduced = split_loops(work, block)
    return [extent(work.sch, x) for x in spatial], [extent(work.sch, x) for x in reduced]


def _inner(work: Work) -> int:
    """Return how many numbers the longest sum adds."""
    return max(math.prod(_extents(work, b)[1]) for b in work.blocks if is_reduction(work, b))


def _is_single(work: Work) -> bool:
    """Whether a row is one number: one sum, and nothing after it but on the sum itself."""
    axes = row_axes(work)
    sums = [b for b in work.blocks if is_reduction(work, b)]
    last = _extents(work, work.blocks[-1])[0]
    return axes is not None and len(sums) == 1 and math.prod(last[axes:]) == 1


def _share(sch: Any, loops: list[Any], threads: int) -> None:
    """Bind the inner part of a sum's own loops to the threads of a block."""
    flat = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    _, inner = sch.split(flat, [None, threads])
    sch.bind(inner, "threadIdx.x")


def _rows_bound(sch: Any, loops: list[Any], rows: int) -> Any:
    """Bind the rows to blocks of threads; return the innermost of their loops."""
    flat = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    outer, inner = sch.split(flat, [None, rows])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.y")
    return inner


def _only_sum(work: Work, sums: list[Any], axes: int, decisions: Mapping[str, Any]) -> None:
    """The kernel's result is a sum: nothing comes after it."""
    if len(sums) != 1 or axes == 0:
        raise ValueError("several sums, or one for the whole tensor, without anything after it")
    sch = work.sch
    spatial, reduced = split_loops(work, sums[0])
    _rows_bound(sch, spatial, decisions["rows"])
    _share(sch, reduced, decisions["threads"])


def _sums_and_rest(work: Work, sums: list[Any], axes: int, decisions: Mapping[str, Any]) -> None:
    sch, last = work.sch, work.blocks[-1]
    counts = {str(sch.get(b).name_hint): len(split_loops(work, b)[1]) for b in sums}
    loops = list(sch.get_loops(last))
    rest = loops[axes:] or [sch.add_unit_loop(last)]
    rows = loops[:axes]
    if not rows:
        rest = [sch.fuse(*rest)] if len(rest) > 1 else rest
        unit, first = sch.split(rest[0], [1, None])
        rows, rest = [unit], [first]
    at = _rows_bound(sch, rows, decisions["rows"])
    flat = sch.fuse(*rest) if len(rest) > 1 else rest[0]
    _, inner = sch.split(flat, [None, decisions["threads"]])
    sch.bind(inner, "threadIdx.x")
    for block in reversed(sums):
        for index in range(len(sch.get(block).writes)):
            sch.set_scope(block, index, "shared")
        sch.compute_at(block, at)
        _share(sch, list(sch.get_loops(block))[-counts[str(sch.get(block).name_hint)] :], decisions["threads"])
