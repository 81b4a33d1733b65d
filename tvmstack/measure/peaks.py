"""What the machine can do at most, measured: floating-point multiply-adds and memory traffic.

FMA: a kernel of independent accumulators that stay in vector registers, built by TVM's LLVM in a process of its own (no
C compiler is needed, and this room never imports TVM). Where TVM is absent: numpy's matrix product, which gives less.
Memory: large copies by numpy, one thread a core; bytes read and bytes written both count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Peaks", "measure_peaks"]

_COPY_BYTES = 64 << 20


@dataclass(frozen=True)
class Peaks:
    """Measured limits at a number of threads; a multiply-add counts two operations.

    Attributes:
        gflops: fp32 GFLOP/s.
        gbytes: GB/s of memory traffic.
        threads: threads used.
        method: how the first figure was got: "fma kernel" or "numpy matrix product".
    """

    gflops: float
    gbytes: float
    threads: int
    method: str

    def to_json(self) -> dict[str, Any]:
        """Return the peaks as plain data."""
        return asdict(self)


def measure_peaks(threads: int) -> Peaks:
    """Measure both peaks with `threads` threads; takes about three seconds."""
    gflops, method = _fma_peak(threads)
    return Peaks(gflops, _memory_peak(threads), threads, method)


def _fma_peak(threads: int) -> tuple[float, str]:
    env = dict(os.environ, TVM_NUM_THREADS=str(threads))
    command = [sys.executable, "-m", "tvmstack.measure.fma", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    if done.returncode == 0:
        return float(json.loads(done.stdout.splitlines()[-1])["gflops"]), "fma kernel"
    return _matmul_peak(), "numpy matrix product"


def _matmul_peak(size: int = 1024, repeats: int = 5) -> float:
    a = np.ones((size, size), np.float32)
    best = min(_seconds(a) for _ in range(repeats))
    return 2.0 * size**3 / best / 1e9


def _seconds(a: np.ndarray) -> float:
    start = time.perf_counter()
    np.matmul(a, a)
    return time.perf_counter() - start


def _memory_peak(threads: int, repeats: int = 5) -> float:
    pairs = [(np.ones(_COPY_BYTES, np.uint8), np.zeros(_COPY_BYTES, np.uint8)) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = min(best, time.perf_counter() - start)
    return 2.0 * threads * _COPY_BYTES / best / 1e9
