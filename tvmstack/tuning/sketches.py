"""The search for kernels without a template: MetaSchedule's own sketches and evolution, one batch at a time.

Its candidates are traces; a worker replays them like any other choice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from tvmstack._tvm import evolutionary_search, plain_trace, runner_result
from tvmstack.core.device import Device
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.tuning.search import Search

__all__ = ["Sketches"]

_log = logging.getLogger(__name__)
_TRIALS = 256


class Sketches(Search):
    """A `Search` whose candidates come from MetaSchedule instead of a table of decisions."""

    def __init__(self, kernel: Kernel, default: Choice, device: Device) -> None:
        super().__init__(kernel, default, [])
        self._device = device
        self._context: Any = None
        self._given: dict[str, Any] = {}
        self._exhausted = False

    @property
    def size(self) -> int:
        """About how many candidates there are."""
        return _TRIALS

    @property
    def is_done(self) -> bool:
        """Whether the search has nothing more or has gained nothing for some batches."""
        return self._exhausted or self.stale >= 3

    def propose(self, count: int) -> list[Choice]:
        """Return the default and the seeds first, then a batch of traces."""
        if self.default.text not in self.times:
            return [self.default, *self.seeds][:count]
        try:
            if self._context is None:
                self._context = evolutionary_search(self.kernel.func, self._device.target(), _TRIALS, count)
            candidates = self._context.generate_measure_candidates() or []
        except (RuntimeError, ValueError, TypeError) as err:
            _log.info("no sketches for %s: %s", self.kernel.name, str(err).strip().splitlines()[-1])
            candidates = []
        self._exhausted = not candidates
        choices = []
        for candidate in candidates:
            choice = Choice("meta_schedule", {"trace": plain_trace(candidate.sch.trace)})
            if choice.text not in self.times:
                self._given[choice.text] = candidate
                choices.append(choice)
        return choices

    def learn(self, measured: Mapping[str, float]) -> None:
        """Take in a batch's results and hand them to the evolution."""
        super().learn(measured)
        known = {text: self._given.pop(text) for text in measured if text in self._given}
        if known and self._context is not None:
            results = [runner_result(measured[t] if math.isfinite(measured[t]) else None) for t in known]
            self._context.notify_runner_results(list(known.values()), results)
