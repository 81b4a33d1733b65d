"""Whatever is wrong with a file or a machine, the C library says so in a sentence and its process lives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import mlp
from tests.native.conftest import (
    Run,
    onnxruntime_library,
    openvino_blob,
    openvino_library,
    openvino_row,
)
from tests.runtime.make import make_artifact
from tvmstack.artifact import read_manifest
from tvmstack.artifact.elf import read_sections
from tvmstack.artifact.manifest import MANIFEST, REGIONS, WEIGHTS
from tvmstack.artifact.write import rewrite_manifest
from tvmstack.core.region import Region

pytestmark = pytest.mark.cpu
AGAIN = "Copy or build it again"


def _flip(source: Path, target: Path, at: int) -> Path:
    data = bytearray(source.read_bytes())
    data[at] ^= 1
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("library", "cannot be loaded: its library is damaged (another digest). " + AGAIN),
        (WEIGHTS, "cannot be loaded: its weights is damaged (another digest). " + AGAIN),
        (REGIONS, "cannot be loaded: its regions is damaged (another digest). " + AGAIN),
        (MANIFEST, "is damaged: its manifest does not match its digest. " + AGAIN),
        ("frame", "cannot be loaded: its frame is damaged (another digest). " + AGAIN),
    ],
)
def test_a_flipped_byte_in_any_part(run: Run, split: Path, tmp_path: Path, part: str, words: str) -> None:
    sections = read_sections(split)
    places = {"library": read_manifest(split).library_size // 2, "frame": split.stat().st_size - 40}
    at = places[part] if part in places else sections[part].offset + sections[part].size // 2
    broken = _flip(split, tmp_path / "broken.so", at)
    assert run("open", broken) == f"open: 7: {broken} {words}\n"


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (0, "is not a shared library: it does not begin as an ELF file"),
        (40, "is not a 64-bit little-endian ELF file, or cut short"),
        (-1, "cannot be loaded: its frame is damaged (another digest). " + AGAIN),
        (0.5, "is cut short: its section table is missing. " + AGAIN),
    ],
)
def test_a_truncated_file(run: Run, split: Path, tmp_path: Path, keep: float, words: str) -> None:
    data = split.read_bytes()
    broken = tmp_path / "broken.so"
    broken.write_bytes(data[: int(len(data) * keep) if 0 < keep < 1 else int(keep)])
    assert run("open", broken) == f"open: 7: {broken} {words}\n"


def test_every_length_of_a_truncated_file_is_refused(run: Run, dense: Path, tmp_path: Path) -> None:
    data = dense.read_bytes()
    broken = tmp_path / "broken.so"
    for length in range(1, len(data), len(data) // 25):
        broken.write_bytes(data[:length])
        assert run("open", broken).startswith(f"open: 7: {broken} "), length


def test_what_is_no_artifact(run: Run, package: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("hello")
    library = package / "lib" / "libtvm_ffi.so"
    assert run("open", text) == f"open: 7: {text} is not a shared library: it does not begin as an ELF file\n"
    assert run("open", tmp_path) == f"open: 7: {tmp_path} is a folder, not an artifact\n"
    assert run("open", tmp_path / "no.so") == f"open: 7: there is no file {tmp_path / 'no.so'}\n"
    assert run("open", library) == f"open: 7: {library} was not made by tvmstack: it has no manifest\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 9}, "has a manifest of schema 9, this tvmstack reads up to 1: upgrade tvmstack"),
        ({"device": {"arch": "riscv64"}}, "cannot be loaded: it was built for riscv64, this machine is "),
        ({"device": {"features": ["quantum"]}}, "needs CPU features that this machine lacks: quantum. Compile it with"),
        ({"versions": {"tvm": "0.26.1"}}, "cannot be loaded: it was built with apache-tvm 0.26.1, installed is 0.27"),
        ({"versions": {"ffi": "0.2.0"}}, "Install apache-tvm-ffi==0.2.0"),
        ({"plan": {"regions": []}}, "cannot read (region "),
    ],
)
def test_what_was_made_for_elsewhere(run: Run, split: Path, tmp_path: Path, change: dict, words: str) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(split.read_bytes())
    manifest = read_manifest(other)
    fields = {k: {**getattr(manifest, k), **v} if isinstance(v, dict) else v for k, v in change.items()}
    rewrite_manifest(other, replace(manifest, **fields))
    said = run("open", other)
    assert said.startswith(f"open: 7: {other} ")
    assert words in said


def test_a_missing_vendor_library(run: Run, split: Path, openvino_split: Path) -> None:
    for artifact, name in ((split, "onnxruntime"), (openvino_split, "openvino_c")):
        said = run("open", artifact)
        assert said.startswith(f"session: 4: {artifact} cannot be run: region ")
        assert f"there is no lib{name}.so in " in said
        assert f"$TVMSTACK_{name.removesuffix('_c').upper()}_LIBRARY may name the file" in said
    said = run("open", split, TVMSTACK_ONNXRUNTIME_LIBRARY="/nowhere.so")
    assert "$TVMSTACK_ONNXRUNTIME_LIBRARY cannot be opened: /nowhere.so: cannot open shared object file" in said


def test_a_vendor_library_that_is_another_one(run: Run, split: Path, package: Path) -> None:
    other = str(package / "lib" / "libtvm_ffi.so")
    assert "libtvm_ffi.so has no function OrtGetApiBase" in run("open", split, TVMSTACK_ONNXRUNTIME_LIBRARY=other)


def test_an_unknown_engine_and_one_whose_name_leaves_the_folder(run: Run, triple_split: Path, tmp_path: Path) -> None:
    said = run("open", triple_split, TVMSTACK_ENGINES=str(tmp_path))
    assert f"there is no engine 'triple': no libtvmstack_engine_triple.so in {tmp_path}, " in said
    evil = make_artifact(mlp(), tmp_path / "evil.so", ["sigmoid_2"], hand=lambda _: ({"engine": "../../x"}, b"x"))
    assert "no engine can be called '../../x'" in run("open", evil)


def test_a_blob_of_another_model(run: Run, tmp_path: Path, openvino_split: Path) -> None:
    other = mlp(width=16).SerializeToString()
    artifact = make_artifact(mlp(), tmp_path / "o.so", ["sigmoid_2"], hand=lambda _: ({}, other))
    assert "its bytes are of another model (another digest)" in run("open", artifact, **onnxruntime_library())
    assert openvino_split.exists()

    def larger(region: Region) -> tuple[dict, bytes]:
        return openvino_blob(replace(region, model=other))

    artifact = make_artifact(mlp(), tmp_path / "v.so", ["sigmoid_2"], hand=larger)
    assert "(openvino): its bytes are of another model: that has no input" in run(
        "open", artifact, **openvino_library()
    )


def test_a_blob_that_is_none(run: Run, tmp_path: Path) -> None:
    artifact = make_artifact(
        mlp(), tmp_path / "v.so", ["sigmoid_2"], hand=lambda r: (openvino_row(r, ""), b"not a blob")
    )
    said = run("open", artifact, **openvino_library())
    assert said.startswith(f"session: 4: {artifact} cannot be run: region ")
    assert "cannot import it for CPU: " in said


def test_another_version_of_the_vendor(run: Run, openvino_split: Path, tmp_path: Path) -> None:
    assert openvino_split.exists()

    def older(region: Region) -> tuple[dict, bytes]:
        return openvino_row(region, "2023.1.0"), b"whatever"

    old = make_artifact(mlp(), tmp_path / "old.so", ["sigmoid_2"], hand=older)
    said = run("open", old, **openvino_library())
    assert "it was compiled by OpenVINO 2023.1.0, found is 20" in said
    assert "Install openvino==2023.1.0 or build the model again" in said
    newer = make_artifact(
        mlp(), tmp_path / "new.so", ["sigmoid_2"], hand=lambda r: ({"versions": {"onnxruntime": "99.1.0"}}, r.model)
    )
    said = run("open", newer, **onnxruntime_library())
    assert "it was built with onnxruntime 99.1.0, found is 1." in said
