"""From scheduled kernels to a shared library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tvmstack import schedules
from tvmstack._tvm import export_library, relax, relax_transform, tvm, vm_codegen, vm_link
from tvmstack.core.kernel import Choice
from tvmstack.core.toolchain import cross_compiler
from tvmstack.lower.byte_offset import TIR_PIPELINE
from tvmstack.lower.memory import MemoryPlan, plan_memory
from tvmstack.lower.pipeline import Lowered

__all__ = ["build_executable", "build_library", "scheduled_module"]

_PARTS = 8


def scheduled_module(lowered: Lowered, choices: Mapping[str, Choice]) -> Any:
    """Return the module with each kernel scheduled by its choice, or by its template's default."""
    mod = tvm.IRModule(dict(lowered.mod.functions), attrs=lowered.mod.attrs)
    for kernel in lowered.kernels:
        choice = choices.get(kernel.name) or schedules.default_choice(kernel.func, lowered.device)
        mod[kernel.name] = schedules.apply(kernel.func, choice, lowered.device)
    return mod


def build_executable(lowered: Lowered, choices: Mapping[str, Choice]) -> tuple[Any, MemoryPlan]:
    """Compile the scheduled module to TVM's VM executable; also return how it uses memory."""
    target = tvm.target.Target(lowered.device.target())
    with tvm.transform.PassContext(opt_level=3):
        mod, plan = _for_the_machine(scheduled_module(lowered, choices), target)
        builder, kernels = vm_codegen(mod)
    return vm_link(builder, target, _code(kernels, target)), plan


def _code(kernels: Any, target: Any) -> list[Any]:
    """Compile the kernels to machine code in a fixed number of modules, several at a time.

    LLVM works on one module with one core, and its calls let other threads run. The division depends on the kernels'
    names only, so the library is the same whichever machine makes it.
    """
    functions = sorted(kernels.functions.items(), key=lambda item: item[0].name_hint)
    parts = [dict(functions[i::_PARTS]) for i in range(min(_PARTS, len(functions)))]

    def compile_part(part: dict[Any, Any]) -> Any:
        with tvm.transform.PassContext(opt_level=3):
            return tvm.tirx.build(tvm.IRModule(part, attrs=kernels.attrs), target=target, pipeline=TIR_PIPELINE)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compile_part, parts))


def build_library(lowered: Lowered, choices: Mapping[str, Choice], path: Path) -> MemoryPlan:
    """Compile and link the module into the shared library `path` without its weights; return its memory plan."""
    executable, plan = build_executable(lowered, choices)
    export_library(executable, str(path), cross_compiler(lowered.device.arch))
    return plan


def _for_the_machine(mod: Any, target: Any) -> tuple[Any, MemoryPlan]:
    """Lower `main` to calls of the virtual machine: TVM's default passes with our memory plan in the place of its."""
    with target:
        mod = tvm.transform.Sequential(
            [
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                relax_transform.LegalizeOps(),
                relax_transform.RewriteDataflowReshape(),
                relax_transform.ToNonDataflow(),
                relax_transform.RemovePurityChecking(),
                relax_transform.CallTIRRewrite(),
            ]
        )(mod)
        mod, plan = plan_memory(mod)
        mod = tvm.transform.Sequential(
            [
                relax_transform.LowerAllocTensor(),
                relax_transform.KillAfterLastUse(),
                relax_transform.LowerRuntimeBuiltin(),
                relax_transform.ComputePrimValue(),
                relax_transform.VMShapeLower(),
                relax_transform.AttachGlobalSymbol(),
            ]
        )(mod)
    return mod, plan
