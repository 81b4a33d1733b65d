"""The process that has a session: `python -m tvmstack.board.runner` speaks JSON lines with `watch`, which may end it.

Before each piece of work that can take long it writes {"stage": …}, which sets the parent's clock anew. Arrays are
.npz files: both ends are on one machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.artifact.manifest import WEIGHTS, Manifest, read_with_sections
from tvmstack.board.errors import BadCandidate
from tvmstack.board.probe import Probe, measure_drift
from tvmstack.board.session import BoardSession
from tvmstack.board.tracker import Offer
from tvmstack.core.errors import TvmstackError

__all__ = ["main"]

_REPEATS, _MIN_MS = 5, 4
# Single runs with empty caches are noisier than means of many.
_COLD_REPEATS, _FLUSH_BYTES = 15, 24 << 20
# Another order of summation may move a result by this much of the largest value.
_TOLERANCE = 1e-3
_UPLOAD_BYTES = 4 << 20

Message = Mapping[str, Any]
Answer = dict[str, Any]


class _Kernel:
    """One kernel's arrays on the board, and what its default computed there."""

    def __init__(self, session: BoardSession, params: list[Message], is_cold: bool) -> None:
        self.is_cold = is_cold
        self.arrays = [session.tensor(_random(p["shape"], p["dtype"], i)) for i, p in enumerate(params)]
        self.blank = np.zeros(params[-1]["shape"], params[-1]["dtype"])
        self.expected: np.ndarray | None = None

    def check(self, values: np.ndarray, is_default: bool) -> None:
        if is_default:
            self.expected = values
        elif self.expected is None:
            raise BadCandidate("the default has not run: there is nothing to compare with")
        else:
            largest = float(np.abs(self.expected.astype(np.float64)).max(initial=0.0))
            gap = float(np.abs(values.astype(np.float64) - self.expected.astype(np.float64)).max(initial=0.0))
            if not gap <= _TOLERANCE * max(largest, 1e-6):
                raise BadCandidate(f"wrong values: off by {gap:.3g}, largest value {largest:.3g}")


def _random(shape: list[int], dtype: str, seed: int) -> np.ndarray:
    if dtype.startswith("float"):
        return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)
    return np.zeros(shape, dtype)


