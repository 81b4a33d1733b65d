"""Every promise of an artifact, broken one by one: a sentence each, in a process that goes on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvmstack.artifact import check, read_manifest, rewrite_manifest
from tvmstack.artifact.elf import HEADER_SIZE, read_sections
from tvmstack.core.errors import ArtifactError, SetupError
from tvmstack.runtime import load

pytestmark = pytest.mark.cpu
X = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)}


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(built, tmp_path / "copy.so"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 0x10]))


def change(path: Path, **fields: object) -> None:
    rewrite_manifest(path, replace(read_manifest(path), **fields))  # type: ignore[arg-type]


def test_a_whole_artifact_keeps_every_promise(built: Path) -> None:
    rows = check(built)
    assert [row.name for row in rows if not row.verdict] == []
    assert {"format", "library digest", "weights digest", "regions digest", "frame digest", "cpu"} <= {
        row.name for row in rows
    }


@pytest.mark.parametrize("part", [".tvmstack.weights", ".tvmstack.regions", ".tvmstack.manifest", ".text", ".dynsym"])
def test_a_flipped_byte_in_any_section_is_refused_before_loading(part: str, copy: Path) -> None:
    section = read_sections(copy)[part]
    for at in (section.offset, section.offset + section.size // 2, section.end - 1):
        flip(copy, at)
        with pytest.raises(ArtifactError, match="damaged"):
            load(copy)
        flip(copy, at)
    assert load(copy).run(X)["y"].shape == (2, 8)


def test_a_flipped_byte_is_refused_wherever_it_is(copy: Path) -> None:
    size = copy.stat().st_size
    rng = np.random.default_rng(0)
    places = [*range(HEADER_SIZE), *map(int, rng.integers(0, size, 200)), *range(size - 40, size)]
    for at in places:
        flip(copy, at)
        with pytest.raises(ArtifactError):
            load(copy)
        flip(copy, at)
    assert all(row.verdict for row in check(copy))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(share: float, copy: Path) -> None:
    raw = copy.read_bytes()
    copy.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(ArtifactError, match=r"cut short|does not begin|damaged"):
        load(copy)


def test_one_byte_too_few_or_too_many_is_refused(copy: Path) -> None:
    raw = copy.read_bytes()
    for odd in (raw[:-1], raw + b"\0"):
        copy.write_bytes(odd)
        with pytest.raises(ArtifactError, match="damaged"):
            load(copy)


def test_digests_can_be_left_out(copy: Path) -> None:
    flip(copy, read_sections(copy)[".tvmstack.weights"].offset)
    assert load(copy, verify_digests=False).run(X)["y"].shape == (2, 8)
    assert "weights digest" not in {row.name for row in check(copy, digests=False)}


def foreign_cpu(path: Path) -> None:
    device = read_manifest(path).device
    change(path, device={**device, "features": [*device["features"], "sse9000"]})


def foreign_arch(path: Path) -> None:
    change(path, device={**read_manifest(path).device, "arch": "sparc64"})


def foreign_versions(**versions: str) -> Callable[[Path], None]:
    return lambda path: change(path, versions={**read_manifest(path).versions, **versions})


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (foreign_cpu, "needs CPU features that this machine lacks: sse9000.*--device cpu:"),
        (foreign_arch, "built for sparc64, this machine is"),
        (foreign_versions(tvm="0.31.0"), r"built with apache-tvm 0\.31\.0.*Install apache-tvm==0\.31\.0"),
        (foreign_versions(ffi="2.0"), r"built with apache-tvm-ffi 2\.0"),
        (foreign_versions(tvm=""), r"built with apache-tvm \?"),
    ],
    ids=["cpu", "arch", "tvm", "ffi", "unknown tvm"],
)
def test_an_artifact_for_elsewhere_is_refused_with_its_reason(
    alter: Callable[[Path], None], words: str, copy: Path
) -> None:
    alter(copy)
    assert sum(not row.verdict for row in check(copy)) == 1
    with pytest.raises(ArtifactError, match=words):
        load(copy)


def test_another_patch_release_of_tvm_will_do(copy: Path) -> None:
    release = ".".join(read_manifest(copy).versions["tvm"].split(".")[:2])
    foreign_versions(tvm=f"{release}.99")(copy)
    assert all(row.verdict for row in check(copy))


def test_a_missing_onnxruntime_is_a_matter_of_setup(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tvmstack.artifact.check"]  # the room exports a function of the same name
    monkeypatch.setattr(module, "installed_version", lambda _: "")
    assert [row.name for row in check(copy) if not row.verdict] == ["onnxruntime"]
    with pytest.raises(SetupError, match="pip install onnxruntime"):
        load(copy)


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "plain library"])
def test_what_is_no_artifact_is_named(kind: str, tmp_path: Path, library: Path) -> None:
    path = tmp_path / "it"
    words = {"missing": "there is no file", "folder": "is a folder", "text": "ELF", "plain library": "not made by"}
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("hello")
    elif kind == "plain library":
        path = library
    with pytest.raises(ArtifactError, match=words[kind]):
        load(path)
