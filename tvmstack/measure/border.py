"""What crossing from TVM into a region costs: a call of a region that does nothing, and copying a byte."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

__all__ = ["call_seconds", "copy_seconds"]

_COPIED_BYTES = 8 << 20
_REPEATS = 31


def call_seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a call, after a few to warm up."""
    times = []
    for index in range(_REPEATS + 5):
        start = time.perf_counter()
        call()
        if index >= 5:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def copy_seconds() -> float:
    """Return the median seconds that copying one byte takes in one thread, of a block larger than inner caches."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    return call_seconds(lambda: np.copyto(target, source)) / _COPIED_BYTES
