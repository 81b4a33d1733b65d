"""Processes on this machine: TVM's tracker, our native server (emulated for another CPU), TVM's Python server."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack.board.build import SERVER, build_server
from tvmstack.board.errors import BoardLost
from tvmstack.board.tracker import address_from, list_boards
from tvmstack.core.errors import SetupError, UsageError

__all__ = [
    "ServerOptions",
    "ServerProcess",
    "emulator",
    "native_command",
    "python_command",
    "serve_until_stopped",
    "start_tracker",
]

_START_S, _LISTED_S = 60.0, 10.0
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Ask the kernel to end this process with its parent, which SIGKILL leaves no chance to do it itself."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_tracker(host: str, port: int) -> Any:
    """Start TVM's tracker; it ends with `terminate()` or with this process. `.port` says where it listens.

    Raises:
        SetupError: tornado is missing, or the port is taken.
    """
    try:
        from tvm.rpc.tracker import Tracker
    except ImportError as err:
        raise SetupError("the tracker needs tornado: pip install 'tvmstack[board]'") from err
    try:
        return Tracker(host, port, port + 1, silent=True)
    except Exception as err:  # it starts in a process of its own, whose errors arrive as they are
        words = (str(err).strip() or type(err).__name__).splitlines()[-1]
        raise SetupError(f"cannot start a tracker on {host}:{port}: {words}") from err


def emulator(arch: str) -> list[str]:
    """Return the command that runs a program of another architecture here; empty for this machine's own.

    Raises:
        SetupError: there is no emulator.
    """
    if arch == platform.machine():
        return []
    found = shutil.which(f"qemu-{arch}") or shutil.which(f"qemu-{arch}-static")
    if found is None:
        raise SetupError(f"running {arch} code here needs qemu-{arch}: apt-get install qemu-user")
    return [found, "-L", f"/usr/{arch}-linux-gnu"]


@dataclass(frozen=True)
class ServerOptions:
    """How a board offers itself.

    Attributes:
        key: its class: boards that give the same times share one.
        tracker: HOST:PORT.
        name: unique in the class; the host's name where empty.
        host: the interface to listen on.
        port: the first port to try.
        address: where clients reach it, where that is not where the tracker sees it.
        secret_file: file of the secret, needed outside loopback.
        longest_session_s: sessions are ended after this.
    """

    key: str
    tracker: str
    name: str = ""
    host: str = "127.0.0.1"
    port: int = 9100
    address: str = ""
    secret_file: str = ""
    longest_session_s: int = 600

    def check(self, allow_network: bool) -> None:
        """Refuse what would let strangers run code here.

        Raises:
            UsageError: it is outside loopback without the flag or the secret.
        """
        if self.host.startswith("127."):
            return
        if not allow_network:
            raise UsageError(
                f"{self.host} is not loopback, and whoever reaches the port can run any code here. Use an SSH tunnel, "
                "or say --allow-network with --secret-file"
            )
        if not self.secret_file:
            raise UsageError("outside loopback a server needs --secret-file: clients must know the secret")

    def arguments(self) -> list[str]:
        """Return the native server's arguments."""
        table = {
            "--key": self.key,
            "--tracker": self.tracker,
            "--name": self.name,
            "--host": self.host,
            "--port": str(self.port),
            "--last-port": str(self.port + 99),
            "--address": self.address,
            "--secret-file": self.secret_file,
            "--longest-session": str(self.longest_session_s),
        }
        return [word for option, value in table.items() if value for word in (option, value)]


class ServerProcess:
    """A server that runs as our child and says where it listens before the constructor returns.

    Raises:
        SetupError: it ends at once, or does not say that it serves.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self.lines: list[str] = []
        self._serving = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._serving.wait(_START_S) or not self.address:
            self.stop()
            words = self.lines[-1] if self.lines else f"no word in {_START_S:.0f} s"
            raise SetupError(f"the board server did not start: {words}")

    @property
    def address(self) -> str:
        """HOST:PORT it listens on; "" as long as it has not said so."""
        found = next((m for line in self.lines if (m := re.match(r"serving \S+ on (\S+)", line))), None)
        return found[1] if found else ""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("serving "):
                self._serving.set()
        self._serving.set()

    def wait(self) -> int:
        """Wait until it ends."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and its sessions; TVM's Python server has processes below it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)
        if self._process.stdout:
            self._process.stdout.close()


def native_command(folder: Path, arch: str, options: ServerOptions) -> list[str]:
    """Return the command that runs the native server of `folder`."""
    return [*emulator(arch), str(folder / SERVER), *options.arguments()]


def python_command(options: ServerOptions) -> list[str]:
    """Return the command that runs TVM's Python server with our facts."""
    return [sys.executable, "-m", "tvmstack.board.python_server", *options.arguments()]


def serve_until_stopped(
    options: ServerOptions, arch: str | None, folder: str | None, use_python: bool, say: Callable[[str], None]
) -> int:
    """Serve until Ctrl-C or the server's end; return the server's exit code.

    Raises:
        SetupError: the server cannot be built or started, or there is no tracker.
    """
    tracker = _tracker_where_none_is(options.tracker, say)
    try:
        with tempfile.TemporaryDirectory(prefix="tvmstack-board-server-") as scratch:
            if use_python:
                command = python_command(options)
            else:
                cpu = arch or platform.machine()
                place = Path(folder) if folder else build_server(cpu, Path(scratch)).parent
                command = native_command(place, cpu, options)
            server = ServerProcess(command)
            _wait_until_listed(options)
            say(f"{options.key} is served on {server.address}, the tracker is {options.tracker}; Ctrl-C ends it")
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                return server.wait()
            except KeyboardInterrupt:  # how a server is meant to end
                return 0
            finally:
                server.stop()
    finally:
        if tracker is not None:
            tracker.terminate()


def _wait_until_listed(options: ServerOptions) -> None:
    """Wait until the tracker lists a board of this key, so that who is told of it finds it; go on if none answers."""
    host, port = address_from(options.tracker)
    until = time.monotonic() + _LISTED_S
    while time.monotonic() < until:
        with contextlib.suppress(BoardLost):
            if any(row.key == options.key for row in list_boards(host, port)[0]):
                return
        time.sleep(0.05)


def _tracker_where_none_is(address: str, say: Callable[[str], None]) -> Any:
    """Start a tracker on loopback where none answers; elsewhere there must be one."""
    host, port = address_from(address)
    try:
        list_boards(host, port)
    except BoardLost:
        if not host.startswith("127."):
            raise
        say(f"starting a tracker on {address}")
        return start_tracker(host, port)
    return None