class _Runner:
    def __init__(self, stage: Callable[..., None], folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.kernels: dict[str, _Kernel] = {}
        self.session: Any = None
        self.probe: Any = None
        self.artifact: tuple[Any, Manifest] | None = None

    def open(self, message: Message) -> Answer:
        offer = Offer(message["host"], message["port"], message["match"])
        self.stage("connect")
        self.session = BoardSession(offer, message["secret"], message["longest_s"])
        self.stage("load")
        self.probe = Probe(self.session, self.folder)
        facts = dataclasses.asdict(self.session.facts)
        return {"facts": {**facts, "features": " ".join(facts["features"])}}

    def kernel(self, message: Message) -> Answer:
        size = sum(int(np.prod(p["shape"])) * np.dtype(p["dtype"]).itemsize for p in message["params"])
        self.stage("upload", size)
        self.kernels[message["name"]] = _Kernel(self.session, message["params"], message["is_cold"])
        return {}

    def measure(self, message: Message) -> Answer:
        """Load a candidate, compare its values unless it is hopelessly slow, time it."""
        kernel, path = self.kernels[message["name"]], Path(message["path"])
        self.stage("upload", path.stat().st_size)
        module = self.session.load(path, path.name)
        self.session.remove(path.name)
        limit = message["limit_s"]
        if limit is not None:
            first = self._times(module, message["name"], kernel, 1)
            if first[0] > limit:
                return {"times": first}
        kernel.arrays[-1].copyfrom(kernel.blank)
        self.stage("run")
        self.session.call(module[message["name"]], *kernel.arrays)
        kernel.check(kernel.arrays[-1].numpy(), message["is_default"])
        repeats = _COLD_REPEATS if kernel.is_cold else _REPEATS
        return {"times": self._times(module, message["name"], kernel, repeats)}

    def _times(self, module: Any, name: str, kernel: _Kernel, repeats: int) -> list[float]:
        self.stage("run")
        min_ms, flush = (0, _FLUSH_BYTES) if kernel.is_cold else (_MIN_MS, 0)
        timer = self.session.timer(module, name, repeats, min_ms, flush)
        return [float(t) for t in self.session.call(timer, *kernel.arrays).results]

    def load(self, message: Message) -> Answer:
        """Upload an artifact and make its machine."""
        path = Path(message["path"])
        manifest, sections = read_with_sections(path)
        self.stage("upload", path.stat().st_size)
        module = self.session.load(path, "artifact.so")
        program = self.session.program(module, "artifact.so", manifest, sections[WEIGHTS].offset, path)
        self.artifact = program, manifest
        return {}

    def infer(self, message: Message) -> Answer:
        program, feeds = self._feeds(message)
        outputs = self.session.infer(program, feeds)
        np.savez(message["outputs"], **{f"o{i}": array for i, array in enumerate(outputs)})
        return {}

    def time(self, message: Message) -> Answer:
        """Time whole inferences by the board's clock."""
        program, feeds = self._feeds(message)
        self.session.infer(program, feeds)
        self.stage("infer")
        timer = program[0].time_evaluator("invoke_stateful", self.session.cpu, number=1, repeat=message["repeats"])
        return {"times": [float(t) for t in self.session.call(timer, "main").results]}

    def profile(self, message: Message) -> Answer:
        """Time each kernel of the artifact."""
        program, feeds = self._feeds(message)
        return {"runs": self.session.profile(program, feeds, message["repeats"])}

    def _feeds(self, message: Message) -> tuple[Any, list[np.ndarray]]:
        assert self.artifact is not None
        program, manifest = self.artifact
        with np.load(message["feeds"]) as stored:
            feeds = [stored[f"i{index}"] for index in range(len(manifest.inputs))]
        self.stage("infer")
        return program, feeds

    def examine(self, message: Message) -> Answer:
        """Measure what `doctor` shows: upload, noise, drift, temperature before and after some seconds of work."""
        before = self.session.ask_facts()
        self.stage("upload", _UPLOAD_BYTES)
        spent = dict(self.session.seconds)
        self.session.tensor(np.zeros(_UPLOAD_BYTES, np.uint8))
        upload_s = self.session.seconds["upload"] - spent.get("upload", 0.0)
        self.stage("run")
        drift = measure_drift(self.session, message["seconds"])
        self.probe.times(10)  # to wake the CPU up
        times = []
        for _ in range(4):
            self.stage("run")
            times += self.probe.times(10)
        after = self.session.ask_facts()
        return {
            "upload_bytes_per_s": _UPLOAD_BYTES / upload_s,
            "times": times,
            "drift": dataclasses.asdict(drift),
            "temperatures_c": [before.temperature_c, after.temperature_c],
        }


def main() -> None:
    """Serve the parent until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: Answer) -> None:
        print(json.dumps(message), file=answers, flush=True)

    with tempfile.TemporaryDirectory(prefix="tvmstack-runner-") as folder:
        runner = _Runner(lambda stage, size=0: reply({"stage": stage, "bytes": size}), Path(folder))
        reply({"ok": True})
        for line in sys.stdin:
            message = json.loads(line)
            try:
                answer = {"ok": True, **getattr(runner, message["do"])(message)}
            except TvmstackError as err:
                answer = {"ok": False, "kind": type(err).__name__, "reason": str(err)}
            except Exception as err:  # noqa: BLE001 - TVM's RPC raises what it likes; the parent finds out whose fault it is
                answer = {"ok": False, "kind": "BoardCrash", "reason": f"{type(err).__name__}: {err}"[:300]}
            seconds = runner.session.seconds if runner.session else {}
            reply({**answer, "seconds": seconds})


if __name__ == "__main__":
    main()
