"""Worker processes from the parent's side: started once, watched by a clock, replaced when they die or hang."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmstack._tvm import tvm
from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel

__all__ = ["BUILD_S", "RUN_S", "MachineChanged", "Pool", "WorkerLost"]

START_S, BUILD_S, RUN_S = 120.0, 30.0, 20.0


class WorkerLost(Exception):
    """A worker crashed or hung; `args[0]` says which in words."""


class MachineChanged(Exception):
    """What ran candidates was lost through no fault of theirs; another took its place and has run nothing yet."""


class _Process:
    """One worker process, the kernels it knows with the slots built of each, and those whose default has run."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.known: dict[str, set[int]] = {}
        self.referenced: set[str] = set()
        self._start()

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        env = {
            **os.environ,
            "TVM_NUM_THREADS": str(self._threads),
            "PYTHONPATH": os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvmstack.tuning.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
            start_new_session=True,
        )
        self.known.clear()
        self.referenced.clear()
        self._ready = False

    def send(self, message: Mapping[str, Any]) -> None:
        if not self._ready:
            self.receive(START_S)
            self._ready = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as err:
            raise self._lost("crash") from err

    def receive(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not readable:
            raise self._lost(f"no answer in {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._lost("crash")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _lost(self, why: str) -> WorkerLost:
        self.stop()
        code = self._process.returncode
        self._start()
        return WorkerLost(f"{why} (signal {-code})" if why == "crash" and code and code < 0 else why)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Pool:
    """As many workers as cores; a kernel stays with one worker, which holds its inputs and its reference values."""

    def __init__(self, device: Device, size: int | None = None) -> None:
        self._device = device
        self._workers = [_Process(device.cores) for _ in range(size or device.cores)]
        self._home: dict[str, int] = {}
        self.seconds = {"build": 0.0, "run": 0.0}

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()

    def build(self, kernel: Kernel, slots: Mapping[int, Choice]) -> dict[int, str]:
        """Build candidates on the kernel's worker; return why for each that failed."""
        return self.build_all([(kernel, slots)])[kernel.name]

    def build_all(self, jobs: Sequence[tuple[Kernel, Mapping[int, Choice]]]) -> dict[str, dict[int, str]]:
        """Build for several kernels at once, those on different workers in parallel; return the failures of each."""
        start = time.monotonic()
        failures: dict[str, dict[int, str]] = {kernel.name: {} for kernel, _ in jobs}
        queues: list[list[tuple[Kernel, int, Choice]]] = [[] for _ in self._workers]
        for kernel, slots in jobs:
            queues[self._at(kernel)] += [(kernel, slot, choice) for slot, choice in slots.items()]
        waiting: dict[int, tuple[Kernel, int, Choice]] = {}
        while any(queues) or waiting:
            for index, queue in enumerate(queues):
                if queue and index not in waiting:
                    waiting[index] = queue.pop(0)
                    self._begin(index, waiting, failures)
            for index in list(waiting):
                kernel, slot, _ = waiting.pop(index)
                try:
                    answer = self._workers[index].receive(BUILD_S)
                    if answer["ok"]:
                        self._workers[index].known[kernel.name].add(slot)
                    else:
                        failures[kernel.name][slot] = answer["reason"]
                except WorkerLost as lost:
                    failures[kernel.name][slot] = f"build: {lost}"
        self.seconds["build"] += time.monotonic() - start
        return failures

    def _begin(self, index: int, waiting: dict[int, tuple[Kernel, int, Choice]], failures: Any) -> None:
        kernel, slot, choice = waiting[index]
        try:
            self._introduce(index, kernel)
            self._workers[index].send(self._build_message(kernel, slot, choice))
        except (WorkerLost, TuningError) as err:
            failures[kernel.name][slot] = f"build: {err}"
            del waiting[index]

    def _build_message(self, kernel: Kernel, slot: int, choice: Choice) -> dict[str, Any]:
        return {"do": "build", "name": kernel.name, "slot": slot, "choice": choice.to_json()}

    def run(self, kernel: Kernel, slot: int, is_default: bool, limit_s: float | None = None) -> list[float]:
        """Run a built candidate alone on the machine; return the seconds of its repeats, one if it is over the limit.

        Raises:
            WorkerLost: it crashed or hung; what the worker had built is gone.
            TuningError: it ran and is wrong, or the worker does not hold it any more.
        """
        start = time.monotonic()
        worker = self._workers[self._at(kernel)]
        try:
            message = {"do": "run", "name": kernel.name, "slot": slot, "is_default": is_default, "limit_s": limit_s}
            worker.send(message)
            answer = worker.receive(RUN_S)
        finally:
            self.seconds["run"] += time.monotonic() - start
        if not answer["ok"]:
            raise TuningError(answer["reason"])
        if is_default:
            worker.referenced.add(kernel.name)
        return [float(t) for t in answer["times"]]

    def knows(self, kernel: Kernel) -> bool:
        """Whether the kernel's worker was told of it and has not been lost since."""
        return kernel.name in self._workers[self._at(kernel)].known

    def holds(self, kernel: Kernel, slot: int) -> bool:
        """Whether the kernel's worker still holds this candidate."""
        return slot in self._workers[self._at(kernel)].known.get(kernel.name, ())

    def has_reference(self, kernel: Kernel) -> bool:
        """Whether the kernel's worker holds the default's values, which candidates are compared with."""
        return kernel.name in self._workers[self._at(kernel)].referenced

    def _at(self, kernel: Kernel) -> int:
        if kernel.name not in self._home:
            self._home[kernel.name] = len(self._home) % len(self._workers)
        return self._home[kernel.name]

    def _introduce(self, index: int, kernel: Kernel) -> None:
        worker = self._workers[index]
        if kernel.name in worker.known:
            return
        func = str(tvm.ir.save_json(tvm.IRModule({"main": kernel.func})))
        about = {"func": func, "device": self._device.to_json(), "weights": list(kernel.weights)}
        worker.send({"do": "kernel", "name": kernel.name, **about})
        answer = worker.receive(BUILD_S)
        if not answer["ok"]:
            raise TuningError(f"a worker cannot take kernel {kernel.name}: {answer['reason']}")
        worker.known[kernel.name] = set()
