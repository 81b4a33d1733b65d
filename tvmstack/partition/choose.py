"""The cheapest owners for a row of chunks, by dynamic programming over where segments end.

What a segment costs on a vendor's back end is not the sum of what its chunks cost there: it fuses across them, and
starts once. Measuring every segment would take too long, so costs are measured as the search asks for them: a segment
not measured yet has an estimate, the best plan by the costs known is found, its unmeasured segments are measured, and
so on until the best plan has none. Estimates that are too high can hide a plan, so they lean to the low side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvmstack.partition.chunks import Chunk

__all__ = ["TVM", "Border", "Costs", "Segment", "cheapest", "settle"]

TVM = "tvm"


@dataclass(frozen=True)
class Segment:
    """Chunks `start` to `stop` (not included) of one owner: "tvm", or a back end as "NAME:TARGET"."""

    owner: str
    start: int
    stop: int


@dataclass(frozen=True)
class Border:
    """What a call of a region costs beside its work: seconds a call, and seconds for each byte in or out."""

    call_s: float
    byte_s: float


@dataclass
class Costs:
    """What is known of each owner.

    Attributes:
        chunk: seconds of each chunk by owner; infinite where the owner does not take all of it.
        whole: seconds of the whole model by owner, where it takes all of it.
        border: of each owner's regions.
        measured: segments that were run, in seconds; infinite for those that a back end refused.
    """

    chunk: Mapping[str, Sequence[float]]
    whole: Mapping[str, float] = field(default_factory=dict)
    border: Mapping[str, Border] = field(default_factory=dict)
    measured: dict[Segment, float] = field(default_factory=dict)

    def of(self, segment: Segment, chunks: Sequence[Chunk]) -> float:
        """Return the seconds of a segment with what its borders cost."""
        known = self.measured.get(segment)
        seconds = self._estimate(segment) if known is None else known
        if segment.owner == TVM:
            return seconds
        border = self.border.get(segment.owner, Border(0.0, 0.0))
        return seconds + border.call_s + border.byte_s * _border_bytes(segment, chunks)

    def may_follow(self, row: Sequence[Segment], segment: Segment) -> bool:
        """Whether a segment may stand behind a row: two of one back end are one, unless that one is refused."""
        if not row or segment.owner == TVM or row[-1].owner != segment.owner:
            return True
        return self.measured.get(Segment(segment.owner, row[-1].start, segment.stop)) == float("inf")

    def _estimate(self, segment: Segment) -> float:
        parts = self.chunk[segment.owner]
        seconds = sum(parts[segment.start : segment.stop])
        whole, total = self.whole.get(segment.owner), sum(parts)
        return seconds * min(1.0, whole / total) if whole is not None and 0 < total < float("inf") else seconds


def cheapest(chunks: Sequence[Chunk], costs: Costs, min_nodes: int = 1) -> tuple[Segment, ...]:
    """Return the segments with the least time in all, in order.

    Args:
        chunks: the row.
        costs: what is known.
        min_nodes: a region of a back end has at least this many nodes.

    Returns:
        Nothing where no owner takes some chunk.
    """
    # best[k][owner]: the cheapest row of the first k chunks whose last segment is the owner's
    best: list[dict[str, tuple[float, tuple[Segment, ...]]]] = [{"": (0.0, ())}]
    for stop in range(1, len(chunks) + 1):
        ends: dict[str, tuple[float, tuple[Segment, ...]]] = {}
        for start in range(stop):
            if not _is_movable(chunks, start, stop):
                continue
            for segment in _segments(chunks, costs, start, stop, min_nodes):
                before = [row for row in best[start].values() if costs.may_follow(row[1], segment)]
                if not before:
                    continue
                total, row = min(before, key=lambda entry: entry[0])
                total += costs.of(segment, chunks)
                if total < ends.get(segment.owner, (float("inf"),))[0]:
                    ends[segment.owner] = (total, (*row, segment))
        best.append(ends)
    last = best[len(chunks)]
    return _joined(min(last.values(), key=lambda entry: entry[0])[1]) if last else ()


def _segments(chunks: Sequence[Chunk], costs: Costs, start: int, stop: int, min_nodes: int) -> Iterator[Segment]:
    """Yield the segments that may stand there; TVM's are taken chunk by chunk, since their costs add up."""
    for owner in costs.chunk:
        enough = stop - start == 1 if owner == TVM else sum(len(c.nodes) for c in chunks[start:stop]) >= min_nodes
        if enough:
            yield Segment(owner, start, stop)


def settle(
    chunks: Sequence[Chunk],
    costs: Costs,
    measure: Callable[[Segment], float | None],
    min_nodes: int = 1,
) -> tuple[Segment, ...]:
    """Return the cheapest segments, measuring those that come into question until the best plan is all measured.

    Args:
        chunks: the row.
        costs: what is known; measured segments are added.
        measure: runs a segment of a back end and returns its seconds, infinite where it is refused; None where there
            is no time left, which ends the search with what is known.
        min_nodes: a region of a back end has at least this many nodes.
    """
    while True:
        plan = cheapest(chunks, costs, min_nodes)
        unknown = next((s for s in plan if s.owner != TVM and s not in costs.measured), None)
        if unknown is None:
            return plan
        seconds = measure(unknown)
        if seconds is None:
            return plan
        costs.measured[unknown] = seconds


def _is_movable(chunks: Sequence[Chunk], start: int, stop: int) -> bool:
    return chunks[start].movable and (stop == len(chunks) or chunks[stop].movable)


def _border_bytes(segment: Segment, chunks: Sequence[Chunk]) -> int:
    after = chunks[segment.stop].crossing_bytes if segment.stop < len(chunks) else 0
    return chunks[segment.start].crossing_bytes + after


def _joined(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Join TVM's neighbours."""
    found: list[Segment] = []
    for segment in segments:
        if found and segment.owner == TVM == found[-1].owner:
            found[-1] = Segment(TVM, found[-1].start, segment.stop)
        else:
            found.append(segment)
    return tuple(found)
