"""Claims: two jobs on one store measure each candidate once, and a job that died blocks nobody for long."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.store.test_store import CONTEXT, kernel, record
from tvmstack.core.kernel import Choice

pytestmark = pytest.mark.null
CHOICES = [Choice("dense", {"m": m}) for m in range(4)]


def test_a_claimed_choice_is_not_given_to_another_and_comes_back_when_released(store):
    assert store.claim(kernel(), CONTEXT, CHOICES[:3], "one", 60).choices == CHOICES[:3]
    assert store.claim(kernel(), CONTEXT, CHOICES, "two", 60).choices == CHOICES[3:]
    store.release_claims("one")
    assert store.claim(kernel(), CONTEXT, CHOICES, "two", 60).choices == CHOICES


def test_a_claim_of_ones_own_is_renewed(store):
    store.claim(kernel(), CONTEXT, CHOICES, "one", 0.05)
    assert store.claim(kernel(), CONTEXT, CHOICES, "one", 60).choices == CHOICES
    time.sleep(0.1)
    assert store.claim(kernel(), CONTEXT, CHOICES, "two", 60).choices == []


def test_a_claim_that_has_ended_counts_for_nothing(store):
    store.claim(kernel(), CONTEXT, CHOICES, "killed", 0.05)
    time.sleep(0.1)
    assert store.claim(kernel(), CONTEXT, CHOICES, "two", 60).choices == CHOICES


def test_what_another_measured_meanwhile_is_handed_over_instead(store):
    store.add([record(2.0, decisions={"m": 1}), record(float("inf"), decisions={"m": 2}, status="run: crash")])
    claim = store.claim(kernel(), CONTEXT, CHOICES, "one", 60)
    assert claim.choices == [CHOICES[0], CHOICES[3]]
    assert {r.choice.decisions["m"]: r.status for r in claim.measured} == {1: "ok", 2: "run: crash"}


def test_claims_of_other_kernels_are_apart(store):
    store.claim(kernel("other work"), CONTEXT, CHOICES, "one", 60)
    assert store.claim(kernel(), CONTEXT, CHOICES, "two", 60).choices == CHOICES


JOB = """
import sys
from tests.store.test_store import CONTEXT, kernel, record
from tvmstack.core.kernel import Choice
from tvmstack.store import open_store
store = open_store(sys.argv[1], shipped=False)
measured = 0
for start in range(0, 64, 8):
    choices = [Choice("dense", {"m": m}) for m in range(start, start + 16)]
    mine = store.claim(kernel(), CONTEXT, choices, sys.argv[2], 60).choices
    store.add([record(1.0, decisions=dict(c.decisions)) for c in mine])
    measured += len(mine)
print(measured)
"""


def test_two_processes_measure_every_choice_once(store, place):
    jobs = [
        subprocess.Popen([sys.executable, "-c", JOB, place, name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    assert sum(int(job.communicate()[0]) for job in jobs) == 72
    assert len(store.records()) == 72


@pytest.mark.cpu
def test_a_tuning_run_leaves_alone_what_another_has_claimed(opened, tmp_path):
    from tests.tuning.test_tuning import DEVICE, dense_kernel
    from tvmstack import schedules
    from tvmstack.store import KeyContext
    from tvmstack.tuning import tune

    store, work, context = opened(str(tmp_path / "store.db")), dense_kernel(), KeyContext.current(DEVICE, "p")
    default = schedules.default_choice(work.func, DEVICE)
    every = [Choice("dense", d) for d in schedules.candidates(work.func, DEVICE)]
    theirs = [c for c in every[:-3] if c != default]
    store.claim(work, context, theirs, "another run", 600)
    report = tune([work], DEVICE, "p", store, trials=3)
    measured = {r.choice.text for r in store.trials(work, context)}
    assert report.trials == 3
    assert measured <= {default.text, *(c.text for c in every[-3:])}
    assert store.claim(work, context, every, "third", 600).choices
