"""Records travel as lines and between stores, in an order that depends on keys only; nothing bad comes in with them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.test_store import CONTEXT, kernel, record
from tvmstack.cli.boundary import run
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.store import export_records, import_records, merge_stores
from tvmstack.store.record import record_from_line

pytestmark = pytest.mark.null


def lines_of(store, path: Path) -> list[str]:
    export_records(store, path)
    return path.read_text().splitlines()


def some(count=30):
    return [record(1.0 + n, workload=f"work {n % 4}", decisions={"m": n}) for n in range(count)]


def resealed(line: str, **changes) -> str:
    """The line of a record that was made to look right: its digest fits what was changed in it."""
    import hashlib

    data = json.loads(line)["record"] | changes
    body = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "record": data}, sort_keys=True)


def test_exports_of_equal_stores_are_equal_in_whatever_order_records_came(store, opened, tmp_path):
    records = some()
    store.add(records)
    random.Random(3).shuffle(records)
    other = opened(str(tmp_path / "other.db"))
    for one in records:
        other.add([one])
    assert lines_of(store, tmp_path / "a") == lines_of(other, tmp_path / "b")


def test_one_more_record_is_one_more_line_in_the_diff(store, tmp_path):
    store.add(some())
    before = lines_of(store, tmp_path / "a")
    store.add([record(0.5, workload="work 2", decisions={"m": 99})])
    after = lines_of(store, tmp_path / "b")
    assert len(after) == 31
    assert [line for line in after if line in set(before)] == before


def test_what_comes_in_is_not_proven_and_coming_in_twice_changes_nothing(store, opened, tmp_path):
    store.add(some())
    lines_of(store, tmp_path / "a")
    other = opened(str(tmp_path / "other.db"))
    assert import_records(other, tmp_path / "a").new == 30
    assert not any(r.proven for r in other.records())
    assert import_records(store, tmp_path / "a").new == 0
    assert all(r.proven for r in store.records())


def test_a_choice_of_finals_and_devices_is_exported(store, tmp_path):
    store.add([record(1.0, is_final=True), record(2.0, decisions={"m": 2})])
    store.add([replace(record(3.0, is_final=True), device="other")])
    assert export_records(store, tmp_path / "a", finals_only=True) == 2
    assert export_records(store, tmp_path / "a", devices=["other"]) == 1
    assert json.loads((tmp_path / "a").read_text())["record"]["device"] == "other"


def test_quarantined_records_are_not_exported_and_are_merged_as_such(store, opened, tmp_path):
    store.add([record(1.0), record(2.0, decisions={"m": 2})])
    store.quarantine(store.best(kernel(), CONTEXT), "run: crash")
    assert export_records(store, tmp_path / "a") == 1
    other = opened(str(tmp_path / "other.db"))
    merge_stores(other, store)
    assert [r.quarantine for r in other.records(quarantined=True)] == ["run: crash"]


def test_of_two_records_of_one_key_the_finalist_stays_else_the_later(store, opened, tmp_path):
    store.add([record(1.0, decisions={"m": 1}, is_final=True, when=5.0), record(1.0, decisions={"m": 2}, when=5.0)])
    other = opened(str(tmp_path / "other.db"))
    later = [record(2.0, decisions={"m": 1}, when=9.0), record(2.0, decisions={"m": 2}, when=9.0)]
    other.add([*later, record(2.0, decisions={"m": 3})])
    taken = merge_stores(store, other)
    assert (taken.read, taken.new) == (3, 1)
    assert {r.choice.decisions["m"]: r.median_s for r in store.records()} == {1: 1.0, 2: 2.0, 3: 2.0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"median_s": float("nan")}, "median_s must be a positive number"),
        ({"median_s": -1.0}, "median_s must be a positive number"),
        ({"median_s": None}, "median_s must be a positive number"),
        ({"spread_s": float("inf")}, "spread_s and when must be positive"),
        ({"is_final": "yes"}, "is_final must be true or false"),
        ({"workload": 7}, "workload must be text"),
        ({"device": "a\0b"}, "device must be text"),
        ({"workload": "\ud800"}, "is no record"),
        ({"choice": {"template": "dense", "decisions": {"m": {"__class__": "x"}}}}, "'m' is no number and no name"),
        ({"choice": {"template": "dense", "decisions": {"m": "x" * 200}}}, "'m' is no number and no name"),
        ({"choice": {"template": "meta_schedule", "decisions": {"trace": "x"}}}, "its trace is no trace"),
        ({"choice": {"template": "meta_schedule", "decisions": {}}}, "its trace is no trace"),
        ({"choice": ["dense"]}, "is no record"),
    ],
)
def test_a_line_that_says_what_no_record_may_is_refused(changes, reason):
    line = resealed(record().to_line())
    assert record_from_line(line).median_s == 1.0
    with pytest.raises(TuningError, match=reason):
        record_from_line(resealed(line, **changes))


def test_a_line_of_brackets_is_refused_like_any_other(store, tmp_path):
    (tmp_path / "a").write_text("[" * 100_000 + "\n" + record().to_line() + "\n")
    taken = import_records(store, tmp_path / "a")
    assert (taken.read, len(taken.refused)) == (1, 1)


def test_nothing_in_the_store_or_beside_it_unpickles_or_evaluates():
    import tvmstack.store

    for file in Path(tvmstack.store.__file__).parent.glob("*.py"):
        text = file.read_text()
        for word in ("pickle", "eval(", "exec(", "marshal", "__import__"):
            assert word not in text, f"{file.name}: {word}"


def test_merging_on_the_command_line_leaves_the_sources_alone(opened, tmp_path, capsys):
    places = [str(tmp_path / name) for name in ("a.db", "b.db", "c.db")]
    opened(places[0]).add([record(1.0)])
    opened(places[1]).add([record(1.0, decisions={"m": 2})])
    assert run(["cache", "merge", places[0], places[1], "-o", places[2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "records": 2,
        "new": 2,
        "blobs": 0,
        "what": "merged into",
        "file": places[2],
    }
    assert [len(opened(place).records()) for place in places] == [1, 1, 2]
    assert run(["cache", "merge", places[0], str(tmp_path / "none.db")]) == 2
    assert "there is no store" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_a_store_of_another_kind_of_server_is_refused_with_what_is_accepted(capsys):
    assert run(["cache", "stats", "--store", "mysql://somebody@somewhere/records"]) == 2
    assert "accepted: a file, postgresql://" in capsys.readouterr().err


def test_choices_with_names_travel(store, tmp_path):
    store.add([replace(record(), choice=Choice("dense", {"name": "direct"}))])
    lines_of(store, tmp_path / "a")
    assert import_records(store, tmp_path / "a").refused == []
