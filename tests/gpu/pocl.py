"""Runs a scheduled kernel as OpenCL C on the CPU, with the launches that the host's code would make."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmstack._tvm import tvm

__all__ = ["Launch", "emit", "missing", "run"]

_TARGET = {
    "kind": "opencl",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "host": {"kind": "llvm"},
}
_AXES = {"x": 0, "y": 1, "z": 2}


@functools.cache
def missing() -> str:
    """Return why kernels cannot run here, or nothing."""
    try:
        import pyopencl
    except ImportError:
        return "pyopencl is not installed: pip install 'tvmstack[dev]'"
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error as err:
        return f"no OpenCL platform ({err}): apt-get install pocl-opencl-icd"
    return "" if any("Portable" in p.name for p in platforms) else "PoCL is missing: apt-get install pocl-opencl-icd"


@functools.cache
def _queue() -> Any:
    import pyopencl

    platform = next(p for p in pyopencl.get_platforms() if "Portable" in p.name)
    context = pyopencl.Context(platform.get_devices())
    return pyopencl.CommandQueue(context)


@functools.cache
def extensions() -> frozenset[str]:
    """Return the extensions of the device."""
    return frozenset(_queue().device.extensions.split())


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its name, its arguments by name, blocks and threads a block along x, y, z."""

    kernel: str
    arguments: tuple[str, ...]
    blocks: tuple[int, ...]
    threads: tuple[int, ...]


@dataclass(frozen=True)
class Emitted:
    """OpenCL C, the parameters in order, workspaces by name (elements, dtype), and the launches in order."""

    source: str
    parameters: tuple[str, ...]
    workspaces: dict[str, tuple[int, str]]
    launches: tuple[Launch, ...]


def emit(scheduled: Any) -> Emitted:
    """Lower a scheduled function as `tvm.tirx.build` does, as far as OpenCL C and the host's launches."""
    target = tvm.target.Target(_TARGET)
    name = "main"
    mod = tvm.tirx.transform.BindTarget(target)(tvm.IRModule({name: scheduled.with_attr("global_symbol", name)}))
    lowering, _, finish = tvm.tirx.get_tir_pipeline("s_tir")
    mod = lowering(mod)
    host = mod[name].script()
    device = tvm.IRModule({gv: f for gv, f in mod.functions.items() if gv.name_hint != name}, attrs=mod.attrs)
    source = tvm.get_global_func("target.build.opencl")(finish()(device), target).inspect_source()
    return Emitted(source, *_host_facts(host))


def _host_facts(text: str) -> tuple[tuple[str, ...], dict[str, tuple[int, str]], tuple[Launch, ...]]:
    behind: dict[str, str] = {}
    parameters: list[str] = []
    workspaces: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        handle = re.search(r"(\w+) = T\.decl_buffer\(.*tvm_struct_get\((\w+)_handle, 0, 1,", line)
        view = re.search(r"(\w+) = T\.decl_buffer\(.*data=(\w+)\.data\)", line)
        room = re.search(r"(\w+) = T\.alloc_buffer\(\(([\d, ]+)\)(?:, \"(\w+)\")?", line)
        if handle:
            parameters.append(handle.group(1))
            behind[handle.group(1)] = handle.group(1)
        elif view:
            behind[view.group(1)] = behind[view.group(2)]
        elif room:
            sizes = [int(n) for n in room.group(2).split(",") if n.strip()]
            workspaces[room.group(1)] = (int(np.prod(sizes)), room.group(3) or "float32")
            behind[room.group(1)] = room.group(1)
    launches = tuple(_launch(call, behind) for call in re.findall(r"T\.call_ffi_kernel\((.*)\)", text))
    return tuple(parameters), workspaces, launches


def _launch(call: str, behind: dict[str, str]) -> Launch:
    head, tags = re.fullmatch(r"(.*), launch_params=\[(.*?)\].*", call).groups()  # type: ignore[union-attr]
    kernel, *rest = [part.strip() for part in head.split(",")]
    names = re.findall(r'"([\w.]+)"', tags)
    values = [int(re.sub(r"T\.int\d+\((\d+)\)", r"\1", v)) for v in rest[len(rest) - len(names) :]]
    sizes = {"blockIdx": [1, 1, 1], "threadIdx": [1, 1, 1]}
    for tag, value in zip(names, values, strict=True):
        kind, axis = tag.split(".")
        sizes[kind][_AXES[axis]] = value
    arguments = tuple(behind[a.removesuffix(".data")] for a in rest[: len(rest) - len(names)])
    return Launch(kernel.strip('"'), arguments, tuple(sizes["blockIdx"]), tuple(sizes["threadIdx"]))


def run(emitted: Emitted, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the launches on copies of the arrays and return these."""
    import pyopencl as cl

    queue = _queue()
    program = cl.Program(queue.context, emitted.source).build(options=["-cl-std=CL2.0"])
    buffers: dict[str, Any] = {}
    for name, array in zip(emitted.parameters, arrays, strict=True):
        buffers[name] = cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(array))
    for name, (count, dtype) in emitted.workspaces.items():
        # Not a number: a part of the workspace that is read before it is written shows.
        fill = np.full(count, np.nan if dtype.startswith("float") else 0, dtype)
        buffers[name] = cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=fill)
    for launch in emitted.launches:
        size = tuple(b * t for b, t in zip(launch.blocks, launch.threads, strict=True))
        kernel = cl.Kernel(program, launch.kernel)
        kernel(queue, size, launch.threads, *(buffers[a] for a in launch.arguments))
    results = []
    for name, array in zip(emitted.parameters, arrays, strict=True):
        out = np.empty_like(np.ascontiguousarray(array))
        cl.enqueue_copy(queue, out, buffers[name])
        results.append(out)
    queue.finish()
    return results
