"""A store tells what it holds, and gets smaller by rules that say what they would do first."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.store.test_store import CONTEXT, kernel, record
from tvmstack.cli.boundary import run
from tvmstack.core.errors import UsageError
from tvmstack.store import PruneRule, prune, stats

pytestmark = pytest.mark.null
NOW = time.time()


def kept(store):
    return sorted(r.choice.decisions["m"] for r in store.records())


def test_stats_count_by_device_failures_and_quarantine(store):
    store.add([record(1.0), record(float("inf"), decisions={"m": 2}, status="run: crash")])
    store.add([replace(record(3.0), device="other")])
    store.quarantine(store.best(kernel(), CONTEXT), "run: crash")
    facts = stats(store)
    assert facts["devices"] == {CONTEXT.device.id: 2, "other": 1}
    assert (facts["records"], facts["kernels"], facts["failed"], facts["quarantined"]) == (3, 1, 1, 1)
    assert facts["size_bytes"] > 0


def test_old_records_go(store):
    store.add([record(decisions={"m": m}, when=NOW - days * 86400) for m, days in enumerate((1, 50, 200))])
    assert prune(store, PruneRule(older_than_days=90), dry_run=True).records == 1
    assert kept(store) == [0, 1, 2]
    assert prune(store, PruneRule(older_than_days=90)).records == 1
    assert kept(store) == [0, 1]


def test_superseded_trials_go_and_what_builds_use_stays(store):
    store.add(
        [
            record(1.0, decisions={"m": 0}, is_default=True),
            record(1.0, decisions={"m": 1}, is_final=True),
            record(1.0, decisions={"m": 2}),
            record(1.0, decisions={"m": 3}, workload="never finished"),
        ]
    )
    best = store.best(kernel(), CONTEXT)
    assert prune(store, PruneRule(superseded=True)).records == 1
    assert kept(store) == [0, 1, 3]
    assert store.best(kernel(), CONTEXT) == best


def test_records_of_an_older_version_go_once_a_later_one_has_finalists(store):
    old = replace(record(1.0, decisions={"m": 1}, is_final=True, when=1.0), versions="tvm 0.1")
    store.add([old, record(1.0, decisions={"m": 2}, is_final=True, when=2.0)])
    store.add([replace(old, workload="only known to the old version")])
    assert prune(store, PruneRule(superseded=True)).records == 1
    assert kept(store) == [1, 2]


def test_conditions_narrow_each_other(store):
    store.add([record(decisions={"m": 1}, when=1.0), record(decisions={"m": 2}, when=NOW)])
    store.add([replace(record(decisions={"m": 3}, when=1.0), device="other")])
    assert prune(store, PruneRule(older_than_days=90, devices=["other"])).records == 1
    assert kept(store) == [1, 2]


def test_quarantined_records_go(store):
    store.add([record(1.0, decisions={"m": 1}), record(2.0, decisions={"m": 2})])
    store.quarantine(store.best(kernel(), CONTEXT), "run: crash")
    assert prune(store, PruneRule(quarantined=True)).records == 1
    assert kept(store) == [2]


def test_a_quota_takes_the_least_valuable_first_and_is_met(store):
    text = "x" * 4000
    store.add([record(decisions={"m": n}, workload=f"{n} {text}", when=n + 1.0) for n in range(300)])
    store.add([record(decisions={"m": 999}, workload=f"final {text}", is_final=True, when=0.5)])
    store.add([record(float("inf"), decisions={"m": 998}, workload=f"bad {text}", status="run: crash", when=900.0)])
    before = stats(store)["size_bytes"]
    rule = PruneRule(quota_bytes=before // 2)
    guess = prune(store, rule, dry_run=True)
    assert len(kept(store)) == 302
    done = prune(store, rule)
    if not store.database.is_server:
        assert done.after_bytes <= before // 2
        assert stats(store)["size_bytes"] == done.after_bytes
    assert 0.7 * done.records < guess.records < 1.5 * done.records
    assert done.kernels == done.records
    left = kept(store)
    assert 999 in left
    assert 998 not in left
    assert left[-2] == 299


def test_a_rule_that_says_nothing_is_refused(store):
    with pytest.raises(UsageError, match="say what may go"):
        prune(store, PruneRule())


def test_the_command_understands_times_and_sizes_and_says_what_it_would_do(opened, tmp_path, capsys):
    place = str(tmp_path / "store.db")
    opened(place).add([record(when=1.0)])
    assert run(["cache", "prune", "--older-than", "12w", "--dry-run", "--store", place]) == 0
    assert "would be removed from" in capsys.readouterr().out
    assert run(["cache", "prune", "--quota", "1GiB", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 0
    assert run(["cache", "prune", "--older-than", "soon", "--store", place]) == 2
    assert "like 90d" in capsys.readouterr().err
    assert len(opened(place).records()) == 1


def test_quarantined_records_are_listed_with_the_reason(opened, tmp_path, capsys):
    place = str(tmp_path / "store.db")
    store = opened(place)
    store.add([record(1.0), record(2.0, decisions={"m": 2})])
    store.quarantine(store.best(kernel(), CONTEXT), "run: crash (signal 11)")
    assert run(["cache", "ls", "--quarantined", "--store", place]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "1 record in" in page
    assert "quarantined: run: crash (signal" in page
