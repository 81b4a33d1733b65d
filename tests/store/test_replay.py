"""Records from elsewhere are replayed before a build uses them, and quarantined with the reason where that fails."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.tuning.test_tuning import DEVICE, dense_kernel
from tvmstack import schedules
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.driver.steps import best_proven
from tvmstack.store import KeyContext, Record, open_store
from tvmstack.tuning import Outcome
from tvmstack.tuning.pool import Pool

pytestmark = pytest.mark.cpu
CONTEXT = KeyContext.current(DEVICE, "p")


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "store.db", shipped=False)
    yield opened
    opened.close()


def foreign(kernel, choice, median_s=1e-6, **changes):
    base = Record(kernel.workload, kernel.template, choice, median_s=median_s, when=1.0, proven=False, **CONTEXT.fields)
    return replace(base, **changes)


def good_choice(kernel):
    return Choice("dense", schedules.candidates(kernel.func, DEVICE)[0])


def best(store, kernel):
    return best_proven([kernel], DEVICE, CONTEXT, store)[kernel.workload]


def test_a_foreign_record_that_runs_is_used_and_replayed_only_once(store, monkeypatch):
    kernel = dense_kernel()
    store.add([foreign(kernel, good_choice(kernel))])
    assert best(store, kernel).choice == good_choice(kernel)
    monkeypatch.setattr("tvmstack.tuning.proof.Pool", None)
    assert best(store, kernel).proven


def test_a_record_that_does_not_apply_is_quarantined_and_the_next_best_used(store):
    kernel = dense_kernel()
    bad = Choice("dense", {"m": 4})
    store.add([foreign(kernel, bad), foreign(kernel, good_choice(kernel), 2e-6)])
    assert best(store, kernel).choice == good_choice(kernel)
    [held] = store.records(quarantined=True)
    assert held.choice == bad
    assert held.quarantine
    assert "quarantined" in next(r.status for r in store.trials(kernel, CONTEXT) if r.choice == bad)


def test_a_record_that_crashes_the_process_is_quarantined_with_the_signal(store, monkeypatch):
    kernel, run = dense_kernel(), Pool.run

    def crash(pool, kernel, slot, is_default):
        if not is_default:
            pool._workers[pool._at(kernel)]._process.kill()
        return run(pool, kernel, slot, is_default)

    monkeypatch.setattr(Pool, "run", crash)
    store.add([foreign(kernel, good_choice(kernel))])
    assert best(store, kernel) is None
    assert "crash (signal 9)" in store.records(quarantined=True)[0].quarantine
    assert store.explain(kernel, CONTEXT).reason.startswith("quarantined: run: crash")


def test_a_record_whose_values_are_wrong_is_quarantined(store, monkeypatch):
    kernel, run = dense_kernel(), Pool.run

    def lie(pool, kernel, slot, is_default):
        if not is_default:
            raise TuningError("ValueError: wrong values: off by 3, largest value 2")
        return run(pool, kernel, slot, is_default)

    monkeypatch.setattr(Pool, "run", lie)
    store.add([foreign(kernel, good_choice(kernel))])
    assert best(store, kernel) is None
    assert "wrong values" in store.records(quarantined=True)[0].quarantine


def test_a_failing_default_says_nothing_of_the_record(store, monkeypatch):
    kernel = dense_kernel()
    tried = []

    def undecided(jobs, device, boards):
        tried.append(len(jobs))
        return [Outcome(kernel, "the default failed", is_open=True)]

    monkeypatch.setattr("tvmstack.tuning.replay", undecided)
    store.add([foreign(kernel, good_choice(kernel))])
    assert best(store, kernel) is None
    assert tried == [1]
    assert not store.records(quarantined=True)


def test_measuring_a_quarantined_choice_again_takes_it_out(store):
    kernel = dense_kernel()
    record = foreign(kernel, good_choice(kernel))
    store.add([record])
    store.quarantine(store.records()[0], "run: crash")
    assert store.best(kernel, CONTEXT) is None
    store.add([replace(record, proven=True, when=2.0)])
    assert store.best(kernel, CONTEXT).proven


def test_looking_up_sixty_proven_records_costs_next_to_nothing(store):
    kernels = [replace(dense_kernel(), name=f"k{i}", workload=f"work {i}") for i in range(60)]
    store.add([foreign(k, good_choice(k), proven=True) for k in kernels])
    start = time.perf_counter()
    assert len(best_proven(kernels, DEVICE, CONTEXT, store)) == 60
    assert time.perf_counter() - start < 1.0
