"""A back end in a process of its own: `hosted` gives the same protocol, and a vendor's crash is a sentence.

Each call is one process. It works in a scratch folder that goes afterwards, what it prints goes to the log, it is
killed with all its children when its time is over, and it is cut off from the network where the kernel allows that.
A back end may name another interpreter, an environment with other versions: an attribute or property `interpreter`
with the path of its python. There only numpy, onnx and the back end's own imports are needed; `tvmstack` is imported
from our files, without its dependencies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tvmstack.backends import serve
from tvmstack.backends.base import Backend, Blob, Capability, Cost, NodeVerdict, Options, Samples, Target
from tvmstack.backends.wire import pack, unpack
from tvmstack.core import errors
from tvmstack.core.errors import BackendError, SetupError, TvmstackError
from tvmstack.core.region import Region

__all__ = ["Hosted", "call", "hosted"]

_log = logging.getLogger("tvmstack.backends")
_QUERY_S = 600.0
_KEPT_BYTES, _TAIL_LINES = 1 << 16, 3
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")


def hosted(backend: Backend) -> Backend:
    """Return a back end that may be called without fear: itself where it is harmless, else one in worker processes."""
    return backend if backend.in_process or isinstance(backend, Hosted) else Hosted(backend)


class Hosted:
    """A back end whose vendor's code runs in worker processes. `probe` and `targets` are called here."""

    in_process = True

    def __init__(self, backend: Backend) -> None:
        self.name, self.inner = backend.name, backend
        if hasattr(backend, "simulate"):
            self.simulate = self._simulate

    def probe(self) -> Capability:
        """See `Backend.probe`."""
        return self.inner.probe()

    def targets(self) -> Sequence[Target]:
        """See `Backend.targets`."""
        return self.inner.targets()

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """See `Backend.query`."""
        return self._call("query", (model, target), _QUERY_S)

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """See `Backend.estimate`."""
        return self._call("estimate", (region, target, options), options.seconds)

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """See `Backend.compile`."""
        return self._call("compile", (region, target, options, samples), options.seconds)

    def _simulate(self, *args: Any) -> Any:
        return self._call("simulate", args, next(a.seconds for a in args if isinstance(a, Options)))

    def _call(self, method: str, arguments: Sequence[Any], seconds: float) -> Any:
        kind = type(self.inner)
        python = getattr(self.inner, "interpreter", None)
        return call(f"{kind.__module__}:{kind.__qualname__}", method, arguments, seconds, self.name, python)


def call(
    place: str,
    method: str,
    arguments: Sequence[Any],
    seconds: float,
    name: str,
    interpreter: str | Path | None = None,
) -> Any:
    """Return `place().method(*arguments)`, computed in a process of its own.

    Args:
        place: "module:Class", a class without arguments.
        method: what to call.
        arguments: values of the protocol's types.
        seconds: after this long the process and its children are killed.
        name: of the back end, for messages.
        interpreter: another python than ours.

    Raises:
        BackendError: it crashed, hung or raised; with the end of what it printed.
        TvmstackError: of the kind that it raised itself.
        SetupError: the process cannot be started, or there is no room for its files.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tvmstack-worker-", ignore_cleanup_errors=True) as text:
            return _in_folder(Path(text), place, method, arguments, seconds, name, interpreter)
    except OSError as err:
        raise SetupError(f"back end {name} cannot be run in a process of its own: {err}") from err


def _in_folder(
    folder: Path,
    place: str,
    method: str,
    arguments: Sequence[Any],
    seconds: float,
    name: str,
    interpreter: str | Path | None,
) -> Any:
    scratch = folder / "scratch"
    scratch.mkdir()
    files = {key: str(folder / key) for key in ("request", "answer", "failure")}
    Path(files["request"]).write_bytes(pack(tuple(arguments)))
    path = [] if interpreter else [p for p in sys.path if p]
    job = {**files, "place": place, "method": method, "parent": os.getpid(), "path": path, "packages": _packages(place)}
    (folder / "job.json").write_text(json.dumps(job))
    command = [str(interpreter or sys.executable), "-I", serve.__file__, str(folder / "job.json")]
    process = subprocess.Popen(
        command,
        cwd=scratch,
        env=_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said, late = _watch(process, seconds)
    for line in said.splitlines():
        _log.debug("%s: %s", name, line)
    if late:
        raise BackendError(f"back end {name} was stopped after {seconds:g} s in {method}{_tail(said)}")
    answer, failure = Path(files["answer"]), Path(files["failure"])
    if process.returncode == 0 and answer.exists():
        return unpack(answer.read_bytes())
    if failure.exists():
        raise _failure(json.loads(failure.read_text()), name, method, said)
    raise BackendError(f"back end {name} {_end(process.returncode)} in {method}{_tail(said)}")


def _packages(place: str) -> dict[str, str]:
    """Return where the top-level packages lie that the worker needs: ours, and the back end's."""
    found = {}
    for name in ("tvmstack", place.split(".", maxsplit=1)[0].split(":", maxsplit=1)[0]):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = str(next(iter(spec.submodule_search_locations)))
        elif spec is not None and spec.origin:
            found[name] = spec.origin
    return found


def _environment(scratch: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k.lower() not in _PROXIES}
    (scratch / "tmp").mkdir()
    home = str(scratch)
    return {
        **env,
        "HOME": home,
        "XDG_CACHE_HOME": home,
        "TMPDIR": str(scratch / "tmp"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONNOUSERSITE": "1",
    }


def _watch(process: subprocess.Popen[bytes], seconds: float) -> tuple[str, bool]:
    """Return the end of what a process printed, and whether it had to be stopped; nothing of its session stays."""
    said = bytearray()
    assert process.stdout is not None
    reader = threading.Thread(target=_drain, args=(process.stdout, said), daemon=True)
    reader.start()
    late = False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(5)
    return bytes(said).decode(errors="replace"), late


def _drain(stream: IO[bytes], said: bytearray) -> None:
    while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
        said += chunk
        del said[:-_KEPT_BYTES]
    stream.close()


def _failure(data: Mapping[str, str], name: str, method: str, said: str) -> TvmstackError:
    """Return the error that the worker raised: ours as it was, any other as the back end's."""
    kind = getattr(errors, data["kind"], None)
    if isinstance(kind, type) and issubclass(kind, TvmstackError):
        return kind(data["text"])
    words = (data["text"] or data["kind"]).splitlines()[0]
    return BackendError(f"back end {name} failed in {method}: {data['kind']}: {words}{_tail(said)}")


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with code {code} and no answer"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashed (signal {-code})"


def _tail(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"; its last words: {' | '.join(lines[-_TAIL_LINES:])[-400:]}" if lines else ""
