"""Compile `libtvmstack` and its `run` tool, once for each CPU, compiler and version; the second time they are there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tvmstack._version import VERSION
from tvmstack.board.build import runtime_libraries
from tvmstack.core.device import instruction_levels, physical_cores
from tvmstack.core.errors import SetupError
from tvmstack.core.toolchain import cross_compiler
from tvmstack.measure.machine import find_compiler

__all__ = ["LIBRARY", "RUNTIME_LIBRARIES", "SOURCES", "native_libraries", "tvm_libraries"]

SOURCES = Path(__file__).parent
LIBRARY, TOOL = "libtvmstack.so", "run"
RUNTIME_LIBRARIES = ("libtvm_runtime.so", "libtvm_ffi.so")
_CACHE = Path("~/.cache/tvmstack/native")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall", "-Wextra")


@dataclass(frozen=True)
class _Recipe:
    """All that the libraries' bytes depend on."""

    arch: str
    compiler: str
    flags: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]

    def name(self) -> str:
        """Return the name of their folder in the cache."""
        state = hashlib.sha256()
        for path in sorted([*SOURCES.glob("src/*"), *SOURCES.glob("include/*"), *SOURCES.glob("examples/run.c")]):
            state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        words = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, check=False).stdout
        state.update(repr((self, words, _levels_header(self.arch))).encode())
        return f"{self.arch}-{state.hexdigest()[:16]}"


def native_libraries(arch: str, cache: Path | None = None, flags: Sequence[str] = ()) -> Path:
    """Return a folder with `libtvmstack.so` and `run` for a CPU, compiled where it is not there yet (about 20 s).

    Args:
        arch: "aarch64", "x86_64": as `uname -m` says there.
        cache: where compiled libraries are kept; None for the user's cache.
        flags: more for the compiler.

    Raises:
        SetupError: there is no compiler for that CPU, it fails, or the cache cannot be written.
    """
    compiler = cross_compiler(arch) or find_compiler()
    if compiler is None:
        raise SetupError("building the native runtime needs a C++ compiler: apt-get install g++")
    versions = (
        ("TVMSTACK_VERSION", VERSION),
        ("TVMSTACK_TVM_VERSION", importlib.metadata.version("apache-tvm")),
        ("TVMSTACK_FFI_VERSION", importlib.metadata.version("apache-tvm-ffi")),
    )
    recipe = _Recipe(arch, compiler, (*_FLAGS, *flags), versions)
    root = (cache or _CACHE).expanduser()
    folder = root / recipe.name()
    if not folder.is_dir():
        with _appearing(folder) as part:
            _compile(recipe, part)
    return folder


def tvm_libraries(arch: str) -> list[Path]:
    """Return the two libraries of TVM that `libtvmstack` needs.

    Raises:
        SetupError: they cannot be found or fetched.
    """
    found = {path.name: path for path in runtime_libraries(arch)}
    missing = [name for name in RUNTIME_LIBRARIES if name not in found]
    if missing:
        raise SetupError(f"no {missing[0]} beside the tvm package: reinstall apache-tvm and apache-tvm-ffi")
    return [found[name] for name in RUNTIME_LIBRARIES]


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Give a scratch folder that becomes `folder` when the block ends well, and is gone when it does not."""
    part = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield part
        part.chmod(0o755)
        try:
            os.rename(part, folder)
        except OSError:
            if not folder.is_dir():  # another process was quicker and made the same
                raise
    except OSError as err:
        raise SetupError(f"cannot write {folder}: {err.strerror or err}") from err
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _compile(recipe: _Recipe, folder: Path) -> None:
    from tvm_ffi import libinfo

    (folder / "levels.h").write_text(_levels_header(recipe.arch))
    for library in tvm_libraries(recipe.arch):
        shutil.copy2(library, folder / library.name)
    headers = sorted({libinfo.find_include_path(), libinfo.find_dlpack_include_path()})
    includes = [f"-I{SOURCES / 'include'}", f"-I{folder}", *(f"-isystem{path}" for path in headers)]
    defines = [f'-D{name}="{value}"' for name, value in recipe.versions]
    sources = sorted((SOURCES / "src").glob("*.cc"))
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        _run([recipe.compiler, *recipe.flags, *includes, *defines, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(physical_cores()) as pool:
        list(pool.map(compile_one, sources, objects))
    _link(recipe, folder, objects)
    tool = ["-x", "c", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra"]
    tool += [*recipe.flags[len(_FLAGS) :], *includes, str(SOURCES / "examples" / "run.c"), "-x", "none"]
    libraries = [f"-L{folder}", "-ltvmstack", f"-Wl,-rpath-link,{folder}", "-Wl,-rpath,$ORIGIN/../lib", "-s"]
    _run([recipe.compiler, *tool, "-o", str(folder / TOOL), "-Wl,--as-needed", *libraries])
    for extra in (*objects, folder / "levels.h", *(folder / name for name in RUNTIME_LIBRARIES)):
        extra.unlink()


def _link(recipe: _Recipe, folder: Path, objects: Sequence[Path]) -> None:
    # Nothing of the runtime is called by name but one function: the machine registers itself when it is loaded.
    libraries = ["-Wl,--no-as-needed", f"-L{folder}", "-ltvm_runtime", "-ltvm_ffi", "-Wl,--as-needed", "-ldl"]
    layout = ["-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script,{SOURCES / 'src' / 'exports.map'}"]
    command = [recipe.compiler, "-shared", "-s", "-pthread", *map(str, objects), "-o", str(folder / LIBRARY)]
    _run([*command, *layout, "-Wl,-z,defs", *libraries])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise SetupError(f"{command[0]} cannot build the native runtime: {words[0] if words else 'no output'}")


def _levels_header(arch: str) -> str:
    """Return C++ that names the instruction set levels of a CPU and the features each needs, wide ones first."""
    rows = [f'    {{"{name}", "{" ".join(sorted(needs))}"}},' for name, needs in instruction_levels(arch)]
    lines = ["#pragma once", "#include <utility>", "namespace tvmstack {"]
    lines += ["constexpr std::pair<const char*, const char*> kLevels[] = {", *rows, "};", "}  // namespace tvmstack"]
    return "\n".join([*lines, ""])
