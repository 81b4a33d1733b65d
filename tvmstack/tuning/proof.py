"""Choices from elsewhere are built and run in worker processes, beside the default, before a build may use them."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmstack import schedules
from tvmstack.board.watch import Boards
from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.tuning.board_pool import BoardPool
from tvmstack.tuning.pool import MachineChanged, Pool, WorkerLost

__all__ = ["Outcome", "replay"]

_DEFAULT, _CHOICE = 0, 1


@dataclass(frozen=True)
class Outcome:
    """What replaying a choice gave.

    Attributes:
        kernel: whose choice it is.
        failure: why it must not be used; empty where it built, ran and gave the default's values.
        is_open: whether nothing can be said of the choice, since the default itself failed.
    """

    kernel: Kernel
    failure: str = ""
    is_open: bool = False


def replay(jobs: Sequence[tuple[Kernel, Choice]], device: Device, boards: Boards | None = None) -> Iterator[Outcome]:
    """Yield for each kernel whether its choice can be used on this machine, or on a board.

    A crash or a hang costs a worker process, not this one. Kernels are built as many at a time as there are workers.
    """
    if not jobs:
        return
    if boards is None and device.arch != platform.machine():
        yield from (Outcome(kernel, f"this machine cannot run {device.arch} code", is_open=True) for kernel, _ in jobs)
        return
    pool = BoardPool(device, boards) if boards is not None else Pool(device)
    try:
        for start in range(0, len(jobs), device.cores):
            yield from _some(pool, jobs[start : start + device.cores], device)
    finally:
        pool.close()


def _some(pool: Pool, jobs: Sequence[tuple[Kernel, Choice]], device: Device) -> Iterator[Outcome]:
    wanted = [(kernel, _slots(kernel, choice, device)) for kernel, choice in jobs]
    failures = pool.build_all(wanted)
    for kernel, slots in wanted:
        failed = failures[kernel.name]
        if not failed and not all(pool.holds(kernel, slot) for slot in slots):
            failed = pool.build(kernel, slots)
        yield _run(pool, kernel, slots, failed)


def _slots(kernel: Kernel, choice: Choice, device: Device) -> dict[int, Choice]:
    default = schedules.default_choice(kernel.func, device)
    return {_DEFAULT: default} if choice == default else {_DEFAULT: default, _CHOICE: choice}


def _run(pool: Pool, kernel: Kernel, slots: dict[int, Choice], failed: dict[int, str]) -> Outcome:
    if _DEFAULT in failed:
        return Outcome(kernel, f"the default failed: {failed[_DEFAULT]}", is_open=True)
    if _CHOICE in failed:
        return Outcome(kernel, failed[_CHOICE])
    for slot in slots:
        try:
            pool.run(kernel, slot, is_default=slot == _DEFAULT)
        except MachineChanged as err:
            return Outcome(kernel, str(err), is_open=True)
        except (WorkerLost, TuningError) as err:
            reason = f"run: {err}" if isinstance(err, WorkerLost) else str(err)
            return Outcome(kernel, reason, is_open=slot == _DEFAULT)
    return Outcome(kernel)
