"""Where a search starts: choices that were good for a neighbour, moved to the nearest candidates of this kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tvmstack.core.kernel import Choice

__all__ = ["adapted"]


def adapted(near: Iterable[Choice], pool: Sequence[Choice], count: int) -> list[Choice]:
    """Return up to `count` different candidates, each the nearest in `pool` to a choice of a neighbour's.

    Choices of other templates, or with other decisions, are left out; traces of MetaSchedule's pass as they are. The
    distance is the sum over the decisions of the difference of their logarithms to base 2.
    """
    found: dict[str, Choice] = {}
    for choice in near:
        seed = choice if choice.template == "meta_schedule" else _nearest(choice, pool)
        if seed is not None:
            found.setdefault(seed.text, seed)
    return list(found.values())[:count]


def _nearest(choice: Choice, pool: Sequence[Choice]) -> Choice | None:
    same = [c for c in pool if c.template == choice.template and c.decisions.keys() == choice.decisions.keys()]
    return min(same, key=lambda c: (_distance(choice, c), c.text), default=None)


def _distance(one: Choice, other: Choice) -> float:
    pairs = ((float(v), float(other.decisions[k])) for k, v in one.decisions.items())
    return sum(abs(math.log2((a + 1) / (b + 1))) for a, b in pairs)
