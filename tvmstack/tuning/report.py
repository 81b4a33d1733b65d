"""What a tuning run tells while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Progress", "TaskReport", "TuningReport"]


@dataclass(frozen=True)
class Progress:
    """The state of a run.

    Attributes:
        elapsed_s: since it began.
        trials: candidates measured or refused in this run.
        start_s: seconds of all kernels of one inference by their default schedules, as far as measured.
        best_s: the same by the best schedules found.
        failed: candidates that failed.
        task: the kernel at work.
    """

    elapsed_s: float
    trials: int
    start_s: float
    best_s: float
    failed: int
    task: str


@dataclass(frozen=True)
class TaskReport:
    """What one kernel gained: seconds of a call by its default and by its best schedule, None where never measured.

    `seeds` counts the measured choices that came from neighbours in the store.
    """

    name: str
    calls: int
    trials: int
    start_s: float | None
    best_s: float | None
    note: str = ""
    seeds: int = 0


@dataclass(frozen=True)
class TuningReport:
    """What a run did: trials, seconds, failures by kind, the seconds each stage took, a row for each task."""

    trials: int
    seconds: float
    tasks: tuple[TaskReport, ...]
    failures: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)
