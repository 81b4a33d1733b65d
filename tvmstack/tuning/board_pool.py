"""Workers for a board: candidates are built here, in parallel, and run there, one at a time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.board.errors import BadCandidate, BoardCrash, BoardLost, BoardTimeout
from tvmstack.board.watch import Boards
from tvmstack.core.device import Device, physical_cores
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.tuning.pool import MachineChanged, Pool, WorkerLost

__all__ = ["BoardPool"]

# Weights from this size on come from memory in a model, so the board's caches are emptied before each run.
_COLD_BYTES = 1 << 16


class BoardPool(Pool):
    """A `Pool` whose workers only build; what they link is measured on a board, not always the same one."""

    def __init__(self, device: Device, boards: Boards) -> None:
        super().__init__(device, physical_cores())
        self._boards = boards
        self._folder = tempfile.TemporaryDirectory(prefix="tvmstack-candidates-")
        self._there: set[str] = set()
        self._referenced: set[str] = set()

    def close(self) -> None:
        """End all workers; the boards stay their owner's."""
        super().close()
        self._folder.cleanup()

    def run(self, kernel: Kernel, slot: int, is_default: bool, limit_s: float | None = None) -> list[float]:
        """Run a built candidate on a board; see `Pool.run`.

        Raises:
            MachineChanged: the board was lost, another of its class is there and knows no kernel yet.
            BoardLost: the last board was lost.
        """
        start = time.monotonic()
        try:
            return self._measure(kernel, slot, is_default, limit_s)
        except BadCandidate as err:
            raise TuningError(str(err)) from err
        except (BoardTimeout, BoardCrash) as err:
            self._forget()
            raise WorkerLost(str(err)) from err
        except BoardLost as err:
            self._forget()
            if not self._boards.is_open:
                raise
            raise MachineChanged(str(err)) from err
        finally:
            self.seconds["run"] += time.monotonic() - start
            self.seconds.update({f"board {stage}": spent for stage, spent in self._boards.seconds.items()})

    def has_reference(self, kernel: Kernel) -> bool:
        """Whether the board in use has run the kernel's default."""
        return kernel.name in self._referenced

    def _measure(self, kernel: Kernel, slot: int, is_default: bool, limit_s: float | None) -> list[float]:
        if kernel.name not in self._there:
            assert kernel.func is not None
            shapes = [([int(d) for d in p.ty.shape], str(p.ty.dtype)) for p in kernel.func.params]
            sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes]
            self._boards.kernel(kernel.name, shapes, is_cold=sum(sizes[i] for i in kernel.weights) >= _COLD_BYTES)
            self._there.add(kernel.name)
        times = self._boards.measure(kernel.name, self._library(kernel, slot), is_default, limit_s)
        if is_default:
            self._referenced.add(kernel.name)
        return times

    def _forget(self) -> None:
        self._there.clear()
        self._referenced.clear()

    def _library(self, kernel: Kernel, slot: int) -> Path:
        return Path(self._folder.name) / f"{kernel.name}-{slot}.so"

    def _build_message(self, kernel: Kernel, slot: int, choice: Choice) -> dict[str, Any]:
        return {**super()._build_message(kernel, slot, choice), "library": str(self._library(kernel, slot))}
