"""Compares every kernel of a lowered model, run on PoCL, with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.gpu import numpy_tir, pocl
from tvmstack import schedules
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.driver.steps import Prepared, prepare

__all__ = ["gap_of", "lowered_for_gpu"]


def lowered_for_gpu(model: onnx.ModelProto, device: str = "cuda:sm_80") -> Prepared:
    """Lower a model for a GPU."""
    return prepare(model, None, device, (), None)


def _arguments(func: Any) -> list[np.ndarray]:
    rng, made = np.random.default_rng(0), []
    for param in func.params:
        shape, dtype = [int(d) for d in param.ty.shape], str(param.ty.dtype)
        is_float = dtype.startswith("float")
        made.append((rng.uniform(-1, 1, shape) if is_float else rng.integers(0, 2, shape)).astype(dtype))
    return made


def gap_of(kernel: Kernel, device: Any, choice: Choice | None = None) -> float:
    """Return how far a kernel's output is from numpy's, of its largest value; NaN where it writes too little."""
    arguments = _arguments(kernel.func)
    want = numpy_tir.evaluate(kernel.func, arguments)[-1]
    if arguments[-1].dtype.kind == "f":
        arguments[-1][...] = np.nan
    choice = choice or schedules.default_choice(kernel.func, device)
    got = pocl.run(pocl.emit(schedules.apply(kernel.func, choice, device)), arguments)[-1]
    largest = float(np.abs(want).max(initial=0))
    return float(np.abs(np.subtract(got, want, dtype=np.float64)).max(initial=0)) / max(largest, 1e-6)
