"""A class of boards under a clock: every stage of work has a deadline, every failure a kind, every board a health."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.board.errors import (
    KINDS,
    AccessDenied,
    BoardCrash,
    BoardLost,
    BoardRefused,
    BoardTimeout,
    NoTracker,
    TurnOver,
)
from tvmstack.board.facts import Facts, facts_from
from tvmstack.board.health import Health
from tvmstack.board.tracker import DEFAULT_TRACKER, BoardSpec, address_from, list_boards, request
from tvmstack.core.errors import BoardError, SetupError

__all__ = ["STAGES", "Boards", "Limits", "list_states", "watch_boards"]

_log = logging.getLogger(__name__)
_START_S = 60.0
# The share of a session's length after which no new candidate is begun in it.
_TURN = 0.8
# Bytes per second: an upload may take as long as on such a line, and its stage's limit besides.
_SLOWEST_LINE = 250e3
# A board that is not free after this is at work for somebody, and so in health.
_WATCH_QUEUE_S = 2.0


STAGES = {"connect": 10.0, "load": 20.0, "upload": 20.0, "run": 20.0, "infer": 120.0}
"""Seconds without progress after which a stage of work is given up."""


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds.

    Attributes:
        queue_s: to wait for a free board.
        recover_s: to wait for a board that may have been lost.
        stages: without progress in a stage of work, where another than `STAGES`; each stage starts the clock anew.
        longest_s: of one session; the board itself ends it then, so that others get their turn.
    """

    queue_s: float = 60.0
    recover_s: float = 10.0
    stages: Mapping[str, float] = field(default_factory=dict)
    longest_s: float = 600.0


class _NoAnswerError(Exception):
    """The runner died or hung; `args[0]` is the kind of error if the board is still there, `args[1]` what was seen."""


