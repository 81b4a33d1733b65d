"""What a caller gives, as tensors TVM can read in place: checked, contiguous, 64-byte aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.core.errors import UsageError, nearest
from tvmstack.core.model import TensorSpec

__all__ = ["aligned", "arrays_from_inputs"]

_ALIGN = 64


def arrays_from_inputs(specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[np.ndarray]:
    """Return one aligned array for each spec, in order; copied only where memory is not as TVM needs it.

    Raises:
        UsageError: a name is missing or unknown, or an array has another shape or dtype than the artifact was built for.
    """
    names = [s.name for s in specs]
    for name in inputs:
        if name not in names:
            raise UsageError(f"no input is called {name!r}; {nearest(str(name), names)}")
    missing = [n for n in names if n not in inputs]
    if missing:
        raise UsageError(f"missing input{'s' * (len(missing) > 1)}: {', '.join(missing)}")
    return [_checked(spec, inputs[spec.name]) for spec in specs]


def _checked(spec: TensorSpec, value: Any) -> np.ndarray:
    array = _as_array(spec, value)
    if array.dtype != np.dtype(spec.dtype):
        raise UsageError(f"input {spec.name} must be {spec.dtype}, got {array.dtype}; use .astype('{spec.dtype}')")
    if array.shape != spec.shape:
        raise UsageError(f"input {spec.name} must have shape {list(spec.shape)}, got {list(array.shape)}")
    return aligned(array)


def _as_array(spec: TensorSpec, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as err:
            raise UsageError(f"input {spec.name} cannot be read through DLPack: {err}") from err
    if isinstance(value, (bool, int, float, np.generic)):
        return np.asarray(value, spec.dtype)
    raise UsageError(f"input {spec.name} must be a numpy array or a DLPack tensor, got {type(value).__name__}")


def aligned(array: np.ndarray) -> np.ndarray:
    """Return the array itself if its memory is contiguous, writable and 64-byte aligned, else a copy that is.

    A kernel reads aligned vectors: TVM crashes on an input that is not.
    """
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGN == 0:
        return array
    raw = np.empty(array.nbytes + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
