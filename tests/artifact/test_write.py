from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.artifact.conftest import WEIGHTS
from tvmstack.artifact import Manifest, check, read_manifest, rewrite_manifest, write_artifact
from tvmstack.artifact.elf import read_sections
from tvmstack.core.errors import ArtifactError, SetupError

pytestmark = pytest.mark.null


def section(path: Path, name: str) -> bytes:
    at = read_sections(path)[name]
    return path.read_bytes()[at.offset : at.end]


def test_weights_lie_aligned_where_the_manifest_says(written: Path) -> None:
    raw = section(written, ".tvmstack.weights")
    for row, array in zip(read_manifest(written).weights, WEIGHTS, strict=True):
        assert row["offset"] % 64 == 0
        data = raw[row["offset"] : row["offset"] + row["size"]]
        np.testing.assert_array_equal(np.frombuffer(data, row["dtype"]).reshape(row["shape"]), array)


def test_regions_lie_where_the_manifest_says(written: Path) -> None:
    (row,) = read_manifest(written).regions
    assert row["digest"] == "0123456789abcdef"
    assert section(written, ".tvmstack.regions")[row["offset"] : row["offset"] + row["size"]] == b"not really onnx"


def test_strided_and_big_endian_weights_are_written_plainly(library: Path, manifest: Manifest, tmp_path: Path) -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4).T[::2]
    write_artifact(tmp_path / "m.so", library, [array], [], manifest)
    raw = section(tmp_path / "m.so", ".tvmstack.weights")
    np.testing.assert_array_equal(np.frombuffer(raw[:24], "<f4").reshape(2, 3), array)


def test_the_same_parts_give_the_same_bytes(library: Path, manifest: Manifest, tmp_path: Path) -> None:
    paths = [tmp_path / "a.so", tmp_path / "b.so"]
    for path in paths:
        write_artifact(path, library, WEIGHTS, [], manifest)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_rewritten_manifest_leaves_the_parts_alone(written: Path) -> None:
    size = written.stat().st_size
    before = {name: section(written, f".tvmstack.{name}") for name in ("weights", "regions")}
    old = read_manifest(written)
    for count in (3, 4):
        rewrite_manifest(written, replace(old, verification={"cases": count}, digests={}))
    assert read_manifest(written).verification == {"cases": 4}
    assert read_manifest(written).digests == old.digests
    assert {name: section(written, f".tvmstack.{name}") for name in before} == before
    assert written.stat().st_size < size + 200
    assert all(row.verdict for row in check(written) if "digest" in row.name)


def test_a_full_disk_leaves_nothing_and_is_said_in_a_sentence(
    library: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SetupError, match=r"cannot write .*m.so: the disk is full"):
        write_artifact(tmp_path / "m.so", library, WEIGHTS, [], manifest)
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_keeps_the_old_artifact(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = written.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(SetupError, match="the disk is full"):
        rewrite_manifest(written, read_manifest(written))
    assert written.read_bytes() == raw
    assert not list(written.parent.glob("*.part"))


def test_a_missing_folder_is_said_in_a_sentence(library: Path, manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot write"):
        write_artifact(tmp_path / "nowhere" / "m.so", library, [], [], manifest)


def test_what_is_no_library_is_refused_and_leaves_nothing(manifest: Manifest, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"text")
    with pytest.raises(ArtifactError, match="does not begin as an ELF file"):
        write_artifact(tmp_path / "m.so", odd, [], [], manifest)
    assert list(tmp_path.iterdir()) == [odd]


KILLED = """
import os, sys
from pathlib import Path
from tvmstack.artifact import read_manifest, rewrite_manifest
os.replace = lambda *_: os._exit(9)
rewrite_manifest(Path(sys.argv[1]), read_manifest(sys.argv[1]))
"""


def test_a_kill_while_writing_leaves_the_old_artifact_whole(written: Path) -> None:
    raw = written.read_bytes()
    assert subprocess.run([sys.executable, "-c", KILLED, str(written)], check=False).returncode == 9
    assert written.read_bytes() == raw
