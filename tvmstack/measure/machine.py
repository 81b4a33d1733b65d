"""What `tvmstack doctor` reports: versions, this device, compiler and linker, optional libraries, peaks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmstack._version import VERSION
from tvmstack.core.device import detect_device
from tvmstack.core.errors import SetupError
from tvmstack.core.toolchain import cross_compiler
from tvmstack.core.verdict import Verdict
from tvmstack.measure.peaks import measure_peaks

__all__ = ["KNOWN_BAD", "check_linker", "examine", "find_compiler", "known_bad", "require_linker"]

_NEEDED = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "SQLAlchemy")
_OPTIONAL = {
    "torch": "compiling torch.export programs: pip install 'tvmstack[torch]'",
    "openvino": "as a peer of `tvmstack bench`: pip install 'tvmstack[bench]'",
    "xgboost-cpu": "the cost model of the search: pip install xgboost-cpu",
}
# (package, version): what goes wrong with it.
KNOWN_BAD = {
    ("apache-tvm-ffi", "0.1.15.post2"): "MetaSchedule crashes with it; pip install apache-tvm-ffi==0.1.14.post1",
}
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def find_compiler() -> str | None:
    """Return the C++ compiler that TVM will link with: $CXX, $CC, or the first known one on PATH."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    if named:
        return shutil.which(named)
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


def check_linker(arch: str = "") -> Verdict:
    """Link an empty shared library (30 ms) for this or another architecture, before any long work."""
    compiler = (cross_compiler(arch) if arch else None) or find_compiler()
    if compiler is None:
        named = os.environ.get("CXX") or os.environ.get("CC")
        looked = f"{named!r} named by $CXX or $CC is not there" if named else f"looked for {', '.join(_COMPILERS)}"
        return Verdict.no(f"no C++ compiler on PATH ({looked})", "install g++ (apt-get install g++) or set CXX")
    with tempfile.TemporaryDirectory(prefix="tvmstack-link-") as folder:
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(Path(folder) / "probe.so")]
        done = subprocess.run(command, input="int tvmstack_probe;\n", capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        return Verdict.no(
            f"{compiler} cannot link a shared library: {words[-1] if words else 'no output'}",
            "install g++ and binutils",
        )
    return Verdict.yes()


def known_bad(versions: Mapping[str, str | None]) -> list[str]:
    """Return one line for each installed version that is known not to work."""
    return [f"{name} {v}: {why}" for (name, v), why in KNOWN_BAD.items() if versions.get(name) == v]


def examine(with_peaks: bool) -> dict[str, Any]:
    """Return everything `doctor` shows as plain data; "ok" says whether a model can be compiled here."""
    device = detect_device()
    versions = {name: _version(name) for name in _NEEDED}
    linker = check_linker()
    problems = [f"{name} is not installed" for name, v in versions.items() if v is None] + known_bad(versions)
    if not linker:
        problems.append(f"{linker.reason}; {linker.hint}")
    compiler = find_compiler()
    return {
        "ok": not problems,
        "tvmstack": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "optional": {name: {"version": _version(name), "for": use} for name, use in _OPTIONAL.items()},
        "device": device.to_json(),
        "compiler": _compiler_line(compiler) if compiler else None,
        "linker_works": bool(linker),
        "peaks": measure_peaks(device.cores).to_json() if with_peaks else None,
        "problems": problems,
    }


def require_linker(arch: str = "") -> None:
    """Raise SetupError where a shared library cannot be linked for this or another architecture."""
    verdict = check_linker(arch)
    if not verdict:
        raise SetupError(f"{verdict.reason}; {verdict.hint}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler_line(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    first = done.stdout.splitlines()
    return f"{compiler} ({first[0]})" if first else compiler
