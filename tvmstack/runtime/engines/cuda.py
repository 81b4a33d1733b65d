"""NVIDIA's driver through ctypes: which GPUs there are, memory, copies and streams. Nothing is loaded without a GPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError

__all__ = ["Cuda", "gpu_targets", "open_gpu"]

_LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76


class Cuda:
    """One GPU's primary context; the driver's functions fail with a `SetupError` that names them."""

    def __init__(self, library: Any, index: int) -> None:
        self._library = library
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._device, self._context = device, context

    def use(self) -> None:
        """Make this GPU the calling thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def stream(self) -> int:
        """Return a new stream."""
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def alloc(self, size: int) -> int:
        """Return the address of `size` new bytes on the GPU."""
        made = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(max(1, size)))
        return made.value

    def free(self, address: int) -> None:
        """Give memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def send(self, address: int, array: np.ndarray, stream: int) -> None:
        """Copy a contiguous array to the GPU, in the stream's order."""
        where, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), where, size, ctypes.c_void_p(stream))

    def fetch(self, array: np.ndarray, address: int, stream: int) -> None:
        """Copy from the GPU into a contiguous array, in the stream's order; it is there after `wait`."""
        where, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyDtoHAsync_v2", where, ctypes.c_uint64(address), size, ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        """Wait until the stream is empty."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def end_stream(self, stream: int) -> None:
        """Give a stream back."""
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def close(self) -> None:
        """Let the primary context go."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise SetupError(f"the GPU's driver fails in {name}: CUDA error {status}")


@lru_cache(maxsize=1)
def gpu_targets() -> tuple[str, ...]:
    """Return the architecture of each GPU here ("sm89"), in the driver's order; empty without a driver or a GPU."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    count = ctypes.c_int()
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(f"sm{_attribute(library, i, _MAJOR)}{_attribute(library, i, _MINOR)}" for i in range(count.value))


def _attribute(library: Any, index: int, number: int) -> int:
    device, value = ctypes.c_int(), ctypes.c_int()
    if library.cuDeviceGet(ctypes.byref(device), index) or library.cuDeviceGetAttribute(
        ctypes.byref(value), number, device
    ):
        return 0
    return value.value


def open_gpu(target: str) -> Cuda:
    """Return the first GPU of an architecture.

    Raises:
        SetupError: there is none.
    """
    here = gpu_targets()
    if target not in here:
        found = f"this machine has {', '.join(here)}" if here else "this machine has no NVIDIA GPU, or no driver for it"
        raise SetupError(f"an engine for {target} needs such a GPU, but {found}")
    return Cuda(ctypes.CDLL(_LIBRARY), here.index(target))
