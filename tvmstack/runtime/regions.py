"""Regions of an artifact that onnxruntime runs: one packed function each, registered under the region's digest."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tvmstack.core.errors import BackendError, SetupError
from tvmstack.runtime.tensors import aligned_empty, is_in_place

__all__ = ["PREFIX", "Region", "hold_region"]

PREFIX = "tvmstack.region."


class Region:
    """A region as TVM calls it. Sessions that hold the same region share it, with the first one's thread count."""

    def __init__(self, digest: str, model: bytes, row: Mapping[str, Any], threads: int) -> None:
        self._digest, self._model, self._threads = digest, model, threads
        self._inputs = [str(spec["name"]) for spec in row["inputs"]]
        self._outputs = [str(spec["name"]) for spec in row["outputs"]]
        self._session, self._process = self._open(), os.getpid()

    def __call__(self, *tensors: Any) -> Any:
        """Run the region on TVM tensors; return one tensor, or a list where it has several outputs."""
        if self._process != os.getpid():  # onnxruntime's threads do not survive a fork
            self._session, self._process = self._open(), os.getpid()
        feed = {name: np.from_dlpack(t) for name, t in zip(self._inputs, tensors, strict=True)}
        try:
            results = self._session.run(self._outputs, feed)
        except Exception as err:  # the border to onnxruntime, whose errors share no class
            raise BackendError(f"onnxruntime failed in region {self._digest}: {_first_line(err)}") from err
        given = [_tensor(np.asarray(r)) for r in results]
        return given[0] if len(given) == 1 else given

    def _open(self) -> Any:
        try:
            import onnxruntime
        except ImportError as err:
            raise SetupError("a region of this artifact runs in onnxruntime: pip install onnxruntime") from err
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        # Spinning threads would take the cores from TVM's kernels between two regions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])
        except Exception as err:  # the border to onnxruntime, whose errors share no class
            words = f"onnxruntime {onnxruntime.__version__} refuses region {self._digest}: {_first_line(err)}"
            raise SetupError(words) from err


# A registered function stays for the life of the process; the region that it finds here lives as long as its sessions.
_held: WeakValueDictionary[str, Region] = WeakValueDictionary()
_lock = threading.Lock()


def hold_region(digest: str, model: bytes, row: Mapping[str, Any], threads: int) -> Region:
    """Return a region, whose packed function works as long as somebody holds it.

    Raises:
        SetupError: onnxruntime is missing or refuses the region.
    """
    import tvm_ffi

    with _lock:
        region = _held.get(digest)
        if region is None:
            region = _held[digest] = Region(digest, model, row, threads)
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
