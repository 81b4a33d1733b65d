"""A blob tried out: what its engine gives on sample inputs, and how long a call takes. Also run in a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.runtime.engines import open_engine

__all__ = ["Trial"]

_WARM = 2


class Trial:
    """Made without arguments, as a worker makes what it calls."""

    def run(
        self, data: bytes, row: Mapping[str, Any], threads: int, feeds: Sequence[Sequence[np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Return the outputs for each list of inputs, in the row's order."""
        engine = open_engine(data, row, threads)
        try:
            return [[np.asarray(a) for a in engine.run(list(feed))] for feed in feeds]
        finally:
            engine.close()

    def seconds(
        self, data: bytes, row: Mapping[str, Any], threads: int, feed: Sequence[np.ndarray], budget: float
    ) -> list[float]:
        """Return what single calls took within about `budget` seconds, at least three, warmed up before."""
        engine = open_engine(data, row, threads)
        try:
            inputs = list(feed)
            for _ in range(_WARM):
                engine.run(inputs)
            times: list[float] = []
            end = time.perf_counter() + budget
            while len(times) < 3 or time.perf_counter() < end:
                start = time.perf_counter()
                engine.run(inputs)
                times.append(time.perf_counter() - start)
            return times
        finally:
            engine.close()
