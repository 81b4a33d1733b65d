"""`python -m tvmstack.measure.fma THREADS`: print the fp32 peak as JSON. It runs apart: it needs the compiler."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from tvmstack.core.device import Device, detect_device

__all__ = ["main"]

_STEPS, _ROUNDS = 1024, 1000


def _kernel(device: Device, threads: int) -> tuple[object, int]:
    """Build `z[t, c] += x[k] * y[c]` with all of a thread's `z` and `y` in vector registers."""
    from tvmstack._tvm import Schedule, te, tvm

    lanes = device.vector_bits // 32
    wide = lanes * (12 if device.vector_registers == 32 else 6)
    x, y = te.placeholder((_STEPS,), "float32", "x"), te.placeholder((wide,), "float32", "y")
    again, k = te.reduce_axis((0, _ROUNDS), "again"), te.reduce_axis((0, _STEPS), "k")
    z = te.compute((threads, wide), lambda t, c: te.sum(x[k] * y[c], axis=[again, k]), "z")
    sch = Schedule(te.create_prim_func([x, y, z]))
    block = sch.get_sblock("z")
    local = sch.cache_write(block, 0, "local")
    t, c, outer, inner = sch.get_loops(block)
    group, lane = sch.split(c, [wide // lanes, lanes])
    sch.reorder(t, outer, inner, group, lane)
    sch.reverse_compute_at(local, t)
    sch.vectorize(sch.get_loops(local)[-1])
    sch.vectorize(lane)
    sch.unroll(group)
    sch.parallel(t)
    sch.decompose_reduction(block, outer)
    return tvm.compile(sch.mod, target=tvm.target.Target(device.target())), wide


def main() -> int:
    """Print `{"gflops": …}`, the best of several runs."""
    threads = int(sys.argv[1])
    from tvmstack._tvm import tvm

    library, wide = _kernel(detect_device(), threads)
    data = [np.full(_STEPS, 1e-3, np.float32), np.ones(wide, np.float32), np.zeros((threads, wide), np.float32)]
    arguments = [tvm.runtime.tensor(a) for a in data]
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        library["main"](*arguments)  # type: ignore[index]
        best = min(best, time.perf_counter() - start)
    flops = 2.0 * threads * wide * _STEPS * _ROUNDS
    sys.stdout.write(json.dumps({"gflops": flops / best / 1e9}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
