"""Blobs in their folder."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest

from tvmstack.cli.boundary import run
from tvmstack.store.blobs import BlobFolder, key_of

pytestmark = pytest.mark.null


def test_a_key_depends_on_every_part_and_on_no_order() -> None:
    parts = {"region": "a", "target": "cpu", "extra": {"x": 1, "y": 2}}
    assert key_of(parts) == key_of(dict(reversed(parts.items())))
    assert len({key_of(parts), key_of({**parts, "target": "gpu"}), key_of({**parts, "extra": {}})}) == 3


def test_a_damaged_or_cut_file_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = BlobFolder(tmp_path / "blobs")
    assert folder.get("k") is None
    folder.put("k", b"data")
    assert folder.get("k") == b"data"
    for damage in (lambda d: d[:-1], lambda d: b"", lambda d: d[:-1] + b"x"):
        file = folder.path / "k"
        folder.put("k", b"data")
        file.write_bytes(damage(file.read_bytes()))
        with caplog.at_level(logging.WARNING):
            assert folder.get("k") is None
        assert not file.exists()
    assert caplog.text.count("is dropped") == 3


def test_no_room_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        BlobFolder(tmp_path / "file" / "blobs").put("k", b"data")
    assert "is not kept" in caplog.text


def test_the_longest_unused_go_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = BlobFolder(Path(f"{tmp_path}/store.db.blobs"))
    for days, name in enumerate("abc"):
        folder.put(name, b"x" * 100)
        os.utime(folder.path / name, (time.time() - days * 86400,) * 2)
    store = ["--store", str(tmp_path / "store.db"), "--json"]
    assert run(["cache", "stats", *store]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["blobs"], facts["blobs_bytes"]) == (3, 3 * 164)
    assert run(["cache", "prune", "--older-than", "1.5d", "--dry-run", *store]) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] == 1
    assert folder.stats()["blobs"] == 3
    assert run(["cache", "prune", "--older-than", "1.5d", *store]) == 0
    assert sorted(f.name for f in folder.path.iterdir()) == ["a", "b"]
    assert folder.prune(most_bytes=200) == 1
    assert [f.name for f in folder.path.iterdir()] == ["a"]


def test_merge_takes_blobs_along_and_export_says_they_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(tmp_path / f"{name}.db") for name in ("one", "other"))
    for store in (one, other):
        assert run(["cache", "stats", "--store", store]) == 0
    mine, theirs = BlobFolder(Path(f"{one}.blobs")), BlobFolder(Path(f"{other}.blobs"))
    mine.put("both", b"mine")
    for key in ("both", "new", "damaged"):
        theirs.put(key, b"theirs")
    (theirs.path / "damaged").write_bytes(b"x" * 70)
    capsys.readouterr()
    assert run(["cache", "merge", one, other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] == 1
    assert {f.name: mine.get(f.name) for f in mine.path.iterdir()} == {"both": b"mine", "new": b"theirs"}
    assert run(["cache", "merge", one, other]) == 0
    assert "compiled regions" not in capsys.readouterr().out
    assert run(["cache", "export", str(tmp_path / "out.jsonl"), "--store", one]) == 0
    assert "2 files of compiled regions left out (cache merge carries them)" in " ".join(
        capsys.readouterr().out.split()
    )
