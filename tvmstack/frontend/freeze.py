"""Turning inputs into constants, so that a branch on a sample rate or a flag is decided at compile time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir

from tvmstack.core.errors import UsageError, nearest

__all__ = ["freeze_inputs"]


def freeze_inputs(model: onnx_ir.Model, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Make each named input an initializer; return the arrays as the model sees them.

    Raises:
        UsageError: unknown input, or a value that does not fit its type or shape.
    """
    inputs = {v.name or "": v for v in model.graph.inputs}
    arrays = {}
    for name, given in values.items():
        if name not in inputs:
            raise UsageError(f"cannot freeze {name}: the model has no such input; {nearest(name, inputs)}")
        value = inputs[name]
        array = _array(value, given)
        model.graph.inputs.remove(value)
        value.const_value = onnx_ir.tensor(array, name=name)
        value.shape = onnx_ir.Shape(array.shape)
        model.graph.register_initializer(value)
        arrays[name] = array
    return arrays


def _array(value: onnx_ir.Value, given: Any) -> np.ndarray:
    assert value.dtype is not None  # validate has seen to it
    raw = np.asarray(given)
    if raw.dtype.kind not in "fiub":
        raise UsageError(f"cannot freeze {value.name} to {given!r}: give a number or an array of numbers")
    array = raw.astype(value.dtype.numpy())
    # A float that only loses digits is what the user meant; a whole number that changes is not.
    if array.dtype.kind != "f" and not np.array_equal(array.astype(np.float64), raw.astype(np.float64)):
        raise UsageError(f"cannot freeze {value.name} to {given}: it is of type {value.dtype.numpy().name}")
    wanted = [d if isinstance(d, int) else None for d in value.shape] if value.shape is not None else list(array.shape)
    if array.ndim == 0 and wanted:
        return np.full([1 if d is None else d for d in wanted], array)
    fits = len(wanted) == array.ndim and all(w in (None, g) for w, g in zip(wanted, array.shape, strict=True))
    if not fits:
        raise UsageError(f"cannot freeze {value.name}: the value has shape {list(array.shape)}, the input {wanted}")
    return array
