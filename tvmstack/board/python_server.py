"""TVM's Python RPC server with our facts, for a machine that has Python but no C++ compiler.

`python -m tvmstack.board.python_server --key … --tracker …` takes the native server's options, as far as TVM's server
has them. It cannot check a secret, so it listens on loopback only.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmstack.board.facts import PROTOCOL
from tvmstack.core.device import detect_device
from tvmstack.core.errors import SetupError

__all__ = ["main"]


def _facts(name: str) -> dict[str, Any]:
    device = detect_device()
    return {
        "protocol": PROTOCOL,
        "server": "python",
        "name": name,
        "arch": device.arch,
        "tvm": importlib.metadata.version("apache-tvm"),
        "ffi": importlib.metadata.version("apache-tvm-ffi"),
        "cpu": device.name,
        "part": _cpu_part(),
        "features": " ".join(device.features),
        "cores": device.cores,
        "caches": list(device.caches),
        "monotonic_s": time.monotonic(),
        "time_s": time.time(),
        "temperature_c": _temperature(),
        "proof": "",
    }


def _cpu_part() -> str:
    """Return what an ARM kernel calls the core."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("CPU part")), "")


def _temperature() -> float | None:
    found = [p.read_text().strip() for p in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    return max(int(t) for t in found) / 1000 if found else None


def _register(name: str) -> None:
    import tvm_ffi

    tvm_ffi.register_global_func("tvmstack.board.facts", lambda _nonce: json.dumps(_facts(name)), override=True)


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    from tvm import rpc

    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if not options["--host"].startswith("127."):
        raise SetupError("TVM's Python server cannot check a secret: outside loopback use the native server")
    tracker, _, port = options["--tracker"].rpartition(":")
    name = options.get("--name") or platform.node()
    os.environ.setdefault("TVM_NUM_THREADS", str(detect_device().cores))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    server = rpc.Server(
        options["--host"],
        int(options["--port"]),
        int(options["--last-port"]) + 1,
        tracker_addr=(tracker, int(port)),
        key=options["--key"],
        silent=True,
        server_init_callback=lambda: _register(name),
    )
    print(f"serving {options['--key']} on {server.host}:{server.port}", flush=True)  # noqa: T201 - the parent reads it
    server.proc._proc.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
