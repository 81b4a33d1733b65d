"""A back end whose vendor code misbehaves in every way that a worker must survive."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tvmstack.backends.base import Blob, Capability, Options, Target
from tvmstack.core.errors import UsageError


class Odd:
    name = "odd"
    in_process = False

    def probe(self) -> Capability:
        return Capability("1", True, False)

    def targets(self) -> tuple[Target, ...]:
        return (Target("cpu", "cpu", False),)

    def query(self, model: bytes, target: Target) -> dict[str, Any]:
        return {}

    def estimate(self, *_: Any) -> None:
        return None

    def compile(self, region: Any, target: Target, options: Options, samples: Any) -> Blob:
        how = options.extra["how"]
        if how == "crash":
            os.write(1, b"about to read from nowhere\n")
            ctypes.string_at(0)
        if how == "hang":
            child = subprocess.Popen(["sleep", "60"])
            Path(options.extra["note"]).write_text(f"{os.getpid()} {child.pid}")
            time.sleep(60)
        if how == "raise":
            raise RuntimeError("vendor code 17\nmore")
        if how == "ours":
            raise UsageError("no such option")
        if how == "quit":
            os._exit(3)
        os.write(1, b"noise on standard output\n")
        Path("left_behind.txt").write_text("x")
        facts = {"cwd": str(Path.cwd()), "home": os.environ["HOME"], "network": _reaches_itself()}
        return Blob(b"data", "odd", "cpu", "", region.inputs, region.outputs, {}, facts)


def _reaches_itself() -> bool:
    """Whether there is a network at all: without interfaces not even this machine answers."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(1)
    client = socket.socket()
    client.settimeout(1)
    return client.connect_ex(server.getsockname()) == 0
