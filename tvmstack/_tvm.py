"""The only place that spells TVM names known to move between releases, and that works round its import traps."""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import tvm
from tvm import relax, rpc, te, tirx, topi
from tvm.relax import transform as relax_transform
from tvm.relax import vm_build
from tvm.s_tir import SBlockRealize, Schedule, renew_defs
from tvm.s_tir.schedule import trace as schedule_trace
from tvm.support import cc

__all__ = [
    "SBlockRealize",
    "Schedule",
    "evolutionary_search",
    "export_library",
    "gpu_rules",
    "is_constant",
    "launch_once",
    "light_intrinsics",
    "packed_imports",
    "plain_trace",
    "relax",
    "relax_transform",
    "renew_defs",
    "replay_trace",
    "rpc_session",
    "runner_result",
    "shared_bytes",
    "te",
    "tirx",
    "topi",
    "tvm",
    "vm_codegen",
    "vm_link",
]


def is_constant(expr: Any) -> bool:
    """Whether a Relax expression is a tensor constant (its data is in `.value`)."""
    return isinstance(expr, tvm.ir.GenericConst)


def replay_trace(trace: Any, sch: Any) -> None:
    """Apply a MetaSchedule trace in its JSON form to a schedule."""
    light_intrinsics()
    schedule_trace.Trace.apply_json_to_schedule(trace, sch)


def plain_trace(trace: Any) -> Any:
    """Return a MetaSchedule trace as plain JSON data."""
    return _plain(trace.as_json())


def _plain(item: Any) -> Any:
    if item is None or isinstance(item, (bool, int, float)):
        return item
    if isinstance(item, str):
        return str(item)
    if hasattr(item, "items"):
        return {str(k): _plain(v) for k, v in item.items()}
    if hasattr(item, "value") and not hasattr(item, "__len__"):
        return _plain(item.value)
    return [_plain(v) for v in item]


def evolutionary_search(func: Any, target: dict[str, Any], trials: int, batch: int) -> Any:
    """Return a started MetaSchedule context for one function: CPU sketches, a small population, no cost model."""
    light_intrinsics()
    from tvm.s_tir import meta_schedule as ms

    context = ms.TuneContext(
        mod=tvm.IRModule({"main": renew_defs(func.with_attr("global_symbol", "main"))}),
        target=tvm.target.Target(target),
        space_generator=ms.space_generator.PostOrderApply(),
        search_strategy=ms.search_strategy.EvolutionarySearch(
            population_size=64, init_measured_ratio=0.2, init_min_unmeasured=8, genetic_num_iters=2
        ),
        task_name="kernel",
        rand_state=1,
        num_threads=1,
    )
    spaces = context.generate_design_space()
    context.pre_tuning(trials, batch, spaces, ms.database.MemoryDatabase(), ms.cost_model.RandomModel())
    return context


def export_library(executable: Any, path: str, compiler: str | None) -> None:
    """Link what was compiled into a shared library, by a cross compiler where one is given."""
    options = {"fcompile": cc.cross_compiler(compiler)} if compiler else {}
    executable.export_library(path, **options)


def rpc_session(host: str, port: int, words: str) -> Any:
    """Connect to an RPC server; `words` are what the client says of itself in the handshake."""
    return rpc.client.RPCSession(rpc.client._ffi_api.Connect(host, port, words, False))


def runner_result(seconds: float | None) -> Any:
    """Return a measurement as MetaSchedule wants it; None for a candidate that failed."""
    from tvm.s_tir import meta_schedule as ms

    failed = "failed" if seconds is None else None
    return ms.runner.RunnerResult(None if seconds is None else [seconds], failed)


def vm_codegen(mod: Any) -> tuple[Any, Any]:
    """Return the byte code of a lowered module's Relax functions under construction, and a module of its kernels."""
    builder = relax.ExecBuilder()
    rest = vm_build._vmcodegen(builder, mod, "bytecode")
    return builder, vm_build._filter_tir(rest) or tvm.IRModule({}, attrs=mod.attrs)


def vm_link(builder: Any, target: Any, libraries: list[Any]) -> Any:
    """Return the executable of byte code and compiled kernels."""
    first, *others = libraries or [None]
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, others, {}))


def gpu_rules() -> Any:
    """Return the pass that schedules kernels by DLight's rules for GPUs, the first that fits."""
    light_intrinsics()
    from tvm.s_tir import dlight

    gpu = dlight.gpu
    return dlight.ApplyDefaultSchedule(
        gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Transpose(), gpu.Fallback()
    )


def packed_imports(library: Any) -> bytes:
    """Return the modules that a library imports in the serial form that an exported library carries."""
    pack = tvm.get_global_func("runtime.ModulePackImportsToTensor")
    data: bytes = pack(library).numpy().tobytes()
    return data


def shared_bytes(func: Any) -> int:
    """Return how much shared memory a block of a scheduled function takes, as lowering will allot it."""
    passes = tvm.s_tir.transform
    lowered = tvm.transform.Sequential(
        [
            passes.LowerCrossThreadReduction(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
            passes.LowerOpaqueBlock(),
        ]
    )(tvm.IRModule({"main": func}))
    return int(tvm.s_tir.analysis.calculate_allocated_bytes(lowered["main"])["main"].get("shared", 0))


def launch_once(func: Any) -> Any:
    """Return a function whose whole body one thread of a GPU runs."""
    realize = func.body
    block = realize.block
    body = block.body
    for tag in ("threadIdx.x", "blockIdx.x"):
        var = tirx.IterVar(tvm.ir.Range(0, 1), tirx.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(var, "thread_extent", tirx.const(1, "int32"), body)
    made = type(block)(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return func.with_body(SBlockRealize(realize.iter_values, realize.predicate, made))


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
