"""TVM's runtime library without the tvm package: found beside it, opened with ctypes, driven through tvm_ffi."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from tvmstack.core.errors import ArtifactError, SetupError

__all__ = ["load_module", "runtime_library", "set_thread_count"]

_log = logging.getLogger(__name__)

# TVM's own tvm::runtime::threading::SetMaxConcurrency(int); no packed function offers it.
_SET_CONCURRENCY = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"


@functools.cache
def runtime_library() -> ctypes.CDLL:
    """Open libtvm_runtime, once in the process.

    Raises:
        SetupError: apache-tvm is not installed, or has no runtime library where one is expected.
    """
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise SetupError("apache-tvm is not installed: pip install 'apache-tvm>=0.27,<0.28'")
    folder = Path(spec.origin).parent
    path = next((p for p in (folder / "lib" / "libtvm_runtime.so", folder / "libtvm_runtime.so") if p.exists()), None)
    if path is None:
        raise SetupError(f"no libtvm_runtime.so below {folder}: reinstall apache-tvm")
    # Pinning, TVM's default, puts the workers of every pool on the same cores and widens the caller's own affinity.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    try:
        import tvm_ffi  # noqa: F401  brings in the library that the runtime is linked to

        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except (ImportError, OSError) as err:
        raise SetupError(f"cannot open TVM's runtime: {err}") from err


def load_module(path: Path) -> Any:
    """Open an artifact as a tvm_ffi module that holds a VM executable.

    The loader remembers libraries by name: a file replaced since it was first loaded would give the old code. So
    each is opened under a name of its own, where there is a folder to put that name in.

    Raises:
        ArtifactError: the loader refuses the file.
    """
    runtime_library()
    import tvm_ffi

    with contextlib.ExitStack() as stack:
        alias = path.resolve()
        try:
            alias = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmstack-load-"))) / path.name
            alias.symlink_to(path.resolve())
        except OSError as err:
            _log.debug("%s is loaded under its own name: %s", path, err)
            alias = path.resolve()
        return _load(tvm_ffi, alias, path)


def _load(tvm_ffi: Any, alias: Path, path: Path) -> Any:
    try:
        return tvm_ffi.load_module(str(alias))
    except (RuntimeError, OSError, ValueError) as err:
        raise ArtifactError(f"{path} cannot be loaded: {str(err).strip().splitlines()[-1]}") from err


@functools.cache
def _concurrency_setter() -> Any:
    try:
        function = getattr(runtime_library(), _SET_CONCURRENCY)
    except AttributeError as err:
        raise SetupError("this build of TVM's runtime cannot be told how many threads to use") from err
    function.argtypes, function.restype = [ctypes.c_int], None
    return function


def set_thread_count(threads: int) -> None:
    """Say how many threads kernels use that the calling thread runs; more than one holds from its first kernel on."""
    _concurrency_setter()(threads)
