"""The worker's side: one method of a back end, called in this process; run as a script by `worker`.

It is started with `python -I`, perhaps by another interpreter than ours, and makes only the packages importable that it
is told of: another environment must not find ours. It imports nothing but the standard library until then.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_PDEATHSIG = 1


def _leave_network() -> str:
    """Move to a network namespace without interfaces; return why that was not possible, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET) == 0:
        return ""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEWUSER | _NEWNET) != 0:
        return os.strerror(ctypes.get_errno())
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as err:
        return f"the network is off, but {err}"
    return ""


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _import_from(name: str, place: str) -> None:
    """Make a top-level package importable from its own folder or file, and nothing that lies beside it."""
    if name in sys.modules:
        return
    path = Path(place)
    start = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(
        name, start, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _answer(job: dict[str, Any]) -> bytes:
    from tvmstack.backends.wire import pack, unpack

    module, _, attribute = job["place"].partition(":")
    backend = getattr(importlib.import_module(module), attribute)()
    arguments = unpack(Path(job["request"]).read_bytes())
    return pack(getattr(backend, job["method"])(*arguments))


def main() -> int:
    """Do the job that the file named on the command line tells; leave the answer, or what went wrong, in files."""
    job = json.loads(Path(sys.argv[1]).read_text())
    _die_with_parent(job["parent"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reason = _leave_network()
    if reason:
        sys.stderr.write(f"tvmstack: this process is not cut off from the network: {reason}\n")
    sys.path[:] = [*sys.path, *(p for p in job["path"] if p not in sys.path)]
    try:
        for name, place in job["packages"].items():
            _import_from(name, place)
        Path(job["answer"]).write_bytes(_answer(job))
    except Exception as err:  # noqa: BLE001  (the border of the process: any failure is an answer)
        failure = {"kind": type(err).__name__, "text": str(err).strip()}
        Path(job["failure"]).write_text(json.dumps(failure))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a vendor's clean-up at exit has nothing left to spoil
