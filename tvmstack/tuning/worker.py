"""A worker process: builds candidates, keeps them in memory, runs them when told. A crash costs one candidate.

The parent sends a line of JSON and gets one back. The process answers on the true standard output; whatever libraries
print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["main"]

_REPEATS, _MIN_MS = 5, 4
# Another order of summation may move a result by this much of the largest value.
_TOLERANCE = 1e-3


class _Kernel:
    """One kernel on this worker: its inputs, what its default computes, and the candidates built so far."""

    def __init__(self, func: Any, device: Any) -> None:
        self.func, self.device = func, device
        self.built: dict[int, Callable[..., Any]] = {}
        self.timers: dict[int, Callable[..., Any]] = {}
        self.arrays: list[Any] = []
        self.expected: np.ndarray | None = None

    def build(self, choice: Mapping[str, Any], slot: int) -> None:
        from tvmstack import schedules
        from tvmstack._tvm import tvm
        from tvmstack.core.kernel import Choice

        scheduled = schedules.apply(self.func, Choice.from_json(choice), self.device)
        module = tvm.compile(scheduled, target=tvm.target.Target(self.device.target())).jit()
        name = str(self.func.attrs["global_symbol"])
        self.timers[slot] = module.time_evaluator(name, tvm.cpu(), number=1, repeat=_REPEATS, min_repeat_ms=_MIN_MS)
        self.built[slot] = module[name]

    def run(self, slot: int, is_default: bool) -> list[float]:
        if not self.arrays:
            self.arrays = [_random_tensor(p, i) for i, p in enumerate(self.func.params)]
        self._compare(slot, is_default)
        result = self.timers[slot](*self.arrays)
        return [float(t) for t in result.results]

    def _compare(self, slot: int, is_default: bool) -> None:
        out = self.arrays[-1]
        out.copyfrom(np.zeros(out.shape, str(out.dtype)))
        self.built[slot](*self.arrays)
        values = out.numpy()
        if is_default:
            self.expected = values
        elif self.expected is None:
            raise ValueError("the default has not run: there is nothing to compare with")
        else:
            largest = float(np.abs(self.expected.astype(np.float64)).max(initial=0.0))
            gap = float(np.abs(values.astype(np.float64) - self.expected.astype(np.float64)).max(initial=0.0))
            if not gap <= _TOLERANCE * max(largest, 1e-6):
                raise ValueError(f"wrong values: off by {gap:.3g}, largest value {largest:.3g}")


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
            self.kernels[message["name"]] = _Kernel(func, Device.from_json(message["device"]))
        else:
            kernel = self.kernels[message["name"]]
            if command == "build":
                kernel.build(message["choice"], message["slot"])
            else:
                return {"ok": True, "times": kernel.run(message["slot"], message["is_default"])}
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
