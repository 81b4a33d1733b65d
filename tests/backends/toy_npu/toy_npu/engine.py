"""The runtime of the toy NPU: its C code, built once into a temporary folder and called by ctypes."""

from __future__ import annotations

import ctypes
import functools
import io
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "npu.so"
        source = Path(__file__).with_name("npu.c")
        built = subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", source, "-o", path, "-lm"], capture_output=True, text=True
        )
        if built.returncode:
            raise SetupError(f"the runtime of toy_npu cannot be built: {built.stderr.splitlines()[0]}")
        return ctypes.CDLL(str(path))


class Engine:
    def __init__(self, blob: bytes) -> None:
        with np.load(io.BytesIO(blob), allow_pickle=False) as held:
            self.arrays = {name: held[name] for name in held.files}
        self.steps = json.loads(self.arrays["steps"].tobytes())
        self.library = _library()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        value = np.ascontiguousarray(inputs[0][0].transpose(1, 2, 0))
        for index, step in enumerate(self.steps):
            if step["op"] == "Relu":
                value = self._relu(value)
            elif step["op"] == "Add":
                value = self._add(value, self.arrays[f"{index}_added"])
            else:
                value = self._conv(value, index, step)
        return [np.ascontiguousarray(value.transpose(2, 0, 1)[None])]

    def _relu(self, x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        self.library.toy_relu(_at(x), x.size, _at(y))
        return y

    def _add(self, x: np.ndarray, added: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        self.library.toy_add(_at(x), x.shape[0] * x.shape[1], x.shape[2], _at(added), _at(y))
        return y

    def _conv(self, x: np.ndarray, index: int, step: Mapping[str, Any]) -> np.ndarray:
        weights, scale, bias = (self.arrays[f"{index}_{key}"] for key in ("weights", "scale", "bias"))
        count, k, pad, stride = weights.shape[0], weights.shape[1], step["pad"], step["stride"]
        rows, columns = ((n + 2 * pad - k) // stride + 1 for n in x.shape[:2])
        y = np.empty((rows, columns, count), np.int8)
        self.library.toy_conv(
            *(_at(x), *x.shape, step["x_zero"], _at(weights), count, k, pad, stride),
            *(_at(bias), _at(scale), step["y_zero"], _at(y)),
        )
        return y

    def close(self) -> None:
        self.arrays = {}


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> Engine:
    return Engine(blob)
