"""Tuning: search with known times, and real workers on a small kernel, one that crashes and one that lies."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import replace

import numpy as np
import pytest

from tvmstack import schedules
from tvmstack._tvm import te, topi
from tvmstack.core.device import detect_device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel, site_kernel
from tvmstack.lower import kernels
from tvmstack.lower.pipeline import workload_text
from tvmstack.store import KeyContext, open_store
from tvmstack.tuning import tune
from tvmstack.tuning.model import DECISIONS, CostModel
from tvmstack.tuning.pool import BUILD_S, Pool, WorkerLost, _Process
from tvmstack.tuning.search import Search

DEVICE = detect_device()


def dense_kernel(rows=24, name="kernel"):
    x, w = te.placeholder((rows, 64), name="x"), te.placeholder((8, 64, 16), name="w")
    func = te.create_prim_func([x, w, kernels.dense(x, w, 128)]).with_attr("global_symbol", name)
    return Kernel(name, func, workload_text(func), 2, 2.0 * rows * 64 * 128, 1.0, "dense")


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "store.db", shipped=False)
    yield opened
    opened.close()


def fake_search(size=200):
    pool = [Choice("dense", {"m": m, "n": n}) for m in range(1, size // 10 + 1) for n in range(1, 11)]
    return Search(dense_kernel(), pool[0], pool)


def fake_time(choice):
    return 1.0 + abs(choice.decisions["m"] - 13) * 0.05 + abs(choice.decisions["n"] - 7) * 0.07


@pytest.mark.null
def test_the_default_is_measured_first_and_nothing_twice():
    search, seen = fake_search(), []
    for _ in range(8):
        choices = search.propose(6)
        seen += [c.text for c in choices]
        search.learn({c.text: fake_time(c) for c in choices})
    assert seen[0] == search.default.text
    assert len(seen) == len(set(seen)) == 48


@pytest.mark.null
def test_a_quarter_of_the_space_finds_nearly_the_best():
    search = fake_search()
    for _ in range(8):
        choices = search.propose(6)
        search.learn({c.text: fake_time(c) for c in choices})
    best = min(fake_time(c) for c in search.pool)
    assert search.best[1] <= best * 1.05


@pytest.mark.null
def test_no_more_is_proposed_than_asked_for():
    assert fake_search().propose(0) == []
    assert len(fake_search().propose(3)) == 3


@pytest.mark.null
def test_a_search_without_gain_ends_and_an_exhausted_one_too():
    search = fake_search(40)
    while not search.is_done:
        choices = search.propose(8)
        search.learn({c.text: 1.0 for c in choices})
    assert len(search.times) <= len(search.pool)
    assert search.is_done


@pytest.mark.null
def test_failed_choices_are_never_the_best_and_never_proposed_again():
    search = fake_search(20)
    first = search.propose(4)
    search.learn({c.text: math.inf for c in first})
    assert search.best is None
    assert not {c.text for c in search.propose(10)} & {c.text for c in first}


@pytest.mark.cpu
def test_trials_are_measured_checked_and_stored_and_a_second_run_goes_on(store):
    kernel = dense_kernel()
    states = []
    report = tune([kernel], DEVICE, "p", store, trials=10, progress=states.append)
    context = KeyContext.current(DEVICE, "p")
    records = store.trials(kernel, context)
    assert report.trials == len({r.choice.text for r in records}) == 10
    assert any(r.is_default for r in records)
    assert store.best(kernel, context).median_s <= next(r for r in records if r.is_default).median_s
    assert states[-1].trials == 10
    before = {r.choice.text for r in records}
    tune([kernel], DEVICE, "p", store, trials=6)
    after = {r.choice.text for r in store.trials(kernel, context)}
    assert before < after
    assert len(after) == 16


@pytest.mark.cpu
def test_kernels_of_one_workload_are_one_task(store):
    twice = [dense_kernel(name="first"), dense_kernel(name="second")]
    report = tune(twice, DEVICE, "p", store, trials=3)
    assert len(report.tasks) == 1
    assert report.tasks[0].calls == 4


@pytest.mark.cpu
def test_a_candidate_that_cannot_be_built_fails_alone():
    kernel, pool = dense_kernel(), Pool(DEVICE, 1)
    try:
        good = schedules.default_choice(kernel.func, DEVICE)
        failures = pool.build(kernel, {0: good, 1: Choice("dense", {"m": 7, "n": 1, "order": 0, "unroll": "x"})})
        assert set(failures) == {1}
        assert len(pool.run(kernel, 0, True)) >= 3
    finally:
        pool.close()


@pytest.mark.cpu
def test_a_crashed_worker_is_replaced_and_says_so():
    kernel, pool = dense_kernel(), Pool(DEVICE, 1)
    try:
        good = schedules.default_choice(kernel.func, DEVICE)
        assert not pool.build(kernel, {0: good})
        os.kill(pool._workers[0]._process.pid, 9)
        with pytest.raises(WorkerLost, match="crash"):
            pool.run(kernel, 0, True)
        assert not pool.knows(kernel)
        assert not pool.build(kernel, {0: good})
        assert pool.run(kernel, 0, True)
    finally:
        pool.close()


@pytest.mark.cpu
def test_wrong_values_are_refused(monkeypatch):
    from tvmstack.tuning import worker

    kernel = worker._Kernel(dense_kernel().func, DEVICE)
    default = schedules.default_choice(kernel.func, DEVICE)
    kernel.build(default.to_json(), 0)
    kernel.run(0, True)
    kernel.build(default.to_json(), 1)
    kernel.expected = kernel.expected + np.float32(0.5)
    with pytest.raises(ValueError, match="wrong values"):
        kernel.run(1, False)


@pytest.mark.cpu
def test_a_second_run_compares_values_as_well(store, monkeypatch):
    kernel, order, run = dense_kernel(), [], Pool.run

    def watched(pool, kernel, slot, is_default, limit_s=None):
        order.append(is_default)
        return run(pool, kernel, slot, is_default, limit_s)

    monkeypatch.setattr(Pool, "run", watched)
    tune([kernel], DEVICE, "p", store, trials=3)
    order.clear()
    tune([kernel], DEVICE, "p", store, trials=3)
    assert order[0] is True


@pytest.mark.cpu
def test_a_crash_while_building_costs_that_candidate_alone(store, monkeypatch):
    build, receive = [], _Process.receive

    def dies_at_the_fifth(process, seconds):
        build.append(seconds == BUILD_S)
        if sum(build) == 5:
            process._process.kill()
            process._process.stdout.read()
            monkeypatch.setattr(_Process, "receive", receive)
        return receive(process, seconds)

    monkeypatch.setattr(_Process, "receive", dies_at_the_fifth)
    kernel = dense_kernel()
    report = tune([kernel], DEVICE, "p", store, trials=6)
    status = [r.status for r in store.trials(kernel, KeyContext.current(DEVICE, "p"))]
    assert sum(s == "ok" for s in status) == 5, status
    assert report.failures == {"build": 1}


@pytest.mark.cpu
def test_a_store_that_cannot_be_written_ends_the_run_with_its_reason(store, monkeypatch):
    def full(records):
        raise TuningError("the store cannot be written: the disk is full; what was measured before is safe")

    monkeypatch.setattr(store, "add", full)
    with pytest.raises(TuningError, match="disk is full"):
        tune([dense_kernel()], DEVICE, "p", store, trials=4)


@pytest.mark.cpu
def test_a_kernel_without_a_template_is_searched_by_sketches(store):
    x, w = te.placeholder((1, 4, 6, 10, 10), name="x"), te.placeholder((8, 4, 3, 3, 3), name="w")
    func = te.create_prim_func([x, w, topi.nn.conv3d_ncdhw(x, w, 1, 1, 1, 1)]).with_attr("global_symbol", "kernel")
    kernel = Kernel("kernel", func, workload_text(func), 1, 1e6, 1.0, "generic")
    report = tune([kernel], DEVICE, "p", store, trials=9)
    records = store.trials(kernel, KeyContext.current(DEVICE, "p"))
    traces = [r for r in records if r.choice.template == "meta_schedule"]
    assert report.trials == 9
    assert len(traces) == 8
    assert any(r.status == "ok" for r in traces)
    best = store.best(kernel, KeyContext.current(DEVICE, "p"))
    assert schedules.apply(func, best.choice, DEVICE) is not None


@pytest.mark.null
def test_the_cost_model_carries_over_to_a_kernel_it_has_not_seen():
    taught, choices = CostModel(), fake_search().pool
    for rows in (24, 48, 96):
        taught.learn("dense", dense_kernel(rows).workload, [(c, rows * fake_time(c)) for c in choices[::3]])
    ranked = taught.rank("dense", dense_kernel(72).workload, choices)
    assert np.mean([fake_time(c) for c in ranked[:10]]) < np.mean([fake_time(c) for c in choices]) * 0.85
    assert CostModel().rank("dense", "", choices) == []


@pytest.mark.null
def test_the_cost_model_knows_every_decision_of_the_templates():
    from tvmstack.schedules.cpu import TEMPLATES

    func = dense_kernel().func
    assert set(schedules.space(func, DEVICE)) <= set(DECISIONS)
    assert {t.name for t in TEMPLATES.values()} >= {"conv2d_nchwc", "winograd", "dense", "attention"}


@pytest.mark.cpu
def test_weights_are_cold_and_a_hopeless_candidate_runs_once(monkeypatch):
    from tvmstack.tuning import worker

    monkeypatch.setattr(worker, "_COLD_BYTES", 1)
    monkeypatch.setattr(worker, "_WEIGHT_BYTES", 100_000)
    kernel = worker._Kernel(dense_kernel().func, DEVICE, [1])
    kernel.build(schedules.default_choice(kernel.func, DEVICE).to_json(), 0)
    assert len(kernel.run(0, True)) == worker._REPEATS
    assert len(kernel.sets) == -(-100_000 // (64 * 128 * 4))
    assert all(s[0] is kernel.sets[0][0] and s[2] is kernel.sets[0][2] for s in kernel.sets)
    assert len({id(s[1]) for s in kernel.sets}) == len(kernel.sets)
    assert len(kernel.run(0, False, limit_s=0.0)) == 1


@pytest.mark.cpu
def test_the_algorithms_of_a_convolution_are_compared_and_the_faster_is_recorded(store, monkeypatch):
    monkeypatch.setattr(importlib.import_module("tvmstack.tuning.tune"), "_BEHIND", 100.0)
    x, rest = te.placeholder((24, 64), name="x"), te.placeholder((8, 64, 16), name="w")
    site = "n1c8h9w9o8p1_conv3x3"

    def kernel(algorithm, repeat):
        func = te.create_prim_func([x, rest, te.compute((24, 128), lambda i, j: repeat * 1.0 + y[i, j])])
        func = func.with_attr("global_symbol", algorithm)
        return replace(
            dense_kernel(), name=algorithm, func=func, workload=workload_text(func), algorithm=algorithm, site=site
        )

    y = kernels.dense(x, rest, 128)
    now, other = kernel("direct", 1), kernel("winograd2", 2)
    tune([now], DEVICE, "p", store, trials=6, alternatives=[other])
    records = store.trials(site_kernel(site), KeyContext.current(DEVICE, "p"))
    assert {r.choice.decisions["name"] for r in records} <= {"direct", "winograd2"}
    assert any(r.is_default and r.choice.decisions["name"] == "direct" for r in records)
    assert all(r.is_final and r.median_s > 0 for r in records)
