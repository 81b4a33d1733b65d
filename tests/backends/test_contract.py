"""The contract, kept by ours and broken on purpose."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.conftest import mlp
from tvmstack import driver
from tvmstack.artifact.check import check
from tvmstack.artifact.elf import read_sections
from tvmstack.artifact.manifest import REGIONS, read_manifest
from tvmstack.backends.base import Support
from tvmstack.backends.registry import open_backend
from tvmstack.cli.boundary import run
from tvmstack.core.errors import ArtifactError, SetupError
from tvmstack.driver.contract import check_backend, small_regions
from tvmstack.runtime import load

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_ours_keep_the_contract(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    rows = check_backend(name)
    assert [row for row in rows if not row.ok] == []
    assert sum("equals onnxruntime" in row.words for row in rows) == 3
    assert capfd.readouterr() == ("", "")


def test_a_back_end_that_breaks_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmstack.backends.openvino import OpenVino

    def spoilt(self: OpenVino, *_: Any) -> Any:
        Path("left.txt").write_text("x")
        raise ValueError("out of luck")

    monkeypatch.setattr(OpenVino, "compile", spoilt)
    monkeypatch.setattr(OpenVino, "query", lambda *_: {})
    broken = {row.name: row.words for row in check_backend("openvino") if not row.ok}
    assert broken["query float convolution"] == "it gives no answer for node conv"
    assert "it raised ValueError, not a BackendError: out of luck" in broken["refusal"]
    Path("left.txt").unlink()


def test_prints_are_found_out(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from tvmstack.backends.openvino import OpenVino

    probe, targets = OpenVino.probe, OpenVino.targets

    def loud(self: OpenVino) -> Any:
        os.write(1, b"hello from the vendor\n")
        return targets(self)

    def printing(self: OpenVino) -> Any:
        sys.stdout.write("and from Python\n")
        return probe(self)

    monkeypatch.setattr(OpenVino, "targets", loud)
    monkeypatch.setattr(OpenVino, "probe", printing)
    region = {"wave": small_regions()["float activation"]}
    broken = {row.name: row.words for row in check_backend("openvino", regions=region) if not row.ok}
    assert broken["targets"] == "it prints: hello from the vendor"
    assert broken["probe"] == "it prints: and from Python"
    capfd.readouterr()


def test_a_key_that_changes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmstack.backends.openvino import OpenVino

    probe, asked = OpenVino.probe, itertools.count()
    monkeypatch.setattr(OpenVino, "probe", lambda self: dataclasses.replace(probe(self), version=f"1.{next(asked)}"))
    region = {"wave": small_regions()["float activation"]}
    broken = {row.name: row.words for row in check_backend("openvino", regions=region) if not row.ok}
    assert broken["key wave"] == "the same region asks for another key the second time: no rebuild finds its blob"


def test_an_artifact_holds_a_blob_that_the_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMSTACK_STORE", str(tmp_path / "store.db"))
    path = tmp_path / "m.so"
    driver.compile(mlp(), backends=["openvino"], shipped=False).save(path)
    (row,) = read_manifest(path).plan["regions"]
    assert (row["backend"], row["engine"], row["target"]) == ("openvino", "openvino", "cpu")
    assert row["versions"]["openvino"]
    assert all(r.verdict for r in check(path))
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    with load(path) as session:
        assert np.isfinite(session.run({"x": x})["y"]).all()


def test_a_blob_of_another_release_or_in_anothers_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVMSTACK_STORE", str(tmp_path / "store.db"))
    one, other = tmp_path / "one.so", tmp_path / "other.so"
    for seed, path in enumerate((one, other)):
        model = mlp()
        for weight in model.graph.initializer:
            weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * np.float32(1 + seed / 8)).tobytes()
        driver.compile(model, backends=["openvino"], shipped=False).save(path)
    places = [read_sections(path)[REGIONS] for path in (one, other)]
    assert places[0].size == places[1].size
    data, foreign = bytearray(one.read_bytes()), other.read_bytes()
    data[places[0].offset : places[0].end] = foreign[places[1].offset : places[1].end]
    mixed = tmp_path / "mixed.so"
    mixed.write_bytes(data)
    with pytest.raises(ArtifactError, match="its regions is damaged"):
        load(mixed)
    monkeypatch.setattr(sys.modules["tvmstack.artifact.check"], "installed_version", lambda _: "2020.1")
    with pytest.raises(SetupError, match=r"blobs of openvino:cpu, which want openvino .*; installed is 2020\.1"):
        load(one)


def test_the_list_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmstack.backends.openvino.installed_version", lambda _: "")
    assert run(["backend", "ls", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["backends"]}
    assert rows["openvino"]["hint"] == "pip install 'tvmstack[openvino]'"
    assert rows["onnxruntime"]["can_compile"]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_an_operator_nobody_knows_is_refused_and_the_rest_taken(name: str) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xyam"]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Foo", ["a"], ["m"], "foo", domain="my"),
        helper.make_node("Sigmoid", ["m"], ["y"], "sigmoid"),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:2], value_info=values[2:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    backend, target = open_backend(name)
    verdicts = backend.query(model.SerializeToString(), target)
    assert {n: v.support for n, v in verdicts.items()} == {
        "relu": Support.SUPPORTED,
        "foo": Support.UNSUPPORTED,
        "sigmoid": Support.SUPPORTED,
    }
    assert "Foo" in verdicts["foo"].reason
