"""From scheduled kernels to a shared library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmstack import schedules
from tvmstack._tvm import tvm
from tvmstack.core.kernel import Choice
from tvmstack.lower.pipeline import Lowered

__all__ = ["build_executable", "build_library", "scheduled_module"]


def scheduled_module(lowered: Lowered, choices: Mapping[str, Choice]) -> Any:
    """Return the module with each kernel scheduled by its choice, or by its template's default."""
    mod = tvm.IRModule(dict(lowered.mod.functions), attrs=lowered.mod.attrs)
    for kernel in lowered.kernels:
        choice = choices.get(kernel.name) or schedules.default_choice(kernel.func, lowered.device)
        mod[kernel.name] = schedules.apply(kernel.func, choice, lowered.device)
    return mod


def build_executable(lowered: Lowered, choices: Mapping[str, Choice]) -> Any:
    """Compile the scheduled module to TVM's VM executable."""
    with tvm.transform.PassContext(opt_level=3):
        return tvm.compile(scheduled_module(lowered, choices), target=tvm.target.Target(lowered.device.target()))


def build_library(lowered: Lowered, choices: Mapping[str, Choice], path: Path) -> None:
    """Compile and link the module into the shared library `path`; the weights stay outside."""
    build_executable(lowered, choices).export_library(str(path))
