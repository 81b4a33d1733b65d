"""An emulated ARM board and a native x86 one, each a real server process that a real tracker knows."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tvmstack.board.build import build_server
from tvmstack.board.serve import ServerOptions, ServerProcess, native_command, start_tracker
from tvmstack.board.tracker import BoardSpec
from tvmstack.core.errors import SetupError

ARM = "aarch64"
A72 = {"QEMU_CPU": "cortex-a72"}


def need_arm_tools() -> None:
    """Skip where an ARM board cannot be emulated, saying what is missing."""
    for program, package in ((f"{ARM}-linux-gnu-g++", f"g++-{ARM}-linux-gnu"), (f"qemu-{ARM}", "qemu-user")):
        if shutil.which(program) is None and platform.machine() != ARM:
            pytest.skip(f"no {program} here: apt-get install {package}")


@dataclass
class Farm:
    """A tracker and the boards that registered with it."""

    tracker: str
    folders: dict[str, Path]
    servers: list[ServerProcess] = field(default_factory=list)

    def board(self, key: str, arch: str, name: str = "", **options: object) -> BoardSpec:
        """Start a board and return its class."""
        host, _, port = self.tracker.partition(":")
        chosen = ServerOptions(key, self.tracker, name=name or key, **options)  # type: ignore[arg-type]
        self.servers.append(ServerProcess(native_command(self.folders[arch], arch, chosen), A72))
        return BoardSpec(key, host, int(port))

    def stop(self) -> None:
        while self.servers:
            self.servers.pop().stop()


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that builds a server once for each CPU and claimed version."""
    built: dict[tuple[str, str | None], Path] = {}

    def folder(arch: str, tvm_version: str | None = None) -> Path:
        if arch == ARM:
            need_arm_tools()
        if (arch, tvm_version) not in built:
            place = tmp_path_factory.mktemp("server")
            try:
                build_server(arch, place, tvm_version)
            except SetupError as err:
                pytest.skip(str(err))
            built[arch, tvm_version] = place
        return built[arch, tvm_version]

    return folder


@pytest.fixture(scope="session")
def tracker() -> Iterator[str]:
    """Return the address of a running tracker."""
    pytest.importorskip("tornado", reason="the tracker needs tornado: pip install 'tvmstack[board]'")
    port = free_port()
    running = start_tracker("127.0.0.1", port)
    yield f"127.0.0.1:{port}"
    running.terminate()


@pytest.fixture
def farm(tracker: str, server_folder: Callable[..., Path]) -> Iterator[Farm]:
    """Boards of one test, gone after it."""
    made = Farm(tracker, {platform.machine(): server_folder(platform.machine())})
    yield made
    made.stop()


@pytest.fixture(scope="session")
def arm_board(tracker: str, server_folder: Callable[..., Path]) -> Iterator[BoardSpec]:
    """Return an emulated ARM board that serves the whole session."""
    made = Farm(tracker, {ARM: server_folder(ARM)})
    yield made.board("a72-of-the-session", ARM)
    made.stop()


def free_port() -> int:
    """Return a port nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def private_health(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No test reads or writes the user's quarantine."""
    path = tmp_path / "health.json"
    monkeypatch.setenv("TVMSTACK_BOARD_HEALTH", str(path))
    monkeypatch.delenv("TVMSTACK_BOARD_SECRET_FILE", raising=False)
    return path


_KERNEL = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>

static float* data(const TVMFFIAny* arg) {
  DLTensor* t = arg->type_index == kTVMFFITensor ? (DLTensor*)((char*)arg->v_obj + sizeof(TVMFFIObject)) : arg->v_ptr;
  return (float*)((char*)t->data + t->byte_offset);
}

int __tvm_ffi_kernel(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  float* in = data(&args[0]);
  float* out = data(&args[1]);
  BEFORE;
  for (int i = 0; i < 8; ++i) out[i] = in[i] + ADDED;
  return 0;
}
"""


@pytest.fixture(scope="session")
def c_kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that builds a kernel of this machine's CPU that does something before it adds a number."""
    import subprocess

    from tvm_ffi import libinfo

    folder = tmp_path_factory.mktemp("c-kernels")

    def build(before: str = "", added: float = 1.0) -> Path:
        path = folder / f"kernel{len(list(folder.iterdir()))}.so"
        source = _KERNEL.replace("BEFORE", before).replace("ADDED", f"{added}f")
        include = {f"-I{libinfo.find_include_path()}", f"-I{libinfo.find_dlpack_include_path()}"}
        command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path), *include]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    return build
