"""Run an engine of TensorRT or TensorRT for RTX on the GPU it was built for.

The vendor's library is not even loaded where there is no such GPU: its lean runtime crashes there.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError
from tvmstack.core.packages import installed_version, same_release
from tvmstack.runtime.engines.cuda import Cuda, open_gpu
from tvmstack.runtime.tensors import numpy_dtype

__all__ = ["INSTALL", "open_engine"]

INSTALL = {"tensorrt_rtx": "pip install tensorrt-rtx-cu12", "tensorrt": "pip install tensorrt"}


@dataclass
class _Lane:
    """One caller's execution context, its stream and its memory on the GPU by tensor: address and size."""

    context: Any
    stream: int
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)


class _Engine:
    def __init__(self, cuda: Cuda, held: Sequence[Any], row: Mapping[str, Any]) -> None:
        """`held` are the vendor's logger, runtime and engine, which must live as long as each other."""
        self._cuda, self._held = cuda, list(held)
        self._inputs, self._outputs = list(row["engine_inputs"]), list(row["engine_outputs"])
        self._dtypes = [numpy_dtype(spec["dtype"]) for spec in row["outputs"]]
        self._idle: list[_Lane] = []
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self._cuda.use()
        with self._lock:
            lane = self._idle.pop() if self._idle else None
        lane = lane or _Lane(self._held[-1].create_execution_context(), self._cuda.stream())
        results = self._run(lane, [np.ascontiguousarray(x) for x in inputs])
        with self._lock:
            self._idle.append(lane)
        return results

    def _run(self, lane: _Lane, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        for name, array in zip(self._inputs, inputs, strict=True):
            if not lane.context.set_input_shape(name, array.shape):
                raise SetupError(f"the engine takes no input {name} of shape {list(array.shape)}")
            self._cuda.send(self._place(lane, name, array.nbytes), array, lane.stream)
        shapes = [tuple(lane.context.get_tensor_shape(name)) for name in self._outputs]
        if any(dim < 0 for shape in shapes for dim in shape):
            raise SetupError("the engine has outputs whose size depends on data, which cannot be fetched here")
        results = [np.empty(shape, dtype) for shape, dtype in zip(shapes, self._dtypes, strict=True)]
        places = [self._place(lane, n, r.nbytes) for n, r in zip(self._outputs, results, strict=True)]
        if not lane.context.execute_async_v3(lane.stream):
            raise SetupError("TensorRT cannot run the engine on this GPU")
        for result, place in zip(results, places, strict=True):
            self._cuda.fetch(result, place, lane.stream)
        self._cuda.wait(lane.stream)
        return results

    def _place(self, lane: _Lane, name: str, size: int) -> int:
        address, room = lane.memory.get(name, (0, -1))
        if size > room:
            if address:
                self._cuda.free(lane.memory.pop(name)[0])
            address = self._cuda.alloc(size)
            lane.memory[name] = (address, size)
            lane.context.set_tensor_address(name, address)
        return address

    def close(self) -> None:
        self._cuda.use()
        for lane in self._idle:
            for address, _ in lane.memory.values():
                self._cuda.free(address)
            self._cuda.end_stream(lane.stream)
        self._idle.clear()
        while self._held:
            self._held.pop()
        self._cuda.close()


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> _Engine:
    """Deserialise an engine on the GPU it was built for; `threads` mean nothing there.

    Raises:
        SetupError: the library is missing or of another release, there is no such GPU, or it refuses the engine.
    """
    ((module, wanted),) = dict(row["versions"]).items()
    here, install = installed_version(module), INSTALL.get(module, f"pip install {module}")
    if not here:
        raise SetupError(f"region {row['digest']} needs {module} {wanted}, which is not installed: {install}=={wanted}")
    if wanted and not same_release(wanted, here):
        raise SetupError(
            f"region {row['digest']} is an engine of {module} {wanted}, installed is {here}: {install}=={wanted}"
        )
    cuda = open_gpu(str(row["target"]))
    cuda.use()
    vendor = importlib.import_module(module)
    logger = vendor.Logger(vendor.Logger.ERROR)
    runtime = vendor.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(blob)
    if engine is None:
        cuda.close()
        raise SetupError(f"{module} {here} refuses region {row['digest']} for {row['target']}: compile the model again")
    return _Engine(cuda, [logger, runtime, engine], row)
