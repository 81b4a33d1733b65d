"""From scheduled kernels to a shared library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmstack import schedules
from tvmstack._tvm import export_library, relax, relax_transform, tvm, vm_codegen, vm_link
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.core.toolchain import cross_compiler
from tvmstack.lower.byte_offset import TIR_PIPELINE
from tvmstack.lower.device_code import DeviceCode, compile_imports, require_compiler
from tvmstack.lower.memory import MemoryPlan, plan_memory
from tvmstack.lower.pipeline import Lowered

__all__ = ["Built", "build_executable", "build_gpu_library", "build_library", "scheduled_module"]

_PARTS = 8


@dataclass(frozen=True)
class Built:
    """What came of building for a GPU beside the library.

    Attributes:
        plan: how memory is used.
        choices: the schedule of each kernel, which may be a plainer one than was asked for.
        code: the device code.
        refused: for each kernel whose first schedules the compiler refused, what it said.
    """

    plan: MemoryPlan
    choices: dict[str, Choice]
    code: tuple[DeviceCode, ...]
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)


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


def build_gpu_library(lowered: Lowered, choices: Mapping[str, Choice], path: Path) -> Built:
    """Compile and link the host's code into the shared library `path`, and the kernels to device code.

    A kernel whose schedule cannot be compiled goes down the ladder of `schedules.ladder` alone.

    Raises:
        SetupError: there is no compiler for the GPU.
        TuningError: a kernel cannot be compiled by any schedule.
    """
    require_compiler()
    target = tvm.target.Target(lowered.device.target())
    chosen = {k.name: choices.get(k.name) or schedules.default_choice(k.func, lowered.device) for k in lowered.kernels}
    refused: dict[str, tuple[str, ...]] = {}
    with tvm.transform.PassContext(opt_level=3):
        mod, plan = _for_the_machine(scheduled_module(lowered, chosen), target)
        builder, kernels = vm_codegen(mod)
    functions = {gv.name_hint: (gv, f) for gv, f in kernels.functions.items()}

    def compile_one(names: list[str]) -> list[tuple[Any, DeviceCode]]:
        part = {functions[n][0]: functions[n][1] for n in names}
        try:
            return [_host_and_device(tvm.IRModule(part, attrs=kernels.attrs), target, lowered)]
        except (TuningError, RuntimeError, ValueError) as err:
            if len(names) > 1:
                return [pair for name in names for pair in compile_one([name])]
            functions[names[0]] = _next_step(lowered, names[0], functions[names[0]], chosen, refused, err)
            return compile_one(names)

    names = sorted(functions)
    parts = [names[i::_PARTS] for i in range(min(_PARTS, len(names)))]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        pairs = [pair for made in pool.map(compile_one, parts) for pair in made]
    executable = vm_link(builder, target, [host for host, _ in pairs])
    export_library(executable, str(path), cross_compiler(lowered.device.arch))
    return Built(plan, chosen, tuple(code for _, code in pairs), refused)


def _host_and_device(mod: Any, target: Any, lowered: Lowered) -> tuple[Any, DeviceCode]:
    """Return the host's part of some kernels, without the device code it imported, and that code compiled."""
    assert lowered.device.gpu is not None
    with tvm.transform.PassContext(opt_level=3):
        host = tvm.tirx.build(mod, target=target, pipeline=TIR_PIPELINE)
    code = compile_imports(host, lowered.device.gpu)
    host.clear_imports()
    return host, code


def _next_step(
    lowered: Lowered,
    name: str,
    function: tuple[Any, Any],
    chosen: dict[str, Choice],
    refused: dict[str, tuple[str, ...]],
    reason: Exception,
) -> tuple[Any, Any]:
    """Schedule a kernel by the next step of its ladder after the one that failed."""
    kernel = next((k for k in lowered.kernels if k.name == name), None)
    if kernel is None:
        raise TuningError(f"kernel {name} cannot be compiled: {reason}") from reason
    words = (str(reason).strip() or type(reason).__name__).splitlines()[-1]
    refused[name] = (*refused.get(name, ()), f"{chosen[name].template}: {words}")
    steps = schedules.ladder(kernel.func, lowered.device)
    after = steps.index(chosen[name].template) + 1 if chosen[name].template in steps else 0
    for template in steps[after:]:
        chosen[name] = Choice(template)
        try:
            scheduled = schedules.apply(kernel.func, chosen[name], lowered.device)
        except TuningError as err:
            refused[name] = (*refused[name], f"{template}: {str(err).splitlines()[-1]}")
            continue
        return function[0], scheduled.with_attrs(dict(function[1].attrs))
    raise TuningError(f"kernel {name} cannot be compiled by any schedule: {'; '.join(refused[name])}") from reason


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
