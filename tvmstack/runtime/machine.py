"""One virtual machine of an artifact with input buffers of its own. TVM's machines serve one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import BackendError
from tvmstack.core.model import TensorSpec
from tvmstack.runtime.tensors import aligned_empty, is_in_place

__all__ = ["Machine"]

_CPU, _POOLED = 1, 2
# Below this a copy costs less than telling TVM of another piece of memory.
_COPIED = 32 << 10

Instrument = Callable[..., int]


class Machine:
    """Runs `main` on arrays that `Signature` has checked.

    Args:
        module: the artifact as tvm_ffi loaded it.
        path: for messages.
        outputs: names of what `main` returns.
        weights: tensors that follow the inputs.
        weights_memory: where these are, to tell an output that is a weight.
    """

    def __init__(
        self,
        module: Any,
        path: Path,
        outputs: Sequence[TensorSpec],
        weights: Sequence[Any],
        weights_memory: np.ndarray,
    ) -> None:
        import tvm_ffi

        self._from_dlpack = tvm_ffi.from_dlpack
        self._path = path
        self._names = [s.name for s in outputs]
        self._weights = tuple(weights)
        self._weights_memory = weights_memory
        self._vm = module["vm_load_executable"]()
        self._vm["vm_initialization"](_CPU, 0, _POOLED)
        self._main = self._vm["main"]
        self._buffers: dict[int, tuple[np.ndarray, Any]] = {}

    def call(self, arrays: Sequence[np.ndarray]) -> Any:
        """Run once and return what TVM returns.

        Raises:
            BackendError: a region, or TVM itself, failed.
        """
        tensors = [self._tensor(index, array) for index, array in enumerate(arrays)]
        try:
            return self._main(*tensors, *self._weights)
        except Exception as err:  # whatever a region raised comes through TVM as it was
            words = (str(err).strip() or type(err).__name__).splitlines()[-1]
            raise BackendError(f"running {self._path} failed: {words}") from err

    def run(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Run once and return arrays that are the caller's own."""
        result = self.call(arrays)
        tensors = [result] if hasattr(result, "__dlpack__") else list(result)
        held = [self._weights_memory, *arrays, *(buffer for buffer, _ in self._buffers.values())]
        outputs = {}
        for name, tensor in zip(self._names, tensors, strict=True):
            outputs[name] = value = _own(np.from_dlpack(tensor), held)
            held.append(value)
        return outputs

    def instrument(self, hook: Instrument | None) -> None:
        """Have `hook(function, name, before, result, *args)` called before and after each kernel; None ends it."""
        self._vm["set_instrument"](hook)

    def _tensor(self, index: int, array: np.ndarray) -> Any:
        if array.nbytes >= _COPIED and is_in_place(array):
            return self._from_dlpack(array)
        kept = self._buffers.get(index)
        if kept is None or kept[0].shape != array.shape:
            buffer = aligned_empty(array.shape, array.dtype.newbyteorder("="))
            kept = self._buffers[index] = (buffer, self._from_dlpack(buffer))
        np.copyto(kept[0], array)
        return kept[1]


def _own(array: np.ndarray, held: Sequence[np.ndarray]) -> np.ndarray:
    """Return the output itself, or a copy where its memory may be another's: an input, a weight, a constant.

    Constants that stay in the program are smaller than what is copied in any case.
    """
    if array.nbytes < _COPIED or not array.flags.writeable or any(np.may_share_memory(array, other) for other in held):
        return array.copy()
    return array
