"""Peers measured against each other: each in its own process, the processes alternated, round by round."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tvmstack.core import errors
from tvmstack.measure.stats import Ratio, Summary, ratio, summarise

__all__ = ["BenchReport", "MissingPeer", "PeerResult", "PeerSpec", "bench"]

# After a round the peer's worker threads may still spin for some milliseconds; the next peer waits them out.
_PAUSE_S = 0.03
# A load average that our own compilation just before cannot explain away.
_BUSY_LOAD = 1.5


@dataclass(frozen=True)
class PeerSpec:
    """What to measure: a kind known to `measure.peer`, the file it loads, and the label it has in tables."""

    kind: str
    path: str
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or the kind where there is none."""
        return self.label or self.kind


@dataclass(frozen=True)
class PeerResult:
    """One peer's timings.

    Attributes:
        name: its label.
        version: its version as it gives it.
        summary: all single runs together.
        rounds: the median of each round in seconds.
        peak_rss: largest resident size of its process in bytes.
    """

    name: str
    version: str
    summary: Summary
    rounds: tuple[float, ...]
    peak_rss: int

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "name": self.name,
            "version": self.version,
            "summary": self.summary.to_json(),
            "rounds_s": list(self.rounds),
            "peak_rss_bytes": self.peak_rss,
        }


@dataclass(frozen=True)
class MissingPeer:
    """A peer that could not be measured, and why in one sentence; `error` names the class of `core.errors`."""

    name: str
    reason: str
    error: str


@dataclass(frozen=True)
class BenchReport:
    """All peers; the first is ours, which the others are set against."""

    peers: tuple[PeerResult, ...]
    threads: int
    device: str
    notes: tuple[str, ...] = ()
    missing: tuple[MissingPeer, ...] = ()

    def ratio(self, index: int) -> Ratio:
        """Return the time of peer `index` over the first's: above 1 the first is ahead."""
        return ratio(self.peers[index].rounds, self.peers[0].rounds)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data; `ratio` is a peer's time over ours, so above 1 we are ahead."""
        rows = [p.to_json() for p in self.peers]
        for index, row in enumerate(rows[1:], 1):
            row["ratio"] = self.ratio(index).to_json()
        return {
            "device": self.device,
            "threads": self.threads,
            "peers": rows,
            "missing": [asdict(m) for m in self.missing],
            "notes": list(self.notes),
        }


class _Peer:
    def __init__(self, spec: PeerSpec, inputs: Path, threads: int) -> None:
        self.spec = spec
        self.samples: list[float] = []
        self.rounds: list[float] = []
        self.peak_rss = 0
        self.version = ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the peer
        env = dict(os.environ, TVM_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvmstack.measure.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
        )
        self._request = {"kind": spec.kind, "path": str(spec.path), "inputs": str(inputs), "threads": threads}

    def __enter__(self) -> _Peer:
        try:
            self.version = self._ask(self._request)["version"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()

    def measure(self, seconds: float) -> None:
        answer = self._ask({"seconds": seconds, "least": 3})
        self.samples += answer["seconds"]
        self.rounds.append(statistics.median(answer["seconds"]))
        self.peak_rss = answer["peak_rss"]

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else self._death()
        if "error" in answer:
            kind = getattr(errors, answer["class"], errors.BackendError)
            if kind is errors.SetupError:
                raise kind(f"{self.spec.name} was not measured: {answer['error']}")
            raise kind(f"{self.spec.name} could not run {Path(self.spec.path).name}: {answer['error']}")
        return answer

    def _death(self) -> dict[str, Any]:
        status = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().strip().splitlines()
        return {
            "error": f"its process ended with status {status}: {words[-1] if words else 'no output'}",
            "class": "BackendError",
        }

    def result(self) -> PeerResult:
        return PeerResult(self.spec.name, self.version, summarise(self.samples), tuple(self.rounds), self.peak_rss)


def bench(
    peers: Sequence[PeerSpec],
    inputs: Mapping[str, np.ndarray],
    *,
    threads: int,
    device: str = "",
    rounds: int = 7,
    seconds: float = 0.5,
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measure peers on the same inputs and threads, in turns.

    Args:
        peers: who; the first is what the others are set against.
        inputs: what all are fed.
        threads: threads each may use.
        device: the device's id, kept in the report.
        rounds: how many turns each peer gets.
        seconds: length of one turn.
        progress: called with a line before each round.

    A peer other than the first that is not installed or cannot run the model is told of in `missing`; the rest are
    measured.

    Raises:
        SetupError: the first peer is not installed.
        BackendError: the first peer cannot run the model, or one dies while it is measured.
        UsageError: a peer's kind is unknown.
    """
    notes = _busy_notes()
    with tempfile.TemporaryDirectory(prefix="tvmstack-bench-") as folder, contextlib.ExitStack() as stack:
        stored = Path(folder) / "inputs.npz"
        np.savez(stored, **dict(inputs))  # type: ignore[arg-type]
        running, missing = _start(peers, stored, threads, stack)
        for index in range(rounds):
            if progress:
                progress(f"round {index + 1} of {rounds}")
            order = running if index % 2 == 0 else running[::-1]
            for peer in order:
                time.sleep(_PAUSE_S)
                peer.measure(seconds)
        return BenchReport(tuple(p.result() for p in running), threads, device, notes, tuple(missing))


def _start(
    peers: Sequence[PeerSpec], inputs: Path, threads: int, stack: contextlib.ExitStack
) -> tuple[list[_Peer], list[MissingPeer]]:
    """Start one process after the other, each as far as its first inference."""
    running: list[_Peer] = []
    missing: list[MissingPeer] = []
    for spec in peers:
        try:
            running.append(stack.enter_context(_Peer(spec, inputs, threads)))
        except (errors.SetupError, errors.BackendError) as err:
            if not running:
                raise
            missing.append(MissingPeer(spec.name, str(err), type(err).__name__))
    return running, missing


def _busy_notes() -> tuple[str, ...]:
    """Return a warning where other programs were running, since they slow peers down in different ways."""
    load = os.getloadavg()[0]
    if load < _BUSY_LOAD:
        return ()
    return (f"the machine was busy (load {load:.1f} before the first round): figures are upper bounds, ratios unsure",)
