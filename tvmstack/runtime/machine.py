"""One virtual machine of an artifact with input buffers of its own. TVM's machines serve one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import BackendError
from tvmstack.runtime.tensors import aligned_empty, is_in_place

__all__ = ["Machine", "Program"]

_CPU, _POOLED = 1, 2
# Below this a copy costs less than telling TVM of another piece of memory.
_COPIED = 32 << 10

Instrument = Callable[..., int]


@dataclass(frozen=True)
class Program:
    """What all machines of an artifact share.

    Attributes:
        path: for messages.
        module: the artifact as tvm_ffi loaded it.
        outputs: names of what `main` returns.
        weights: tensors that follow the inputs.
        weights_memory: where these are, to tell an output that is a weight.
        regions: what must live as long as the program does.
    """

    path: Path
    module: Any
    outputs: tuple[str, ...]
    weights: tuple[Any, ...]
    weights_memory: np.ndarray
    regions: tuple[Any, ...]


class Machine:
    """Runs `main` of a program on arrays that `Signature` has checked."""

    def __init__(self, program: Program) -> None:
        import tvm_ffi

        self._from_dlpack = tvm_ffi.from_dlpack
        self._program = program
        self._vm = program.module["vm_load_executable"]()
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
            return self._main(*tensors, *self._program.weights)
        except Exception as err:  # whatever a region raised comes through TVM as it was
            words = (str(err).strip() or type(err).__name__).splitlines()[-1]
            raise BackendError(f"running {self._program.path} failed: {words}") from err

    def run(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Run once and return arrays that are the caller's own."""
        result = self.call(arrays)
        tensors = [result] if hasattr(result, "__dlpack__") else list(result)
        outputs: dict[str, np.ndarray] = {}
        for name, tensor in zip(self._program.outputs, tensors, strict=True):
            outputs[name] = self._own(np.from_dlpack(tensor), arrays, outputs)
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

    def _own(self, array: np.ndarray, inputs: Sequence[np.ndarray], outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the output itself, or a copy where its memory may be another's: an input, a weight, a constant.

        Constants that stay in the program are smaller than what is copied in any case.
        """
        if array.nbytes < _COPIED or not array.flags.writeable:
            return array.copy()
        held = [self._program.weights_memory, *inputs, *outputs.values(), *(b for b, _ in self._buffers.values())]
        return array.copy() if any(np.may_share_memory(array, other) for other in held) else array
