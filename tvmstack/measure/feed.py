"""Arrays to feed an artifact with, and what to say of the arrays it gives back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError, UsageError, nearest
from tvmstack.core.model import TensorSpec

__all__ = ["describe_arrays", "fill_inputs", "random_array", "save_arrays"]


def random_array(spec: TensorSpec, seed: int = 0) -> np.ndarray:
    """Return seeded values for a static spec: normal floats, integers of 0 and 1 (valid as token ids and masks)."""
    rng = np.random.default_rng([seed, *spec.name.encode()])
    shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def fill_inputs(specs: Sequence[TensorSpec], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all inputs: those given, and seeded random ones for the rest.

    Raises:
        UsageError: a given name is not an input.
    """
    names = [s.name for s in specs]
    for name in given:
        if name not in names:
            raise UsageError(f"no input is called {name!r}; {nearest(name, names)}")
    return {s.name: given[s.name] if s.name in given else random_array(s) for s in specs}


def describe_arrays(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return name, type, shape, range, mean and digest of each array as plain data."""
    return [_describe(name, np.asarray(value)) for name, value in arrays.items()]


def _describe(name: str, value: np.ndarray) -> dict[str, Any]:
    numbers = value.astype(np.float64) if value.size and value.dtype.kind in "biuf" else None
    finite = numbers[np.isfinite(numbers)] if numbers is not None else np.empty(0)
    return {
        "name": name,
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "min": float(finite.min()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
    }


def save_arrays(arrays: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write each array to FOLDER/NAME.npy; characters a file name cannot hold become "_".

    Raises:
        SetupError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in arrays.items():
            np.save(folder / (re.sub(r"[^\w.-]", "_", name) + ".npy"), value, allow_pickle=False)
    except OSError as err:
        raise SetupError(f"cannot write outputs to {folder}: {err.strerror or err}") from err
