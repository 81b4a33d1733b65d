"""The only place that spells TVM names known to move between releases, and that works round its import traps."""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import transform as relax_transform
from tvm.s_tir import SBlockRealize, Schedule, renew_defs
from tvm.s_tir import analysis as s_tir_analysis
from tvm.s_tir.schedule import trace as schedule_trace

__all__ = [
    "SBlockRealize",
    "Schedule",
    "is_constant",
    "light_intrinsics",
    "relax",
    "relax_transform",
    "renew_defs",
    "replay_trace",
    "s_tir_analysis",
    "te",
    "tirx",
    "topi",
    "tvm",
]


def is_constant(expr: Any) -> bool:
    """Whether a Relax expression is a tensor constant (its data is in `.value`)."""
    return isinstance(expr, tvm.ir.GenericConst)


def replay_trace(trace: Any, sch: Any) -> None:
    """Apply a MetaSchedule trace in its JSON form to a schedule."""
    light_intrinsics()
    schedule_trace.Trace.apply_json_to_schedule(trace, sch)


def light_intrinsics() -> None:
    """Register only the tensor intrinsics of the CPU families.

    Importing `tvm.s_tir.tensor_intrin` builds every CUDA, ROCm and Hexagon intrinsic and costs 20 to 40 s of CPU in
    each
    process, which MetaSchedule would pay in every worker.
    """
    package = importlib.import_module("tvm.s_tir")
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules or package.__file__ is None:
        return
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(os.path.dirname(package.__file__), "tensor_intrin")]
    sys.modules[name] = module
    setattr(package, "tensor_intrin", module)  # noqa: B010  (TVM's stubs do not know the attribute)
    for family in ("x86", "arm_cpu"):
        importlib.import_module(f"{name}.{family}")
