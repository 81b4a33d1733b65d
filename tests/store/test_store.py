"""The store: its key, its durability, and what it says when something is wrong."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tvmstack.core.device import detect_device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.store import KeyContext, Record, export_records, import_records, open_store, stats
from tvmstack.store.record import record_from_line

pytestmark = pytest.mark.null
CONTEXT = KeyContext.current(detect_device(), "pipeline-a")


def kernel(workload="work", template="dense"):
    return Kernel("kernel", None, workload, 1, 1.0, 1.0, template)


def record(median_s=1.0, workload="work", context=CONTEXT, **changes):
    choice = Choice("dense", changes.pop("decisions", {"m": 1}))
    base = Record(workload, "dense", choice, median_s=median_s, when=1.0, **context.fields)
    return replace(base, **changes)


def test_the_fastest_record_of_exactly_this_key_is_used(store):
    store.add([record(3.0), record(2.0, decisions={"m": 2}), record(1.0, workload="other work")])
    assert store.best(kernel(), CONTEXT).choice.decisions == {"m": 2}


@pytest.mark.parametrize("field", ["device", "target", "versions", "pipeline", "schedules", "protocol"])
def test_a_record_that_differs_in_one_field_is_not_used_and_the_field_is_named(store, field):
    store.add([replace(record(), **{field: "another"})])
    assert store.best(kernel(), CONTEXT) is None
    answer = store.explain(kernel(), CONTEXT)
    assert answer.differs == (field,)
    assert "same kernel" in answer.reason
    assert "another" in answer.reason


def test_a_choice_within_the_noise_of_the_default_is_not_used(store):
    store.add([record(1.0, is_default=True), record(0.99, decisions={"m": 2})])
    assert store.best(kernel(), CONTEXT).is_default
    store.add([record(0.9, decisions={"m": 3})])
    assert store.best(kernel(), CONTEXT).choice.decisions == {"m": 3}


def test_finalists_measured_in_turns_outrank_single_measurements(store):
    store.add(
        [record(0.5), record(0.8, decisions={"m": 2}, is_final=True), record(0.9, is_default=True, is_final=True)]
    )
    assert store.best(kernel(), CONTEXT).is_final
    assert store.best(kernel(), CONTEXT).median_s == 0.8


def test_failed_trials_are_kept_with_their_reason_and_never_used(store):
    store.add([record(float("inf"), status="run: crash")])
    assert store.best(kernel(), CONTEXT) is None
    assert [r.status for r in store.trials(kernel(), CONTEXT)] == ["run: crash"]


def test_measuring_a_choice_again_replaces_its_record(store):
    store.add([record(2.0)])
    store.add([record(1.0)])
    assert [r.median_s for r in store.trials(kernel(), CONTEXT)] == [1.0]


def test_export_and_import_carry_every_record_and_refuse_a_changed_line(store, tmp_path):
    store.add([record(1.0), record(float("inf"), decisions={"m": 2}, status="build: timeout")])
    file = tmp_path / "records.jsonl"
    assert export_records(store, file) == 2
    lines = file.read_text().splitlines()
    changed = lines[0].replace('"median_s": 1.0', '"median_s": 0.1')
    file.write_text("\n".join([changed, lines[1], "not json"]))
    other = open_store(tmp_path / "other.db", shipped=False)
    taken = import_records(other, file)
    assert (taken.read, taken.new) == (1, 1)
    assert [line.split(":")[0] for line in taken.refused] == ["line 1", "line 3"]
    assert record_from_line(lines[1]) == other.records()[0]
    other.close()


def test_a_damaged_file_is_set_aside_and_its_readable_records_are_kept(tmp_path, caplog):
    path = tmp_path / "store.db"
    first = open_store(path, shipped=False)
    first.add([record(1.0, workload=f"work {i} " + "x" * 3000) for i in range(200)])
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    first.close()
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8192] = b"\xff" * 8192
    path.write_bytes(data)
    again = open_store(path, shipped=False)
    kept = stats(again)["records"]
    again.close()
    assert 50 < kept < 200
    assert list(tmp_path.glob("store.db.corrupt-*"))
    assert "was damaged" in caplog.text


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("this is no database at all" * 100)
    with pytest.raises(TuningError, match="is not a store"):
        open_store(path, shipped=False)
    assert path.read_text().startswith("this is no database")


def test_a_store_of_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "store.db"
    open_store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("update info set value = '99' where name = 'schema'")
    with pytest.raises(TuningError, match="schema 99"):
        open_store(path)


def test_a_locked_store_is_said_to_be_locked(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmstack.store.engine.BUSY_S", 0.05)
    path = tmp_path / "store.db"
    store = open_store(path, shipped=False)
    holder = sqlite3.connect(path)
    holder.execute("begin exclusive")
    with pytest.raises(TuningError, match="locked"):
        store.add([record()])
    holder.rollback()
    assert store.add([record()]) == 1
    store.close()
    holder.close()


def test_a_folder_or_an_unwritable_place_is_one_sentence(tmp_path):
    with pytest.raises(TuningError, match="it is a folder"):
        open_store(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TuningError, match="cannot open the store"):
        open_store(tmp_path / "file" / "store.db")


def test_lines_are_json_and_hold_no_absolute_path():
    data = json.loads(record().to_line())
    assert data["record"]["choice"] == {"template": "dense", "decisions": {"m": 1}}
    assert len(data["sha256"]) == 64


READER = """
import os, sys
import sqlalchemy.dialects.sqlite
from tvmstack.core.errors import TuningError
from tvmstack.store import open_store
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    open_store(sys.argv[1], shipped=False)
except TuningError as err:
    print(err)
"""


def test_a_store_that_may_only_be_read_is_one_sentence(opened):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        opened(str(path)).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=False)
        Path(folder).chmod(0o755)
    assert "may not write to it and its folder" in done.stdout, done.stderr
