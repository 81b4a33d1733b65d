"""How soon the search finds what an exhaustive one finds: python -m benchmarks.search_curve MODEL [--kernels N].

Every candidate of the costliest kernels of a model is measured once; then the search runs on that table as it would
run on the machine, from many random states. Prints for each kernel the best time after 8, 16, 32, 64 trials as a share
of the best of all: 0.95 means 5% slower. The cost model starts untaught, or taught by other kernels (`carried over`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from tvmstack import schedules
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.driver.steps import prepare
from tvmstack.tuning.model import CostModel
from tvmstack.tuning.pool import Pool, WorkerLost
from tvmstack.tuning.search import Search

_COUNTS, _STATES, _BATCH = (8, 16, 32, 64), 10, 8
Table = Mapping[str, tuple[Choice, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kernels", type=int, default=4)
    parser.add_argument("--most", type=int, default=1000, help="candidates measured of a kernel, drawn at random")
    options = parser.parse_args()
    prepared = prepare(options.model, None, None, (), None)
    tunable = [k for k in prepared.lowered.kernels if len(schedules.candidates(k.func, prepared.device)) > 64]
    chosen = sorted(tunable, key=lambda k: -k.flops * k.calls)[: options.kernels]
    pool = Pool(prepared.device)
    try:
        tables = {k.name: _measured(k, pool, prepared.device, options.most) for k in chosen}
    finally:
        pool.close()
    rows = []
    for kernel in chosen:
        alone = _curve(kernel, tables[kernel.name], CostModel)
        others = [(k, tables[k.name]) for k in chosen if k is not kernel]
        rows.append(
            {
                "kernel": kernel.name,
                "candidates": len(tables[kernel.name]),
                "best_us": 1e6 * min(t for _, t in tables[kernel.name].values()),
                "untaught": alone,
                "carried over": _curve(kernel, tables[kernel.name], lambda o=others: _taught(o)),
            }
        )
    json.dump(rows, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _measured(kernel: Kernel, pool: Pool, device: object, most: int) -> Table:
    """Return the seconds of the default and of every candidate that can be built, or of `most` of them."""
    default = schedules.default_choice(kernel.func, device)
    choices = [Choice(kernel.template, d) for d in schedules.candidates(kernel.func, device)]
    random.Random(0).shuffle(choices)
    choices = [default, *(c for c in choices[:most] if c != default)]
    table = {}
    for start in range(0, len(choices), _BATCH):
        slots = dict(enumerate(choices[start : start + _BATCH], start))
        failed = pool.build(kernel, slots)
        for slot, choice in slots.items():
            if slot in failed:
                continue
            try:
                table[choice.text] = (choice, float(np.median(pool.run(kernel, slot, slot == 0))))
            except (TuningError, WorkerLost) as err:
                print(f"{kernel.name} {choice.text}: {err}", file=sys.stderr)
    return table


def _curve(kernel: Kernel, table: Table, model: object) -> dict[str, float]:
    """Return the median over random states of the best share after each count of trials."""
    best = min(seconds for _, seconds in table.values())
    found: dict[int, list[float]] = {count: [] for count in _COUNTS}
    for state in range(_STATES):
        default, *rest = [choice for choice, _ in table.values()]
        search = Search(kernel, default, rest, model(), rng=random.Random(state))  # type: ignore[operator]
        while len(search.times) < max(_COUNTS):
            proposed = search.propose(_BATCH)
            if not proposed:
                break
            search.learn({c.text: table[c.text][1] for c in proposed})
            for count in _COUNTS:
                if len(search.times) == count:
                    found[count].append(best / (search.best or ("", math.inf))[1])
    return {str(count): round(float(np.median(shares)), 3) for count, shares in found.items() if shares}


def _taught(others: Sequence[tuple[Kernel, Table]]) -> CostModel:
    model = CostModel()
    for kernel, table in others:
        some = random.Random(1).sample(list(table.values()), min(32, len(table)))
        model.learn(kernel.template, kernel.workload, some)
    return model


if __name__ == "__main__":
    sys.exit(main())
