"""One session on one board: handshake, upload, load, run, time. It blocks as the board does; `watch` has the clock."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack._tvm import relax, rpc_session, tvm
from tvmstack.artifact.manifest import Manifest
from tvmstack.board.errors import AccessDenied, BadCandidate, BoardCrash, BoardLost, BoardRefused
from tvmstack.board.facts import Facts, facts_from, proof_of
from tvmstack.board.tracker import Offer
from tvmstack.runtime.tensors import numpy_dtype

__all__ = ["BoardSession"]

_FACTS, _MAP = "tvmstack.board.facts", "tvmstack.board.map_tensor"
_CLOCK_KERNELS, _KERNEL_TIMES = "tvmstack.board.clock_kernels", "tvmstack.board.kernel_times"


class BoardSession:
    """A board while it is ours. The facts have been compared with what is installed here before it is made.

    Attributes:
        facts: what the board says of itself.
        seconds: spent so far in "connect", "upload", "load" and "run".
        cpu: its CPU, as TVM names devices of a session.
    """

    def __init__(self, offer: Offer, secret: str, longest_s: float) -> None:
        self.seconds: dict[str, float] = {}
        words = f"{offer.match} -timeout={longest_s:.0f}"
        if secret:
            words += f" -proof={proof_of(secret, 'client', offer.match)}"
        with self._clock("connect"):
            try:
                self._rpc = rpc_session(offer.host, offer.port, words)
            except Exception as err:  # TVM's RPC raises what it likes
                raise _refused_or_lost(offer, err) from err
            self.facts = self._handshake(offer, secret)
        self.cpu = self._rpc.cpu(0)

    @contextlib.contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def _handshake(self, offer: Offer, secret: str) -> Facts:
        try:
            ask = self._rpc.get_function(_FACTS)
        except Exception as err:  # TVM's RPC raises what it likes
            raise BoardRefused(
                f"the server on {offer.address} does not say what it is: start it with `tvmstack board serve`"
            ) from err
        nonce = secrets.token_hex(16)
        facts = facts_from(str(ask(nonce)))
        if secret and facts.proof != proof_of(secret, "board", nonce):
            raise BoardRefused(f"board {facts.name} on {offer.address} does not know the secret")
        if facts.refusal():
            raise BoardRefused(f"board {facts.name} on {offer.address} is refused: {facts.refusal()}")
        return facts

    def ask_facts(self) -> Facts:
        """Return what the board says of itself now: clocks and temperature move."""
        return facts_from(str(self._rpc.get_function(_FACTS)("")))

    def load(self, path: Path, name: str) -> Any:
        """Upload a library under a name and load it.

        Raises:
            BadCandidate: the board's loader refuses it.
        """
        with self._clock("upload"):
            self._rpc.upload(str(path), target=name)
        with self._clock("load"):
            try:
                return self._rpc.load_module(name)
            except Exception as err:  # TVM's RPC raises what it likes
                raise BadCandidate(f"board {self.facts.name} cannot load {path.name}: {_words(err)}") from err

    def remove(self, name: str) -> None:
        """Remove an uploaded file; what was loaded from it stays."""
        self._rpc.remove(name)

    def tensor(self, array: np.ndarray) -> Any:
        """Copy an array to the board."""
        with self._clock("upload"):
            return tvm.runtime.tensor(np.asarray(array, order="C"), self.cpu)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of a loaded library.

        Raises:
            BadCandidate: it raised an error.
            BoardCrash: the session ended in it.
        """
        with self._clock("run"):
            try:
                return function(*arguments)
            except Exception as err:  # TVM's RPC raises what it likes
                raise self._ended_or_raised(err) from err

    def timer(self, module: Any, name: str, repeats: int, min_ms: int, flush_bytes: int = 0) -> Any:
        """Return a function that times `name` on the board by the board's own clock.

        Args:
            module: where it is.
            name: of the function.
            repeats: how many times it gives.
            min_ms: each is the mean of as many runs as fill this.
            flush_bytes: so much memory is copied before each repeat, to empty the caches.
        """
        options = {"repeat": repeats, "min_repeat_ms": min_ms, "cache_flush_bytes": flush_bytes}
        return module.time_evaluator(name, self.cpu, number=1, **options)

    def program(self, module: Any, file: str, manifest: Manifest, weights_at: int, path: Path) -> Any:
        """Return the virtual machine of an artifact loaded from `path` as `file`, and its weights on the board.

        Args:
            module: what `load` gave.
            file: the name it was uploaded under.
            manifest: the artifact's.
            weights_at: where its section of weights begins.
            path: the artifact here.
        """
        vm = relax.VirtualMachine(module, self.cpu)
        rows = manifest.weights
        try:
            map_tensor = self._rpc.get_function(_MAP)
        except Exception:  # noqa: BLE001 - TVM's own server has no such function, and says so in many ways
            image = np.memmap(path, np.uint8, "r")
            return vm, [self.tensor(_weight(image, weights_at, row)) for row in rows]
        places = [(weights_at + int(r["offset"]), str(r["dtype"]), *r["shape"]) for r in rows]
        return vm, [self.call(map_tensor, file, *place) for place in places]

    def profile(self, program: Any, feeds: Sequence[np.ndarray], repeats: int) -> list[dict[str, tuple[float, int]]]:
        """Return for each of some runs the seconds and calls of each kernel, by the board's clock.

        Raises:
            BoardRefused: the server has no clock for kernels.
        """
        vm, _ = program
        self.infer(program, feeds)
        try:
            start, take = (self._rpc.get_function(name) for name in (_CLOCK_KERNELS, _KERNEL_TIMES))
        except Exception as err:  # TVM's RPC raises what it likes
            raise BoardRefused(f"board {self.facts.name} cannot time kernels: only the native server can") from err
        self.call(start, vm.module)
        runs = []
        for _ in range(repeats):
            self.call(vm.invoke_stateful, "main")
            runs.append(json.loads(str(self.call(take))))
        self.call(vm.module["set_instrument"], None)
        return runs

    def infer(self, program: Any, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run an artifact's `main` once and fetch its outputs."""
        vm, weights = program
        inputs = [self.tensor(array) for array in feeds]
        self.call(vm.set_input, "main", *inputs, *weights)
        self.call(vm.invoke_stateful, "main")
        found = self.call(vm.get_outputs, "main")
        tensors = [found] if hasattr(found, "numpy") else list(found)
        return [tensor.numpy() for tensor in tensors]

    def _ended_or_raised(self, err: Exception) -> Exception:
        try:
            self._rpc.get_function(_FACTS)
        except Exception:  # noqa: BLE001 - any failure says the same: nobody answers in this session
            return BoardCrash(f"the session on board {self.facts.name} ended: {_words(err)}")
        return BadCandidate(f"board {self.facts.name}: {_words(err)}")


def _weight(image: np.ndarray, weights_at: int, row: Mapping[str, Any]) -> np.ndarray:
    start = weights_at + int(row["offset"])
    return image[start : start + int(row["size"])].view(numpy_dtype(row["dtype"])).reshape(row["shape"])


def _refused_or_lost(offer: Offer, err: Exception) -> Exception:
    words = _words(err)
    if "mismatch" in str(err).lower() or "match" in words:
        return AccessDenied(
            f"the board on {offer.address} refuses us: the secret differs, or another client took its offer"
        )
    return BoardLost(f"the board on {offer.address} does not answer: {words}")


def _words(err: Exception) -> str:
    """Return what an error of TVM's says, without the stack it carries."""
    text = str(err).strip() or type(err).__name__
    return " ".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("File "))[:300]
