"""Build the native RPC server for a board: our source, TVM's two runtime libraries, one folder to copy there."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tvmstack.core.errors import SetupError
from tvmstack.core.toolchain import cross_compiler
from tvmstack.measure.machine import find_compiler

__all__ = ["SERVER", "build_server", "runtime_libraries"]

SERVER = "tvmstack-board"
_SOURCE = Path(__file__).parent / "native" / "server.cc"
_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so")
# The oldest glibc whose wheels hold a runtime for that CPU.
_WHEELS = {"aarch64": "manylinux_2_28_aarch64", "x86_64": "manylinux_2_28_x86_64"}
_CACHE = Path("~/.cache/tvmstack/runtimes")


def build_server(arch: str, folder: Path, tvm_version: str | None = None) -> Path:
    """Fill `folder` with the server and the libraries it needs (about 6 MB); return the program's path.

    Args:
        arch: "aarch64", "x86_64": as `uname -m` says on the board.
        folder: made where missing; copy all of it to the board.
        tvm_version: what the server says it is linked to; the installed version unless a test wants it to lie.

    Raises:
        SetupError: no compiler for that CPU, no runtime libraries, or the folder cannot be written.
    """
    compiler = cross_compiler(arch) or find_compiler()
    if compiler is None:
        raise SetupError("building the server needs a C++ compiler: apt-get install g++")
    libraries = runtime_libraries(arch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for library in libraries:
            shutil.copy2(library, folder / library.name)
    except OSError as err:
        raise SetupError(f"cannot write {folder}: {err.strerror or err}") from err
    version = tvm_version or importlib.metadata.version("apache-tvm")
    _compile(compiler, folder, version)
    return folder / SERVER


def _compile(compiler: str, folder: Path, version: str) -> None:
    from tvm_ffi import libinfo

    headers = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
    command = [
        *(compiler, "-std=c++17", "-O1", "-s", str(_SOURCE), "-o", str(folder / SERVER)),
        f'-DTVMSTACK_TVM_VERSION="{version}"',
        *(f"-I{path}" for path in headers),
        # Nothing of the runtime is called by name: its functions register themselves when it is loaded.
        *("-Wl,--no-as-needed", f"-L{folder}", "-ltvm_runtime", "-ltvm_runtime_extra", "-ltvm_ffi", "-ldl"),
        "-Wl,-rpath,$ORIGIN",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise SetupError(f"{compiler} cannot build the board server: {words[0] if words else 'no output'}")


def runtime_libraries(arch: str) -> list[Path]:
    """Return TVM's runtime libraries for a CPU: the installed ones, or those of the same versions' wheels.

    Raises:
        SetupError: pip cannot get the wheels.
    """
    if arch == platform.machine():
        roots = [importlib.metadata.distribution(name).locate_file("") for name in ("apache-tvm", "apache-tvm-ffi")]
        found = [next(Path(str(root)).glob(f"*/lib/{name}"), None) for name in _LIBRARIES for root in roots[:1]]
        return [path for path in found if path is not None]
    versions = {name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    folder = _CACHE.expanduser() / "-".join([arch, *versions.values()])
    if not all((folder / name).exists() for name in _LIBRARIES):
        _download(arch, versions, folder)
    return [folder / name for name in _LIBRARIES]


def _download(arch: str, versions: dict[str, str], folder: Path) -> None:
    """Take the libraries out of the wheels (95 MB, of which 6 are kept)."""
    if arch not in _WHEELS:
        raise SetupError(f"there are no TVM libraries for {arch}; known: {', '.join(sorted(_WHEELS))}")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(prefix="tvmstack-wheels-") as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
        command += ["--only-binary=:all:", "--platform", _WHEELS[arch], "--python-version", python]
        command += [f"{name}=={version}" for name, version in versions.items()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no output"]
            raise SetupError(f"pip cannot get TVM's libraries for {arch}: {words[-1]}")
        try:
            _unpack([*Path(wheels).glob("*.whl")], folder)
        except OSError as err:
            raise SetupError(f"cannot write {folder}: {err.strerror or err}") from err


def _unpack(wheels: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = Path(member).name
                if name in _LIBRARIES:
                    part = folder / f".{name}.part"
                    part.write_bytes(archive.read(member))
                    part.replace(folder / name)
