"""Regions of an artifact that another engine runs: one packed function each, registered under the region's digest."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tvmstack.core.errors import BackendError
from tvmstack.runtime.engines import Engine, open_engine
from tvmstack.runtime.tensors import aligned_empty, is_in_place

__all__ = ["PREFIX", "Region", "hold_region"]

PREFIX = "tvmstack.region."


class Region:
    """A region as TVM calls it. Sessions that hold the same region share it, with the first one's thread count."""

    def __init__(self, digest: str, blob: bytes, row: Mapping[str, Any], threads: int) -> None:
        self._digest, self._blob, self._row, self._threads = digest, blob, row, threads
        self._engine, self._process = self._open(), os.getpid()

    def __call__(self, *tensors: Any) -> Any:
        """Run the region on TVM tensors; return one tensor, or a list where it has several outputs."""
        if self._process != os.getpid():  # a vendor's threads do not survive a fork
            self._engine, self._process = self._open(), os.getpid()
        try:
            results = self._engine.run([np.from_dlpack(t) for t in tensors])
        except Exception as err:  # the border to a vendor's runtime, whose errors share no class
            raise BackendError(f"{self._row['engine']} failed in region {self._digest}: {_first_line(err)}") from err
        given = [_tensor(r) for r in results]
        return given[0] if len(given) == 1 else given

    def _open(self) -> Engine:
        return open_engine(self._blob, self._row, self._threads)


# A registered function stays for the life of the process; the region that it finds here lives as long as its sessions.
_held: WeakValueDictionary[str, Region] = WeakValueDictionary()
_lock = threading.Lock()


def hold_region(digest: str, blob: bytes, row: Mapping[str, Any], threads: int) -> Region:
    """Return a region, whose packed function works as long as somebody holds it.

    Raises:
        SetupError: its engine is missing or refuses the region.
    """
    import tvm_ffi

    with _lock:
        region = _held.get(digest)
        if region is None:
            region = _held[digest] = Region(digest, blob, row, threads)
            tvm_ffi.register_global_func(PREFIX + digest, lambda *tensors: _held[digest](*tensors), override=True)
        return region


def _tensor(array: np.ndarray) -> Any:
    import tvm_ffi

    if not is_in_place(array):
        copy = aligned_empty(array.shape, array.dtype)
        np.copyto(copy, array)
        array = copy
    return tvm_ffi.from_dlpack(array)


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
