"""What a caller gives, checked against what the artifact takes, and memory as TVM needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.core.errors import UsageError, nearest
from tvmstack.core.model import TensorSpec

__all__ = ["Signature", "aligned_empty", "is_in_place", "numpy_dtype"]

_ALIGN = 64
# Which Python numbers say exactly what an array of this kind holds; a float is never cut to an integer.
_SCALARS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}


class Signature:
    """The inputs of an artifact, and the check that a caller's arrays are such inputs."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = tuple(specs)
        self._names = [s.name for s in specs]
        self._rules = [(s.name, numpy_dtype(s.dtype), s.shape) for s in specs]

    def arrays(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Return an array of the right dtype and shape for each input, in order; byte order and memory layout vary.

        Raises:
            UsageError: all that is wrong with the inputs, in one sentence.
        """
        if type(inputs) is not dict or len(inputs) != len(self._rules):
            return self._look_closer(inputs)
        found = []
        for name, dtype, shape in self._rules:
            value = inputs.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return self._look_closer(inputs)
            found.append(value)
        return found

    def _look_closer(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        names = ", ".join(self._names)
        if not isinstance(inputs, Mapping):
            raise UsageError(f"inputs must be a mapping from names to arrays ({names}), got {type(inputs).__name__}")
        wrong = [
            f"no input is called {name!r} ({nearest(str(name), self._names) or 'it takes none'})"
            for name in inputs
            if name not in self._names
        ]
        wrong += [f"input {name!r} is missing" for name in self._names if name not in inputs]
        arrays = []
        for spec, (_, dtype, _) in zip(self.specs, self._rules, strict=True):
            try:
                if spec.name in inputs:
                    arrays.append(_checked(spec, dtype, inputs[spec.name]))
            except UsageError as err:
                wrong.append(str(err))
        if wrong:
            raise UsageError("; ".join(wrong))
        return arrays


def _checked(spec: TensorSpec, dtype: np.dtype[Any], value: Any) -> np.ndarray:
    array = _as_array(spec, dtype, value)
    same_dtype = array.dtype.newbyteorder("=") == dtype
    if same_dtype and _fits(array.shape, spec.shape):
        return array
    want, got = (f"{d} {list(s)}" for d, s in ((spec.dtype, spec.shape), (array.dtype, array.shape)))
    hint = "" if same_dtype else f"; cast it, for example with .astype({spec.dtype!r})"
    raise UsageError(f"input {spec.name!r} must be {want}, got {got}{hint}")


def _fits(shape: tuple[int, ...], dims: tuple[int | str, ...]) -> bool:
    return len(shape) == len(dims) and all(isinstance(d, str) or d == n for d, n in zip(dims, shape, strict=True))


def _as_array(spec: TensorSpec, dtype: np.dtype[Any], value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"input {spec.name!r} is a masked array; fill it first, with .filled(…)")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(spec, value)
    if type(value) in _SCALARS.get(dtype.kind, ()):
        try:
            return np.asarray(value, dtype)
        except OverflowError as err:
            raise UsageError(f"input {spec.name!r}: {value} does not fit into {spec.dtype}") from err
    raise UsageError(
        f"input {spec.name!r} must be a numpy array or a DLPack tensor, got {type(value).__name__}; "
        f"np.asarray(…, {spec.dtype!r}) makes one"
    )


def _from_dlpack(spec: TensorSpec, value: Any) -> np.ndarray:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as err:
        words = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise UsageError(f"input {spec.name!r} cannot be read through DLPack: {words}") from err


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype by the name it has in a manifest.

    Raises:
        UsageError: numpy has no such dtype, so that no caller could feed it.
    """
    try:
        return np.dtype(name)
    except TypeError as err:
        raise UsageError(f"tensors of {name} cannot pass through numpy; keep such values inside the model") from err


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an uninitialised array that begins at a multiple of 64 bytes: kernels read whole vectors."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size].view(dtype).reshape(shape)


def is_in_place(array: np.ndarray) -> bool:
    """Whether TVM can read the array where it is. On unaligned memory its kernels crash, so nobody else may decide."""
    flags = array.flags
    return bool(
        flags.c_contiguous
        and flags.writeable
        and array.dtype.isnative
        and array.__array_interface__["data"][0] % _ALIGN == 0
    )
