"""Boards in the flow: whose device a build is for, and where an artifact is run."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.core.errors import BoardError, UsageError

if TYPE_CHECKING:
    from tvmstack.board.watch import Boards
    from tvmstack.core.device import Device
    from tvmstack.measure.bench import BenchReport
    from tvmstack.partition import Plan

__all__ = [
    "board_device",
    "board_states",
    "opened_artifact",
    "opened_boards",
    "refuse_regions",
    "runs_here",
    "time_on_board",
]


_PIECE_S = 5.0


@contextlib.contextmanager
def opened_boards(board: str | None) -> Iterator[Boards | None]:
    """Give the boards of "KEY[@TRACKER]"; None where no board is named.

    One is taken at once, to learn its device, and given back: it is ours again only while something runs there.

    Raises:
        UsageError, BoardError: the text names no board, or none is there and fit.
    """
    if board is None:
        yield None
        return
    from tvmstack.board.tracker import board_from_text, read_secret
    from tvmstack.board.watch import Boards

    with Boards(board_from_text(board), read_secret()) as boards:
        boards.close()
        yield boards


def board_device(boards: Boards | None, device: str | Device | None) -> str | Device | None:
    """Return the device to build for: the board's own, which leaves nothing to choose."""
    if boards is None:
        return device
    if device is not None:
        raise UsageError("--board already says which device to build for: leave --device out")
    return boards.facts.device()


def board_states(boards: Boards | None) -> list[dict[str, Any]]:
    """Return the health of the boards of a class as plain data; none where no board is used."""
    if boards is None:
        return []
    from tvmstack.board.watch import list_states

    try:
        rows = list_states(f"{boards.spec.host}:{boards.spec.port}")
    except BoardError as err:
        return [{"key": boards.spec.key, "name": "", "state": str(err)}]
    return [row for row in rows if row["key"] == boards.spec.key]


def runs_here(device: Device) -> bool:
    """Whether code for a device can be run by this process."""
    return device.arch == platform.machine()


def refuse_regions(boards: Boards | None, plan: Plan) -> None:
    """Refuse, before any tuning, a model that a board could not run.

    Raises:
        UsageError: onnxruntime would have to run some of its nodes.
    """
    if boards is not None and plan.regions:
        nodes = [name for region in plan.regions for name in region.nodes]
        raise UsageError(
            f"board {boards.facts.name} has no onnxruntime, which would run {len(nodes)} node(s) of this model "
            f"({', '.join(nodes[:3])}): `tvmstack scan` says why"
        )


@contextlib.contextmanager
def opened_artifact(path: Path, threads: int | None, boards: Boards | None) -> Iterator[Any]:
    """Give a session of an artifact, here or on a board."""
    if boards is None:
        from tvmstack.runtime import load

        with load(path, threads=threads) as session:
            yield session
    else:
        from tvmstack.board.remote import RemoteSession

        with RemoteSession(boards, path) as remote:
            yield remote


def time_on_board(
    path: Path, boards: Boards, inputs: dict[str, np.ndarray], rounds: int, seconds: float
) -> BenchReport:
    """Return an artifact's times on a board, by its own clock; there are no peers there to compare with."""
    from tvmstack.measure.bench import BenchReport, PeerResult
    from tvmstack.measure.stats import summarise

    with opened_artifact(path, None, boards) as session:
        once = min(session.time(inputs, 3))
        turns = [_turn(session, inputs, seconds, once) for _ in range(rounds)]
        facts = boards.facts
    every = [t for turn in turns for t in turn]
    ours = PeerResult(
        f"tvmstack on {facts.name}", "", summarise(every), tuple(float(np.median(turn)) for turn in turns), 0
    )
    return BenchReport((ours,), facts.cores, facts.device().id)


def _turn(session: Any, inputs: dict[str, np.ndarray], seconds: float, once: float) -> list[float]:
    """Time runs for about so long, a few seconds at a time, so that the board's watchdog sees progress."""
    left = max(3, round(seconds / once))
    most = max(1, round(_PIECE_S / once))
    times: list[float] = []
    while left > 0:
        times += session.time(inputs, min(left, most))
        left -= most
    return times
