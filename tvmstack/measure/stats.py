"""Summaries of timings. Medians throughout: on a shared machine a mean says more about the neighbours than the code."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Ratio", "Summary", "geometric_mean", "quantile", "ratio", "summarise"]


@dataclass(frozen=True)
class Summary:
    """What a set of timings says, in seconds.

    Attributes:
        count: number of timings.
        median_s: the figure to quote.
        p10_s: tenth percentile.
        p90_s: ninetieth percentile.
        mad_s: median absolute deviation from the median.
        min_s: the fastest.
    """

    count: int
    median_s: float
    p10_s: float
    p90_s: float
    mad_s: float
    min_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """One program's time over another's, from rounds measured side by side: the median, the lowest and the highest."""

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return the ratio as plain data."""
        return asdict(self)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the quantile of unsorted samples, interpolated linearly between neighbours."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(samples: Sequence[float]) -> Summary:
    """Summarise timings in seconds; there must be at least one."""
    median = statistics.median(samples)
    mad = statistics.median(abs(s - median) for s in samples)
    return Summary(len(samples), median, quantile(samples, 0.1), quantile(samples, 0.9), mad, min(samples))


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return times over base, round by round: a slow phase of the machine falls on both sides of its own round."""
    rounds = [a / b for a, b in zip(times, base, strict=True)]
    return Ratio(statistics.median(rounds), min(rounds), max(rounds))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(statistics.fmean(math.log(v) for v in values))
