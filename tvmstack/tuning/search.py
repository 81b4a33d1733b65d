"""Which candidates to try next: neighbours of what is good, a cost model's favourites, and a few at random."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvmstack.core.kernel import Choice, Kernel
from tvmstack.tuning.model import CostModel

__all__ = ["Search"]

_RANDOM_SHARE = 0.15
# Rounds without a gain after which a kernel is done, unless little of its space has been seen.
_PATIENCE = 3


@dataclass
class Search:
    """The search over one kernel's decisions.

    Attributes:
        kernel: what is tuned.
        default: the choice of an untuned build; always measured first.
        pool: the other candidates.
        model: what predicts their times; shared by the searches of a run.
        times: median seconds of each choice measured, infinite where it failed, by the choice's text.
        stale: rounds since the best last improved.
    """

    kernel: Kernel
    default: Choice
    pool: list[Choice]
    model: CostModel = field(default_factory=CostModel)
    seeds: list[Choice] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return len(self.pool)

    @property
    def best(self) -> tuple[str, float] | None:
        """Text and seconds of the best choice measured."""
        good = {k: t for k, t in self.times.items() if math.isfinite(t)}
        return min(good.items(), key=lambda item: item[1]) if good else None

    @property
    def start_s(self) -> float | None:
        """Seconds of the default."""
        return self.times.get(self.default.text)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to try or to hope for."""
        return not self._left() or (self.stale >= _PATIENCE and len(self.times) >= min(24, len(self.pool)))

    def _left(self) -> list[Choice]:
        return [c for c in self.pool if c.text not in self.times]

    def propose(self, count: int) -> list[Choice]:
        """Return up to `count` choices not measured yet."""
        ranked = self.model.rank(self.kernel.template, self.kernel.workload, self._left())
        if self.default.text not in self.times:
            near = self._near(self.default, count // 2)
            return _distinct([self.default, *self.seeds, *ranked[:count], *near, *self._some(count)], self.times, count)
        best = self.best
        near = self._near(_choice(best[0], self.pool, self.default), count // 2) if best else []
        lucky = self._some(max(1, round(count * _RANDOM_SHARE)))
        wanted = [*self.seeds, *near[: count // 3], *lucky, *ranked, *near, *self._some(count)]
        return _distinct(wanted, self.times, count)

    def learn(self, measured: Mapping[str, float]) -> None:
        """Take in a round's results."""
        known = {c.text: c for c in [self.default, *self.pool]}
        rows = [(known[text], seconds) for text, seconds in measured.items() if text in known]
        self.model.learn(self.kernel.template, self.kernel.workload, rows)
        before = self.best
        self.times.update(measured)
        after = self.best
        improved = after is not None and (before is None or after[1] < before[1] * 0.99)
        self.stale = 0 if improved else self.stale + 1

    def _some(self, count: int) -> list[Choice]:
        left = self._left()
        return self.rng.sample(left, min(count, len(left)))

    def _near(self, centre: Choice, count: int) -> list[Choice]:
        """Return the candidates that differ from `centre` in the fewest decisions, by small steps first."""

        def distance(choice: Choice) -> tuple[int, float]:
            pairs = [(float(choice.decisions[k]), float(v)) for k, v in centre.decisions.items()]
            return sum(a != b for a, b in pairs), sum(abs(math.log2((a + 1) / (b + 1))) for a, b in pairs)

        return sorted((c for c in self._left() if c.decisions.keys() == centre.decisions.keys()), key=distance)[:count]


def _choice(text: str, pool: Iterable[Choice], default: Choice) -> Choice:
    return next((c for c in pool if c.text == text), default)


def _distinct(choices: Iterable[Choice], seen: Mapping[str, Any], count: int) -> list[Choice]:
    found: dict[str, Choice] = {}
    for choice in choices:
        if len(found) >= count:
            break
        if choice.text not in seen and choice.text not in found:
            found[choice.text] = choice
    return list(found.values())
