"""Which candidates to try next: neighbours of what is good, a cost model's favourites, and a few at random."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmstack.core.kernel import Choice, Kernel

__all__ = ["Search"]

_ENOUGH_TO_LEARN = 12
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
        times: median seconds of each choice measured, infinite where it failed, by the choice's text.
        stale: rounds since the best last improved.
    """

    kernel: Kernel
    default: Choice
    pool: list[Choice]
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
        if self.default.text not in self.times:
            first = [self.default, *self._near(self.default, count // 2)]
            return _distinct([*first[:1], *self.seeds, *first[1:], *self._some(count)], self.times, count)
        ranked = self._by_model() if len(self.times) >= _ENOUGH_TO_LEARN else []
        best = self.best
        near = self._near(_choice(best[0], self.pool, self.default), count // 2) if best else []
        lucky = self._some(max(1, round(count * _RANDOM_SHARE)))
        wanted = [*self.seeds, *near[: count // 3], *lucky, *ranked, *near, *self._some(count)]
        return _distinct(wanted, self.times, count)

    def learn(self, measured: Mapping[str, float]) -> None:
        """Take in a round's results."""
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

    def _by_model(self) -> list[Choice]:
        """Rank what is left by a regression of log time on the decisions (gradient-boosted trees)."""
        import xgboost

        known = {c.text: c for c in [self.default, *self.pool]}
        seen = [(known[t], s) for t, s in self.times.items() if t in known and math.isfinite(s)]
        left = self._left()
        if len(seen) < _ENOUGH_TO_LEARN or not left:
            return []
        data = xgboost.DMatrix(_features([c for c, _ in seen]), label=np.log([s for _, s in seen]))
        model = xgboost.train({"max_depth": 4, "eta": 0.25, "nthread": 1, "verbosity": 0}, data, num_boost_round=40)
        scores = model.predict(xgboost.DMatrix(_features(left)))
        return [left[i] for i in np.argsort(scores)]


def _features(choices: Sequence[Choice]) -> np.ndarray:
    """Return the decisions, their logarithms and the products of the tile's sides."""
    names = sorted(choices[0].decisions)
    rows = np.array([[float(c.decisions.get(n, 0)) for n in names] for c in choices])
    tile = [i for i, n in enumerate(names) if n in ("oh", "ow", "oc", "m", "n")]
    area = rows[:, tile].prod(axis=1, keepdims=True) if tile else np.ones((len(rows), 1))
    return np.hstack([rows, np.log2(rows + 1), area])


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
