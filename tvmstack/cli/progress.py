"""What a person sees while kernels are tuned: a live line on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tvmstack.report.words import duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["progress_line", "tuning_display"]

_PLAIN_EVERY_S = 10.0


@contextlib.contextmanager
def tuning_display(seconds: float | None, trials: int | None) -> Iterator[Callable[[Any], None] | None]:
    """Give a function that shows a tuning `Progress`; None where nothing will be tuned or --quiet is on."""
    if (seconds is None and trials is None) or not logging.getLogger("tvmstack").isEnabledFor(logging.INFO):
        yield None
    elif sys.stderr.isatty():
        with _live(seconds, trials) as show:
            yield show
    else:
        yield _Plain()


def progress_line(state: Any) -> str:
    """Return one line: trials, best and expected time of the whole model, and where the time goes now."""
    models = getattr(state, "models", ())
    words = [f"fleet of {len(models)}"] if models else []
    words += [f"{state.trials} trials", f"kernels {duration(state.best_s)}"]
    if state.start_s > 0 and state.best_s > 0:
        words.append(f"{state.start_s / state.best_s:.2f}x faster than the start")
    if state.failed:
        words.append(f"{state.failed} refused")
    if state.task:
        words.append(f"now {state.task}")
    return ", ".join(words)


class _Plain:
    """Plain lines, one every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, state: Any) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_EVERY_S
            sys.stderr.write(f"tuning {duration(state.elapsed_s)}: {progress_line(state)}\n")


@contextlib.contextmanager
def _live(seconds: float | None, trials: int | None) -> Iterator[Callable[[Any], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        "tuning",
        BarColumn(24),
        TimeElapsedColumn(),
        "left",
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds or trials)
        yield lambda state: _advance(bar, task, state, seconds)


def _advance(bar: Bar, task: TaskID, state: Any, seconds: float | None) -> None:
    bar.update(task, completed=state.elapsed_s if seconds else state.trials, description=progress_line(state))
