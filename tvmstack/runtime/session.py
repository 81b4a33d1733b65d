"""A loaded artifact."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tvmstack.artifact.check import require
from tvmstack.artifact.manifest import REGIONS, WEIGHTS, Manifest, read_with_sections
from tvmstack.core.errors import BackendError, UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.runtime.lanes import run_on_lane
from tvmstack.runtime.library import load_module
from tvmstack.runtime.regions import register_region
from tvmstack.runtime.tensors import arrays_from_inputs

__all__ = ["KernelTime", "Session", "load"]

_CPU, _POOLED = 1, 2
# Outputs up to this many bytes are copied: cheaper than asking whose memory they are.
_SMALL = 4096


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
        threads: how many threads its kernels use; None for what it was built for.
        verify_digests: whether to read every byte and compare digests first (about 1 s for each 1.5 GB).

    Raises:
        ArtifactError: the file is damaged, was built for another CPU or another TVM, or is no artifact.
        SetupError: TVM's runtime, or onnxruntime where a region needs it, is missing.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be 1 or more, not {threads}")
    require(Path(path), verify_digests)
    return Session(Path(path), threads)


class Session:
    """An artifact ready to run; safe to use from several threads at once. Made by `load`."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import tvm_ffi

        self._ffi = tvm_ffi
        self.path = path
        self._manifest, sections = read_with_sections(path)
        self._threads = threads or self._manifest.threads
        with path.open("rb") as file:
            self._image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._first = np.frombuffer(self._image, np.uint8).ctypes.data
        self._weights = self._map_weights(sections[WEIGHTS].offset)
        self._register_regions(sections[REGIONS].offset)
        self._module = load_module(path)
        self._vms: dict[int, Any] = {}
        self._lock = threading.Lock()

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
            inputs: an array or DLPack tensor for each input name, of the shape and dtype in `inputs`; any stride and
                alignment.

        Returns:
            A fresh array for each output name.

        Raises:
            UsageError: a name, shape or dtype is wrong.
            BackendError: a region failed.
        """
        arrays = arrays_from_inputs(self.inputs, inputs)
        return run_on_lane(self._threads, lambda: self._outputs(self._call(arrays), arrays))

    def time(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[float]:
        """Return the seconds each of `repeats` runs took, input checks left out."""
        arrays = arrays_from_inputs(self.inputs, inputs)

        def measure() -> list[float]:
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                self._call(arrays)
                times.append(time.perf_counter() - start)
            return times

        return run_on_lane(self._threads, measure)

    def profile(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[KernelTime]:
        """Return the time of each kernel and region, after one run to warm up; the clock adds about a microsecond a call."""
        arrays = arrays_from_inputs(self.inputs, inputs)
        return run_on_lane(self._threads, lambda: self._profile(arrays, repeats))

    def close(self) -> None:
        """Give back the weights' mapping and the virtual machines; the session cannot run any more."""
        with self._lock:
            self._vms.clear()
            self._weights = []
            self._module = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session cannot be pickled; load the artifact in the other process")

    def _map_weights(self, offset: int) -> list[Any]:
        tensors = []
        for row in self._manifest.weights:
            size = int(row["size"])
            flat = np.frombuffer(self._image, np.uint8, size, offset + int(row["offset"]))
            tensors.append(self._ffi.from_dlpack(flat.view(row["dtype"]).reshape(row["shape"])))
        return tensors

    def _register_regions(self, offset: int) -> None:
        rows = {r["digest"]: r for r in self._manifest.plan["regions"]}
        for place in self._manifest.regions:
            start = offset + int(place["offset"])
            model = self._image[start : start + int(place["size"])]
            register_region(place["digest"], model, rows[place["digest"]], self._threads)

    def _vm(self) -> Any:
        """Return the virtual machine of this thread: one must not be used by two threads at once."""
        ident = threading.get_ident()
        if ident not in self._vms:
            with self._lock:
                if self._module is None:
                    raise UsageError(f"the session of {self.path} is closed")
                vm = self._module["vm_load_executable"]()
                vm["vm_initialization"](_CPU, 0, _POOLED)
                self._vms[ident] = (vm, vm["main"])
        return self._vms[ident]

    def _call(self, arrays: list[np.ndarray]) -> Any:
        _, main = self._vm()
        try:
            return main(*[self._ffi.from_dlpack(a) for a in arrays], *self._weights)
        except (RuntimeError, ValueError, TypeError) as err:
            raise BackendError(f"running {self.path} failed: {str(err).strip().splitlines()[-1]}") from err

    def _outputs(self, result: Any, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        tensors = [result] if len(self.outputs) == 1 and hasattr(result, "__dlpack__") else list(result)
        held = {a.ctypes.data for a in arrays}
        found = {}
        for spec, tensor in zip(self.outputs, tensors, strict=True):
            array = np.from_dlpack(tensor)
            # an output may be an input, a weight or a constant passed through: the caller gets memory of its own
            address = array.ctypes.data
            shared = (
                array.nbytes <= _SMALL or address in held or self._first <= address < self._first + len(self._image)
            )
            found[spec.name] = array.copy() if shared else array
        return found

    def _profile(self, arrays: list[np.ndarray], repeats: int) -> list[KernelTime]:
        vm, _ = self._vm()
        runs: list[dict[str, list[float]]] = []
        starts: list[float] = []

        def clock(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if before:
                starts.append(time.perf_counter())
            elif starts:
                spent = time.perf_counter() - starts.pop()
                if not str(name).startswith("vm."):
                    runs[-1].setdefault(str(name), []).append(spent)
            return 0

        self._call(arrays)
        vm["set_instrument"](clock)
        try:
            for _ in range(repeats):
                runs.append({})
                self._call(arrays)
        finally:
            vm["set_instrument"](None)
        return [_kernel_time(name, runs) for name in runs[-1]] if runs else []


def _kernel_time(name: str, runs: list[dict[str, list[float]]]) -> KernelTime:
    totals = [sum(r.get(name, [])) for r in runs]
    return KernelTime(name, float(np.median(totals)), len(runs[-1][name]))
