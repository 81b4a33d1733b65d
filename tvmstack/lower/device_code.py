"""From CUDA C++ to code for a GPU: by nvcc, on any machine; with ptxas' report of what each kernel takes.

TVM's compiler emits the source. Its own module keeps that source to compile at load; an artifact shall need no compiler
where it runs, so the source is compiled here and takes its place in the module's serial form.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack._tvm import packed_imports
from tvmstack.core.errors import SetupError, TuningError
from tvmstack.core.gpu import Gpu

__all__ = ["DeviceCode", "Resources", "compile_imports", "require_compiler"]

_TIMEOUT_S = 300
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """What ptxas says a kernel takes: shared memory by the block, all else by the thread."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int

    def to_json(self) -> dict[str, int]:
        """Return the figures as plain data."""
        return {
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "spill_bytes": self.spill_bytes,
            "stack_bytes": self.stack_bytes,
        }


@dataclass(frozen=True)
class DeviceCode:
    """One module of device code.

    Attributes:
        image: what TVM's CUDA runtime loads (`ffi.Module.load_from_bytes.cuda`): format, functions, and a fat binary of
            machine code for one SM and PTX that later ones translate.
        resources: ptxas' report, by kernel function.
    """

    image: bytes
    resources: dict[str, Resources]


def require_compiler() -> str:
    """Return the path of nvcc.

    Raises:
        SetupError: there is none.
    """
    found = shutil.which("nvcc")
    if found is None:
        raise SetupError(
            "building for a GPU needs NVIDIA's compiler nvcc, which is not on PATH: install a CUDA toolkit of version "
            "12 or later (no GPU is needed) and add its bin folder to PATH"
        )
    return found


def compile_imports(library: Any, gpu: Gpu) -> DeviceCode:
    """Compile the CUDA module that a host library imports.

    Raises:
        SetupError: nvcc is missing, or does not know the SM.
        TuningError: nvcc refuses the source.
    """
    (module,) = library.imports
    source = str(module.inspect_source("cuda")).encode()
    binary, report = _nvcc(source, gpu)
    return DeviceCode(_with_code(packed_imports(library), source, binary), _resources(report, gpu))


def _with_code(packed: bytes, source: bytes, binary: bytes) -> bytes:
    """Return the serial form of a CUDA module with machine code in the place of its source.

    `packed` ends with the module: its size, its format "cuda", its functions, its source. Strings have their length
    before them, in 8 bytes.
    """
    head = _string(b"cuda")
    body = packed[: -len(_string(source))]
    if not packed.endswith(_string(source)) or body.count(head) < 2:
        raise SetupError("this build of apache-tvm writes CUDA modules in a form that tvmstack does not know")
    # The first is the module's kind, the second its format; between them stands the size of the rest.
    start = body.index(head, body.index(head) + len(head))
    functions = body[start + len(head) :]
    return _string(b"fatbin") + functions + _string(binary)


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def _nvcc(source: bytes, gpu: Gpu) -> tuple[bytes, str]:
    nvcc = require_compiler()
    with tempfile.TemporaryDirectory(prefix="tvmstack-nvcc-") as folder:
        code, binary = Path(folder) / "kernels.cu", Path(folder) / "kernels.fatbin"
        code.write_bytes(source)
        command = [nvcc, "-fatbin", "-O3", "-std=c++17", "-Xptxas", "-v", "-o", str(binary), str(code)]
        command += ["-gencode", f"arch={gpu.compute},code=[{gpu.arch},{gpu.compute}]"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as err:
            raise TuningError(f"nvcc did not end within {_TIMEOUT_S} s") from err
        except OSError as err:
            raise SetupError(f"{nvcc} cannot be run: {err.strerror or err}") from err
        if done.returncode or not binary.exists():
            raise _refusal(done.stderr or done.stdout, gpu)
        return binary.read_bytes(), done.stderr


def _refusal(words: str, gpu: Gpu) -> Exception:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    told = next(
        (line for line in lines if "error" in line.lower() or "fatal" in line.lower()), (lines or ["no word"])[-1]
    )
    if "Unsupported gpu" in words or "Unsupported architecture" in words or "not defined for option" in words:
        return SetupError(f"this nvcc does not know {gpu.arch} ({told}): install a toolkit that supports it")
    return TuningError(f"nvcc refuses it: {told}")


def _resources(report: str, gpu: Gpu) -> dict[str, Resources]:
    found: dict[str, Resources] = {}
    kernel, spilled, stack = "", 0, 0
    for line in report.splitlines():
        entry, spills, used = _ENTRY.search(line), _SPILLS.search(line), _USED.search(line)
        if entry:
            kernel = entry.group(1) if entry.group(2) == gpu.arch else ""
        elif spills:
            stack, spilled = int(spills.group(1)), int(spills.group(2)) + int(spills.group(3))
        elif used and kernel:
            shared = _SHARED.search(line)
            found[kernel] = Resources(int(used.group(1)), int(shared.group(1)) if shared else 0, spilled, stack)
            kernel = ""
    return found
