"""A small kernel with a known answer: does a board run code built for what it says it is, and how evenly?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack import schedules
from tvmstack._tvm import export_library, te, tvm
from tvmstack.board.errors import BadCandidate, BoardRefused
from tvmstack.board.session import BoardSession
from tvmstack.core.device import Device
from tvmstack.core.toolchain import cross_compiler

__all__ = ["Drift", "Probe", "measure_drift"]

_SIZE = 64
_TOLERANCE = 1e-4


class Probe:
    """A product of two 64 x 64 matrices, built for the board's device and loaded there.

    Raises:
        BoardRefused: the board cannot load it, or computes something else.
    """

    def __init__(self, session: BoardSession, folder: Path) -> None:
        path = folder / "probe.so"
        _build(session.facts.device(), path)
        rng = np.random.default_rng(0)
        x, y = (rng.standard_normal((_SIZE, _SIZE)).astype("float32") for _ in range(2))
        self._session, self._expected = session, x @ y
        self._arrays = [session.tensor(a) for a in (x, y, np.zeros_like(x))]
        name = session.facts.name
        try:
            self._module = session.load(path, path.name)
            session.call(self._module["probe"], *self._arrays)
        except BadCandidate as err:
            raise BoardRefused(
                f"board {name} says it is {session.facts.arch}, but does not run such code: {err}"
            ) from err
        gap = float(np.abs(self._arrays[-1].numpy() - self._expected).max())
        if not gap <= _TOLERANCE * _SIZE:
            raise BoardRefused(f"board {name} computes wrong values: a product of known matrices is off by {gap:.2g}")

    def times(self, repeats: int) -> list[float]:
        """Return the seconds of `repeats` runs, each averaged over at least 2 ms, by the board's clock."""
        timer = self._session.timer(self._module, "probe", repeats, 2)
        return [float(t) for t in self._session.call(timer, *self._arrays).results]


def _build(device: Device, path: Path) -> None:
    x, y = (te.placeholder((_SIZE, _SIZE), name=name) for name in "xy")
    k = te.reduce_axis((0, _SIZE), name="k")
    product = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="product")
    func = te.create_prim_func([x, y, product]).with_attr("global_symbol", "probe")
    scheduled = schedules.apply(func, schedules.default_choice(func, device), device)
    library: Any = tvm.compile(scheduled, target=tvm.target.Target(device.target()))
    export_library(library, str(path), cross_compiler(device.arch))


@dataclass(frozen=True)
class Drift:
    """How a board's clock runs beside ours.

    Attributes:
        share: how much faster it runs, as a share of the time that passed.
        unsure: the part of `share` that the round trips alone could explain.
        offset_s: how far its wall clock is ahead of ours.
        round_trip_s: the shortest question and answer.
    """

    share: float
    unsure: float
    offset_s: float
    round_trip_s: float


def measure_drift(session: BoardSession, seconds: float) -> Drift:
    """Compare the clocks over an interval."""
    first = _best_reading(session)
    time.sleep(seconds)
    last = _best_reading(session)
    passed = last[0] - first[0]
    share = (last[1] - first[1]) / passed - 1.0
    trip = min(first[3], last[3])
    return Drift(share, (first[3] + last[3]) / 2 / passed, last[2], trip)


def _best_reading(session: BoardSession) -> Sequence[float]:
    """Return (our clock, its clock, how far its wall clock is ahead, round trip) of the quickest of some questions."""
    readings = []
    for _ in range(5):
        start, wall = time.monotonic(), time.time()
        facts = session.ask_facts()
        trip = time.monotonic() - start
        readings.append((start + trip / 2, facts.monotonic_s, facts.time_s - wall - trip / 2, trip))
    return min(readings, key=lambda r: r[3])
