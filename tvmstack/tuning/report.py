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
        models: the names of the models tuned together; empty where it is one.
    """

    elapsed_s: float
    trials: int
    start_s: float
    best_s: float
    failed: int
    task: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskReport:
    """What one kernel gained.

    Attributes:
        name: the kernel.
        calls: how often an inference runs it, of several models all together.
        trials: candidates measured or refused in this run.
        start_s: seconds of a call by its default schedule, None where never measured.
        best_s: the same by its best schedule.
        note: why it got no more.
        share: its part of the time of an inference by the best schedules, of several models the largest; 0 where
            another algorithm of the same convolution is faster.
        known: candidates that the store already held.
        seeds: measured choices that came from neighbours in the store, like those of other shapes.
        failed: candidates of this run that failed.
        steps: (seconds since the run began, trials, best seconds) whenever the best changed, and at the end.
        models: calls by model, where several are tuned together.
    """

    name: str
    calls: int
    trials: int
    start_s: float | None
    best_s: float | None
    note: str = ""
    share: float = 0.0
    known: int = 0
    seeds: int = 0
    failed: int = 0
    steps: tuple[tuple[float, int, float], ...] = ()
    models: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TuningReport:
    """What a run did.

    Attributes:
        trials: candidates measured or refused.
        seconds: how long it took.
        tasks: a row for each kernel that can be tuned, also those that got no trials.
        failures: failed candidates by kind.
        stages: seconds by what they were spent on.
        models: seconds of the kernels of one inference by (default, best) schedules, where several models are tuned
            together.
    """

    trials: int
    seconds: float
    tasks: tuple[TaskReport, ...]
    failures: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False
    models: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)
