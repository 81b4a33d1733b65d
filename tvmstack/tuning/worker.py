"""A worker process: builds candidates, keeps them in memory, runs them when told. A crash costs one candidate.

The parent sends a line of JSON and gets one back. The process answers on the true standard output; whatever libraries
print goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["main"]

_REPEATS, _REPEAT_S = 5, 0.004
# Weights from this size on are held in copies of this many bytes together, which no L2 cache holds.
_COLD_BYTES, _WEIGHT_BYTES, _MOST_COPIES = 1 << 16, 24 << 20, 64
# Another order of summation may move a result by this much of the largest value.
_TOLERANCE = 1e-3


class _Kernel:
    """One kernel on this worker: its inputs, what its default computes, and the candidates built so far.

    Weights come from memory in a model, where many megabytes pass between two uses. So that a candidate that only
    does well with weights in the cache does not win, runs go round several copies of them.
    """

    def __init__(self, func: Any, device: Any, weights: Sequence[int] = ()) -> None:
        self.func, self.device, self.weights = func, device, frozenset(weights)
        self.built: dict[int, Callable[..., Any]] = {}
        self.sets: list[list[Any]] = []
        self.expected: np.ndarray | None = None

    def build(self, choice: Mapping[str, Any], slot: int, library: str | None = None) -> None:
        """Build a candidate to run here, or into a library for a board."""
        from tvmstack import schedules
        from tvmstack._tvm import export_library, tvm
        from tvmstack.core.kernel import Choice
        from tvmstack.core.toolchain import cross_compiler

        scheduled = schedules.apply(self.func, Choice.from_json(choice), self.device)
        compiled = tvm.compile(scheduled, target=tvm.target.Target(self.device.target()))
        if library is not None:
            export_library(compiled, library, cross_compiler(self.device.arch))
            return
        module = compiled.jit()
        self.built[slot] = module[str(self.func.attrs["global_symbol"])]

    def run(self, slot: int, is_default: bool, limit_s: float = math.inf) -> list[float]:
        """Return the seconds of a call, once for each repeat; a candidate slower than the limit gets one repeat."""
        if not self.sets:
            self.sets = self._make_sets()
        call = self.built[slot]
        for arguments in self.sets[:2]:
            call(*arguments)
        times = [self._time(call)]
        if times[0] <= limit_s:
            self._compare(slot, is_default)
            times += [self._time(call) for _ in range(_REPEATS - 1)]
        return times

    def _time(self, call: Callable[..., Any]) -> float:
        start, calls = time.perf_counter(), 0
        while True:
            for arguments in self.sets:
                call(*arguments)
                calls += 1
                elapsed = time.perf_counter() - start
                if elapsed >= _REPEAT_S:
                    return elapsed / calls

    def drop_sets(self) -> None:
        """Free the inputs; they are made again, equal, when they are needed."""
        self.sets = []

    def _make_sets(self) -> list[list[Any]]:
        from tvmstack._tvm import tvm

        first = [_random_tensor(p, i) for i, p in enumerate(self.func.params)]
        size = sum(_nbytes(first[i]) for i in self.weights)
        copies = min(_MOST_COPIES, -(-_WEIGHT_BYTES // size)) if size >= _COLD_BYTES else 1
        others = [
            [tvm.runtime.tensor(a.numpy()) if i in self.weights else a for i, a in enumerate(first)]
            for _ in range(copies - 1)
        ]
        return [first, *others]

    def _compare(self, slot: int, is_default: bool) -> None:
        out = self.sets[0][-1]
        out.copyfrom(np.zeros(out.shape, str(out.dtype)))
        self.built[slot](*self.sets[0])
        values = out.numpy()
        if is_default:
            self.expected = values
        elif self.expected is None:
            raise ValueError("the default has not run: there is nothing to compare with")
        else:
            largest = float(np.abs(self.expected).max(initial=0.0))
            gap = float(np.abs(np.subtract(values, self.expected, dtype=np.float64)).max(initial=0.0))
            if not gap <= _TOLERANCE * max(largest, 1e-6):
                raise ValueError(f"wrong values: off by {gap:.3g}, largest value {largest:.3g}")


def _nbytes(tensor: Any) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(str(tensor.dtype)).itemsize


def _random_tensor(param: Any, seed: int) -> Any:
    from tvmstack._tvm import tvm

    shape, dtype = [int(d) for d in param.ty.shape], str(param.ty.dtype)
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return tvm.runtime.tensor(rng.uniform(-1, 1, shape).astype(dtype))
    return tvm.runtime.tensor(np.zeros(shape, dtype))


class _Worker:
    def __init__(self) -> None:
        self.kernels: dict[str, _Kernel] = {}

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        command = message["do"]
        if command == "kernel":
            from tvmstack._tvm import tvm
            from tvmstack.core.device import Device

            func = tvm.ir.load_json(message["func"])["main"].with_attr("global_symbol", message["name"])
            self.kernels[message["name"]] = _Kernel(func, Device.from_json(message["device"]), message["weights"])
        else:
            kernel = self.kernels[message["name"]]
            if command == "build":
                kernel.build(message["choice"], message["slot"], message.get("library"))
            else:
                for name, other in self.kernels.items():
                    if name != message["name"]:
                        other.drop_sets()
                limit = message["limit_s"] or math.inf
                return {"ok": True, "times": kernel.run(message["slot"], message["is_default"], limit)}
        return {"ok": True}


def main() -> None:
    """Serve the parent until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    from tvmstack import _tvm

    _tvm.light_intrinsics()
    worker = _Worker()
    print(json.dumps({"ok": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = worker.handle(json.loads(line))
        except Exception as err:  # noqa: BLE001  (the border of the process: any failure of a candidate is an answer)
            text = (str(err).strip() or type(err).__name__).splitlines()[-1]
            answer = {"ok": False, "reason": f"{type(err).__name__}: {text}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
