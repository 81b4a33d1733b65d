"""A loaded artifact."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from tvmstack.artifact.check import require
from tvmstack.artifact.manifest import REGIONS, WEIGHTS, Manifest
from tvmstack.core.device import physical_cores
from tvmstack.core.errors import UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.runtime.lanes import run_on_lane
from tvmstack.runtime.library import load_module
from tvmstack.runtime.machine import Machine, Program
from tvmstack.runtime.regions import Region, hold_region
from tvmstack.runtime.tensors import Signature, numpy_dtype

__all__ = ["KernelTime", "Session", "load"]

T = TypeVar("T")


@dataclass(frozen=True)
class KernelTime:
    """How long one inference spent in a kernel: the median over the repeats, all its calls together."""

    name: str
    seconds: float
    calls: int


def load(path: str | Path, threads: int | None = None, verify_digests: bool = True) -> Session:
    """Load an artifact.

    Args:
        path: the `.so`.
        threads: how many threads its kernels use; None for $TVM_NUM_THREADS where that is set, else what it was
            built for, but no more than the physical cores this process may use.
        verify_digests: whether to read every byte and compare digests first (about 1 s for each GB and core).

    Raises:
        ArtifactError: the file is damaged, was built for another CPU or another TVM, or is no artifact.
        SetupError: TVM's runtime, or onnxruntime where a region needs it, is missing.
        UsageError: `threads` is no count of threads.
    """
    path = Path(path)
    manifest, sections = require(path, verify_digests)
    count = _thread_count(threads, manifest.threads)
    return Session(path, manifest, sections[WEIGHTS].offset, sections[REGIONS].offset, count)


def _thread_count(asked: int | None, built: int) -> int:
    if asked is not None:
        if type(asked) is not int or asked < 1:
            raise UsageError(f"threads must be a whole number from 1 on, not {asked!r}")
        return asked
    text = os.environ.get("TVM_NUM_THREADS", "")
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"TVM_NUM_THREADS must be a whole number from 1 on, not {text!r}")
        return int(text)
    return max(1, min(built, physical_cores()))


class Session:
    """An artifact ready to run; safe to use from several threads at once. Made by `load`.

    Which thread does the work, and what several sessions with different thread counts mean for each other, is told in
    `tvmstack.runtime.lanes`.
    """

    def __init__(self, path: Path, manifest: Manifest, weights_at: int, regions_at: int, threads: int) -> None:
        self.path = path
        self._manifest = manifest
        self._threads = threads
        self._signature = Signature(manifest.inputs)
        for spec in manifest.outputs:
            numpy_dtype(spec.dtype)
        module = load_module(path)
        with path.open("rb") as file:
            image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        memory, weights = _map_weights(image, weights_at, manifest.weights)
        regions = tuple(_hold(image, regions_at, place, manifest, threads) for place in manifest.regions)
        names = tuple(spec.name for spec in manifest.outputs)
        self._program: Program | None = Program(path, module, names, weights, memory, regions)
        self._idle = [Machine(self._program)]

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self._manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `run` takes."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `run` returns."""
        return self._manifest.outputs

    @property
    def threads(self) -> int:
        """How many threads the kernels use."""
        return self._threads

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the model.

        Args:
            inputs: an array or DLPack tensor for each input name, of the shape and dtype in `inputs`; any stride,
                alignment and byte order. Python numbers will do for inputs without dims.

        Returns:
            An array for each output name, the caller's own: nothing changes it later, and it outlives the session.

        Raises:
            UsageError: a name, shape or dtype is wrong, or the session is closed.
            BackendError: a region, or TVM itself, failed.
        """
        return run_on_lane(self._threads, self._lend, Machine.run, self._signature.arrays(inputs))

    def time(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[float]:
        """Return the seconds each of `repeats` runs took, without checks of inputs and copies of outputs."""
        return run_on_lane(self._threads, self._lend, _times, self._signature.arrays(inputs), repeats)

    def profile(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[KernelTime]:
        """Return the time of each kernel and region, after one run to warm up.

        The clock itself adds about a microsecond a call.
        """
        return run_on_lane(self._threads, self._lend, _profile, self._signature.arrays(inputs), repeats)

    def close(self) -> None:
        """Give back weights, machines and regions; runs under way end well, later ones are refused."""
        self._program = None
        self._idle.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session cannot be pickled; load the artifact in the other process")

    def __repr__(self) -> str:
        state = "closed" if self._program is None else f"{self._threads} threads"
        return f"<Session of {self.path}, {state}>"

    def _lend(self, work: Callable[..., T], *args: Any) -> T:
        """Return `work(machine, *args)` with a machine that nobody else uses; one that failed is not used again."""
        program = self._program
        if program is None:
            raise UsageError(f"the session of {self.path} is closed; load it again")
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = Machine(program)
        result = work(machine, *args)
        if self._program is not None:
            self._idle.append(machine)
        return result


def _times(machine: Machine, arrays: Sequence[np.ndarray], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        machine.call(arrays)
        times.append(time.perf_counter() - start)
    return times


def _profile(machine: Machine, arrays: Sequence[np.ndarray], repeats: int) -> list[KernelTime]:
    runs: list[dict[str, list[float]]] = []
    starts: list[float] = []

    def clock(_func: Any, name: Any, before: bool, _result: Any, *_args: Any) -> int:
        if before:
            starts.append(time.perf_counter())
        else:
            spent = time.perf_counter() - starts.pop()
            if not str(name).startswith("vm."):
                runs[-1].setdefault(str(name), []).append(spent)
        return 0

    machine.call(arrays)
    machine.instrument(clock)
    try:
        for _ in range(repeats):
            runs.append({})
            machine.call(arrays)
    finally:
        machine.instrument(None)
    return [_kernel_time(name, runs) for name in runs[-1]] if runs else []


def _map_weights(image: mmap.mmap, at: int, rows: tuple[Mapping[str, Any], ...]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return the weights' memory, mapped from the file and private to this process, and a tensor on each weight."""
    import tvm_ffi

    size = max((int(row["offset"]) + int(row["size"]) for row in rows), default=0)
    memory = np.frombuffer(image, np.uint8, size, at)
    tensors = []
    for row in rows:
        start = int(row["offset"])
        flat = memory[start : start + int(row["size"])]
        tensors.append(tvm_ffi.from_dlpack(flat.view(numpy_dtype(row["dtype"])).reshape(row["shape"])))
    return memory, tuple(tensors)


def _hold(image: mmap.mmap, at: int, place: Mapping[str, Any], manifest: Manifest, threads: int) -> Region:
    digest = str(place["digest"])
    row = next(r for r in manifest.plan["regions"] if r["digest"] == digest)
    start = at + int(place["offset"])
    return hold_region(digest, image[start : start + int(place["size"])], row, threads)


def _kernel_time(name: str, runs: list[dict[str, list[float]]]) -> KernelTime:
    totals = [sum(r.get(name, [])) for r in runs]
    return KernelTime(name, float(np.median(totals)), len(runs[-1][name]))
