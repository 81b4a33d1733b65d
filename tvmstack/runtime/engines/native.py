"""Engines in C: the same `libtvmstack_engine_NAME.so` that the native runtime loads (tvmstack_engine.h), by ctypes."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import BackendError, SetupError
from tvmstack.runtime.tensors import aligned_empty, is_in_place, numpy_dtype

__all__ = ["NativeEngine", "find_native_engine", "open_engine"]

_ABI = 1
_WORDS = 1024
_DL_CPU = 1
# DLPack's type codes by numpy's kind; bfloat16, which numpy knows by name only, has one of its own.
_DL_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_DL_BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _OpenArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("blob", ctypes.c_void_p),
        ("blob_size", ctypes.c_size_t),
        ("row", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
        ("model_folder", ctypes.c_char_p),
        ("engine_folder", ctypes.c_char_p),
    ]


_Alloc = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32
)
_Words = (ctypes.c_char_p, ctypes.c_size_t)


class _Engine(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("version", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, *_Words, *_Words)),
        (
            "open",
            ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_OpenArgs), ctypes.POINTER(ctypes.c_void_p), *_Words),
        ),
        (
            "run",
            ctypes.CFUNCTYPE(
                ctypes.c_int32,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.POINTER(_Tensor)),
                ctypes.c_int32,
                ctypes.c_int32,
                _Alloc,
                ctypes.c_void_p,
                *_Words,
            ),
        ),
        ("close", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


def find_native_engine(name: str) -> Path | None:
    """Return the library of an engine from the folders of $TVMSTACK_ENGINES; None where there is none."""
    if not name.replace("_", "").replace("-", "").isalnum():
        return None
    folders = [folder for folder in os.environ.get("TVMSTACK_ENGINES", "").split(":") if folder]
    found = (Path(folder) / f"libtvmstack_engine_{name}.so" for folder in folders)
    return next((path for path in found if path.exists()), None)


@dataclass
class _Outputs:
    """Memory that an engine asked for, by the place of the output."""

    dtypes: Sequence[np.dtype[Any]]
    arrays: dict[int, np.ndarray] = field(default_factory=dict)

    def allocate(self, _context: int | None, index: int, shape: Any, ndim: int) -> int | None:
        """Return the address of an output's memory; None where there cannot be any, which the engine reports."""
        try:
            array = aligned_empty([int(shape[d]) for d in range(ndim)], self.dtypes[index])
        except (IndexError, MemoryError, ValueError):
            return None
        self.arrays[index] = array
        return int(array.ctypes.data)


class NativeEngine:
    """A region that an engine's library holds open; safe to run from several threads at once.

    Args:
        blob: the region's bytes.
        row: what the manifest says of it.
        threads: how many threads a call may use.
        library: the engine's library; None for the one that `find_native_engine` finds by the row's engine.

    Raises:
        SetupError: there is no such library, it speaks another version of the interface, or it refuses the region.
    """

    def __init__(self, blob: bytes, row: Mapping[str, Any], threads: int, library: Path | None = None) -> None:
        self._name, self._digest = str(row["engine"]), str(row["digest"])
        path = library or find_native_engine(self._name)
        if path is None:
            raise SetupError(f"there is no libtvmstack_engine_{self._name}.so in the folders of $TVMSTACK_ENGINES")
        self._dtypes = [numpy_dtype(str(spec["dtype"])) for spec in row["outputs"]]
        self._engine = _opened(path)
        self._blob = np.frombuffer(blob, np.uint8)
        self._handle = ctypes.c_void_p()
        folder = str(path.resolve().parent).encode()
        text = json.dumps(dict(row), default=list).encode()
        args = _OpenArgs(ctypes.sizeof(_OpenArgs), self._blob.ctypes.data, len(blob), text, threads, b"", folder)
        words = ctypes.create_string_buffer(_WORDS)
        if self._engine.open(ctypes.byref(args), ctypes.byref(self._handle), words, _WORDS):
            self._handle.value = None
            raise SetupError(f"region {self._digest} ({self._name}): {words.value.decode(errors='replace')}")

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the region's outputs, the caller's own.

        Raises:
            BackendError: the engine failed.
        """
        held = [array if is_in_place(array) else _copy(array) for array in inputs]
        tensors = [_tensor(array) for array in held]
        pointers = (ctypes.POINTER(_Tensor) * max(1, len(tensors)))(*(ctypes.pointer(t) for t in tensors))
        outputs = _Outputs(self._dtypes)
        words = ctypes.create_string_buffer(_WORDS)
        failed = self._engine.run(
            *(self._handle, pointers, len(tensors), len(self._dtypes)),
            *(_Alloc(outputs.allocate), None, words, _WORDS),
        )
        if failed or len(outputs.arrays) != len(self._dtypes):
            text = words.value.decode(errors="replace") or "it left out an output"
            raise BackendError(f"{self._name} failed in region {self._digest}: {text}")
        return [outputs.arrays[index] for index in range(len(self._dtypes))]

    def close(self) -> None:
        """Give the region back to the engine; not to be run afterwards."""
        if self._handle.value is not None:
            self._engine.close(self._handle)
            self._handle.value = None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> NativeEngine:
    """Open a region with the library that is called after its row's engine; see `NativeEngine`."""
    return NativeEngine(blob, row, threads)


def _opened(path: Path) -> _Engine:
    try:
        get = ctypes.CDLL(str(path)).tvmstack_engine_get
    except (OSError, AttributeError) as err:
        raise SetupError(f"{path} is no engine: {err}") from err
    get.argtypes, get.restype = [ctypes.c_uint32], ctypes.POINTER(_Engine)
    found = get(_ABI)
    if not found or found.contents.abi != _ABI:
        raise SetupError(
            f"{path} does not know version {_ABI} of the engine interface: build it with this tvmstack's "
            "tvmstack_engine.h"
        )
    engine: _Engine = found.contents
    return engine


def _copy(array: np.ndarray) -> np.ndarray:
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return copy


def _tensor(array: np.ndarray) -> _Tensor:
    code = _DL_BFLOAT if array.dtype.name == "bfloat16" else _DL_CODES[array.dtype.kind]
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    dtype = _Dtype(code, array.dtype.itemsize * 8, 1)
    return _Tensor(array.ctypes.data, _Device(_DL_CPU, 0), array.ndim, dtype, shape, None, 0)