class _Runner:
    """The process that holds the session."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = (root, os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvmstack.board.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
            start_new_session=True,
        )
        self._rest = b""
        if not self._line(_START_S).get("ok"):
            raise SetupError("the process that talks to boards does not start")

    def ask(self, message: Mapping[str, Any], stages: Mapping[str, float]) -> dict[str, Any]:
        assert self._process.stdin is not None
        stage, limit = "connect", stages["connect"]
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as err:
            raise _NoAnswerError(BoardCrash, "the process that talks to the board died") from err
        while True:
            try:
                answer = self._line(limit)
            except TimeoutError as err:
                raise _NoAnswerError(BoardTimeout, f"no progress in {limit:.0f} s of stage {stage!r}") from err
            if "stage" not in answer:
                return answer
            stage = answer["stage"]
            limit = stages[stage] + answer["bytes"] / _SLOWEST_LINE

    def _line(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise _NoAnswerError(BoardCrash, f"the process that talks to the board ended ({self._process.wait()})")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


class Boards:
    """Boards of one class, of which one at a time is ours. Closing it gives the board back.

    Args:
        spec: the class.
        secret: what both sides must know; "" on loopback.
        limits: the deadlines.
        health: who is in quarantine.
        only: use the board of this name only, also out of quarantine.

    Attributes:
        facts: what the board in use says of itself.
        seconds: spent in "queue", "connect", "upload", "load" and "run", all boards together.
    """

    def __init__(
        self,
        spec: BoardSpec,
        secret: str = "",
        limits: Limits | None = None,
        health: Health | None = None,
        only: str = "",
    ) -> None:
        self.spec, self.limits, self.health = spec, limits or Limits(), health or Health()
        self.seconds: dict[str, float] = {}
        self._secret, self._only = secret, only
        self._stages = {**STAGES, **self.limits.stages}
        self._runner: _Runner | None = None
        self._spent: dict[str, float] = {}
        self.facts = self._open(self.limits.queue_s)
        self._first = self.facts

    def __enter__(self) -> Boards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the board back."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None

    @property
    def is_open(self) -> bool:
        """Whether a board is ours now; where not, the next piece of work takes one."""
        return self._runner is not None

    def board_id(self, name: str) -> str:
        """Return what the health file calls a board of this tracker."""
        return f"{name}@{self.spec.host}:{self.spec.port}"

    # ---- work

    def kernel(self, name: str, params: Sequence[tuple[Sequence[int], str]], is_cold: bool = False) -> None:
        """Put seeded arrays of these shapes and dtypes on the board; the last is the output.

        `is_cold` empties the board's caches before each run that is timed.
        """
        rows = [{"shape": list(shape), "dtype": dtype} for shape, dtype in params]
        self.ask({"do": "kernel", "name": name, "params": rows, "is_cold": is_cold})

    def measure(self, name: str, path: Path, is_default: bool, limit_s: float | None = None) -> list[float]:
        """Return the seconds of a kernel's repeats, once its values have been compared with the default's.

        Where the first is over the limit, it is the only one, and the values are not compared.

        Raises:
            BadCandidate: this library's fault.
            BoardTimeout, BoardCrash: as well; another session is open by then, which knows no kernel.
            TurnOver: nobody's; the session was renewed before anything was sent.
            BoardLost: no board of the class is left.
        """
        self._take_turns()
        message = {"do": "measure", "name": name, "path": str(path), "is_default": is_default, "limit_s": limit_s}
        answer = self.ask(message)
        return [float(t) for t in answer["times"]]

    def load(self, path: Path) -> None:
        """Upload an artifact."""
        self.ask({"do": "load", "path": str(path)})

    def infer(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the loaded artifact once."""
        with tempfile.TemporaryDirectory(prefix="tvmstack-feeds-") as folder:
            stored, outputs = _store(feeds, Path(folder)), Path(folder) / "outputs.npz"
            self.ask({"do": "infer", "feeds": str(stored), "outputs": str(outputs)})
            with np.load(outputs) as found:
                return [found[f"o{i}"] for i in range(len(found.files))]

    def time(self, feeds: Sequence[np.ndarray], repeats: int) -> list[float]:
        """Return the seconds of some runs of the loaded artifact, by the board's clock."""
        with tempfile.TemporaryDirectory(prefix="tvmstack-feeds-") as folder:
            answer = self.ask({"do": "time", "feeds": str(_store(feeds, Path(folder))), "repeats": repeats})
        return [float(t) for t in answer["times"]]

    def profile(self, feeds: Sequence[np.ndarray], repeats: int) -> list[dict[str, tuple[float, int]]]:
        """Return for each of some runs of the loaded artifact the seconds and calls of each kernel."""
        with tempfile.TemporaryDirectory(prefix="tvmstack-feeds-") as folder:
            answer = self.ask({"do": "profile", "feeds": str(_store(feeds, Path(folder))), "repeats": repeats})
        return [{name: (row[0], row[1]) for name, row in run.items()} for run in answer["runs"]]

    def examine(self, seconds: float) -> dict[str, Any]:
        """Return what `board.doctor` judges."""
        return self.ask({"do": "examine", "seconds": seconds})

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Have the board do something, under the clock of each stage."""
        if self._runner is None:
            self.facts = self._open(self.limits.queue_s)
        assert self._runner is not None
        try:
            answer = self._runner.ask(message, self._stages)
        except _NoAnswerError as none:
            raise self._recover(*none.args) from none
        self._count(answer["seconds"])
        if answer["ok"]:
            return answer
        kind = KINDS.get(answer["kind"], BoardError)
        if kind in (BoardCrash, BoardLost):
            raise self._recover(BoardCrash, answer["reason"])
        raise kind(answer["reason"])

    def _count(self, seconds: Mapping[str, float]) -> None:
        for stage, total in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + total - self._spent.get(stage, 0.0)
        self._spent = dict(seconds)

    def _take_turns(self) -> None:
        """Before the board would end the session for its length, give it back and queue again behind others."""
        if self._runner is None or time.monotonic() - self._opened < _TURN * self.limits.longest_s:
            return
        self.close()
        self.facts = self._open(self.limits.queue_s + self.limits.longest_s)
        raise TurnOver(f"the session's time was up; {self.facts.name} goes on")

    # ---- which board

    def _open(self, seconds: float) -> Facts:
        """Take the first free board in good health that proves what it says; leave the others alone."""
        until = time.monotonic() + seconds
        refusal: BoardError | None = None
        tested: set[str] = set()
        while True:
            start = time.monotonic()
            try:
                offer = request(self.spec, max(0.01, until - start))
            except BoardLost as lost:
                raise refusal or lost from None
            finally:
                self.seconds["queue"] = self.seconds.get("queue", 0.0) + time.monotonic() - start
            names = self._names()
            name = names.get(offer.address, offer.address)
            if name not in tested:
                unfit = self._unfit(name, tested)
                if unfit is None:
                    try:
                        return self._connect(offer, name)
                    except BoardError as err:
                        tested.add(name)
                        if not isinstance(err, AccessDenied):
                            self._blame(name, err)
                        unfit = err
                refusal = unfit
            if refusal is not None and set(names.values()) <= tested:
                raise refusal

    def _names(self) -> dict[str, str]:
        """Return the names of the registered boards of the class by their address."""
        rows, _ = list_boards(self.spec.host, self.spec.port)
        mine = [row for row in rows if row.key == self.spec.key]
        return {row.address: row.facts.name if row.facts else row.address for row in mine}

    def _unfit(self, name: str, tested: set[str]) -> BoardError | None:
        """Return why the board of this name is not tried now; it is in `tested` then."""
        if self._only:
            if name == self._only:
                return None
            tested.add(name)
            return BoardLost(f"board {self._only} of class {self.spec.text} did not become free")
        held = self.health.of(self.board_id(name))
        if held is None or held.is_over:
            return None
        tested.add(name)
        wait = held.until - time.time()
        return BoardLost(
            f"board {name} is in quarantine for another {wait:.0f} s ({held.reason}); "
            f"`tvmstack board doctor {self.spec.text} --name {name}` tests it now"
        )

    def _connect(self, offer: Any, name: str) -> Facts:
        self.close()
        self._spent = {}
        self._runner = _Runner()
        self._opened = time.monotonic()
        message = {"do": "open", "host": offer.host, "port": offer.port, "match": offer.match}
        try:
            answer = self._runner.ask(
                {**message, "secret": self._secret, "longest_s": self.limits.longest_s}, self._stages
            )
        except _NoAnswerError as none:
            self.close()
            raise none.args[0](f"board {name} on {offer.address}: {none.args[1]}") from none
        self._count(answer["seconds"])
        if not answer["ok"]:
            self.close()
            raise KINDS.get(answer["kind"], BoardError)(answer["reason"])
        facts = facts_from(answer["facts"])
        self._same_class(facts)
        if self.health.returned(self.board_id(name)):
            _log.info("board %s passed its self-test and is back from quarantine", name)
        return facts

    def _same_class(self, facts: Facts) -> None:
        first = getattr(self, "_first", facts)
        if facts.device() == first.device():
            return
        self.close()
        raise BoardRefused(
            f"board {facts.name} ({facts.device().id}) is another device than {first.name} ({first.device().id}), "
            f"though both are of class {self.spec.key}: give it another key"
        )

    def _blame(self, name: str, err: BoardError) -> None:
        held = self.health.failed(self.board_id(name), str(err))
        _log.warning("board %s is in quarantine for %.0f s: %s", name, held.until - held.since, err)

    def _recover(self, kind: type[BoardError], what: str) -> BoardError:
        """After a session broke: find out whether the board is still there, and have an open one again.

        Returns:
            `kind` where the board came back, BoardLost where it did not, but another did.

        Raises:
            BoardLost: no board of the class is left.
        """
        before = self.facts.name
        self.close()
        try:
            self.facts = self._open(self.limits.recover_s)
        except NoTracker:
            raise
        except BoardError as err:
            self._blame(before, BoardLost(what))
            raise BoardLost(f"board {before} was lost ({what}), and no other is there: {err}") from err
        if self.facts.name == before:
            return kind(f"{what} (board {before} is still there)")
        if any(row.facts and row.facts.name == before for row in list_boards(self.spec.host, self.spec.port)[0]):
            return kind(f"{what} (board {before} is still there; {self.facts.name} goes on)")
        self._blame(before, BoardLost(what))
        return BoardLost(f"board {before} was lost ({what}); {self.facts.name} goes on")


def _store(feeds: Sequence[np.ndarray], folder: Path) -> Path:
    path = folder / "feeds.npz"
    arrays: dict[str, Any] = {f"i{index}": array for index, array in enumerate(feeds)}
    np.savez(path, **arrays)
    return path


def list_states(tracker: str | None) -> list[dict[str, Any]]:
    """Return the boards of a tracker as plain data; "state" is "free or busy", a refusal, or the quarantine's reason.

    Raises:
        BoardLost: there is no tracker.
    """
    host, port = address_from(tracker or DEFAULT_TRACKER)
    rows, _ = list_boards(host, port)
    held = Health().all()
    found = []
    for row in rows:
        facts = row.facts
        name = facts.name if facts else row.address
        quarantine = held.get(f"{name}@{host}:{port}")
        state = "in service" if facts else "not a server of ours"
        state = facts.refusal() if facts and facts.refusal() else state
        state = f"quarantine: {quarantine.reason}" if quarantine else state
        device = facts.device().to_json() if facts else {"arch": "", "mcpu": "", "cores": 0}
        words = {"arch": device["arch"], "mcpu": device["mcpu"], "cores": device["cores"], "state": state}
        found.append({"key": row.key, "name": name, "address": row.address, "tvm": facts.tvm if facts else "", **words})
    return found


def watch_boards(
    tracker: str | None, secret: str, every_s: float, rounds: int | None, say: Callable[[str], None]
) -> None:
    """Open every registered board once a round, which proves it: those that fail go into quarantine, others come back.

    A board that is busy is left alone; one that is lost is tried again when it registers.
    """
    host, port = address_from(tracker or DEFAULT_TRACKER)
    done = 0
    while rounds is None or done < rounds:
        time.sleep(every_s if done else 0.0)
        for row in list_states(tracker):
            limits = Limits(queue_s=_WATCH_QUEUE_S)
            try:
                Boards(BoardSpec(row["key"], host, port), secret, limits, only=row["name"]).close()
                say(f"{row['key']} {row['name']}: ok")
            except BoardError as err:
                say(f"{row['key']} {row['name']}: {err}")
        done += 1
