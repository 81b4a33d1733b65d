"""Regions handed over: compared, kept, timed, and run inside an artifact."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import mlp
from tvmstack.backends.base import Blob, NodeVerdict, Options, Support
from tvmstack.backends.registry import open_backend
from tvmstack.cli.boundary import run
from tvmstack.core.errors import BackendError, SetupError
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region
from tvmstack.driver.handoff import hand_over, price, region_facts
from tvmstack.runtime.engines import open_engine

pytestmark = pytest.mark.cpu

OPTIONS = Options(threads=1)
SAMPLES = {"x": [np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)]}


def whole_region() -> Region:
    model = mlp()
    data = model.SerializeToString()
    inputs, outputs = (TensorSpec("x", "float32", (2, 32)),), (TensorSpec("y", "float32", (2, 8)),)
    names = tuple(node.name for node in model.graph.node)
    return Region(hashlib.sha256(data).hexdigest()[:16], data, inputs, outputs, names, ())


class Records:
    def __init__(self, folder: Path) -> None:
        self.name = str(folder / "store.db")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


class Counted:
    """OpenVINO with its calls counted and, where asked, another answer."""

    in_process, name = True, "openvino"

    def __init__(self, spoil: Any = None, support: Support = Support.SUPPORTED) -> None:
        self.inner, self.target = open_backend("openvino")
        self.spoil, self.support, self.compiled = spoil, support, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def query(self, model: bytes, target: Any) -> dict[str, NodeVerdict]:
        return {name: NodeVerdict(self.support, "said so") for name in self.inner.query(model, target)}

    def compile(self, region: Region, *args: Any) -> Blob:
        self.compiled += 1
        blob = self.inner.compile(region, *args)
        return self.spoil(blob) if self.spoil else blob


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_region_is_right_and_timed(name: str, records: Records) -> None:
    backend, target = open_backend(name)
    region = whole_region()
    blob = hand_over(region, backend, target, OPTIONS, SAMPLES, records)
    cost = price(region, blob, backend, target, OPTIONS, SAMPLES, records)
    assert cost is not None
    assert cost.source == "measured"
    assert 0 < cost.seconds < 1
    assert price(region, blob, backend, target, OPTIONS, SAMPLES, records) == cost


def test_a_rebuild_touches_no_vendors_compiler(records: Records) -> None:
    backend, region = Counted(), whole_region()
    first = hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    again = hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    assert again == first
    assert backend.compiled == 1
    hand_over(region, backend, backend.target, Options(threads=2), SAMPLES, records)
    assert backend.compiled == 2


def test_a_damaged_blob_is_dropped_and_made_again(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    backend, region = Counted(), whole_region()
    hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    (file,) = Path(f"{records.name}.blobs").iterdir()
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    assert "is damaged (another digest) and is dropped" in caplog.text
    assert backend.compiled == 2


def test_wrong_numbers_are_refused_with_how_far_they_are_off(records: Records) -> None:
    other = mlp()
    for weight in other.graph.initializer:
        weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.5).tobytes()
    region = whole_region()
    wrong = dataclasses.replace(region, model=other.SerializeToString())

    class Wrong(Counted):
        def compile(self, region: Region, *args: Any) -> Blob:
            return super().compile(wrong, *args)

    backend = Wrong()
    with pytest.raises(BackendError, match=r"openvino:cpu computes y of region \w+ wrong: off by .*, allowed is"):
        hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    assert not Path(f"{records.name}.blobs").exists()


@pytest.mark.parametrize(
    ("support", "words"), [(Support.VENDOR_CPU, "would run it on the CPU"), (Support.UNSUPPORTED, "refuses it")]
)
def test_a_silent_fallback_is_an_error(support: Support, words: str, records: Records) -> None:
    backend = Counted(support=support)
    with pytest.raises(BackendError, match=rf"openvino:cpu {words}, node \w+: said so"):
        hand_over(whole_region(), backend, backend.target, OPTIONS, SAMPLES, records)


def test_other_tensors_than_the_regions_are_refused(records: Records) -> None:
    backend = Counted(spoil=lambda blob: dataclasses.replace(blob, outputs=(TensorSpec("y", "float16", (2, 8)),)))
    with pytest.raises(BackendError, match=r"gives region .* other outputs"):
        hand_over(whole_region(), backend, backend.target, OPTIONS, SAMPLES, records)


def test_the_engine_refuses_what_it_cannot_open(records: Records) -> None:
    backend, target = open_backend("openvino")
    region = whole_region()
    blob = hand_over(region, backend, target, OPTIONS, SAMPLES, records)
    row = region_facts(region, blob)
    with pytest.raises(
        SetupError, match=r"is a blob of openvino 2020\.1, installed is .*pip install openvino==2020\.1"
    ):
        open_engine(blob.data, {**row, "versions": {"openvino": "2020.1"}}, 1)
    with pytest.raises(SetupError, match="refuses region"):
        open_engine(b"\0" * len(blob.data), row, 1)
    with pytest.raises(SetupError, match=r"needs an engine that is not installed: .*did you mean openvino"):
        open_engine(blob.data, {**row, "engine": "openvinoo"}, 1)
    with pytest.raises(SetupError, match="runs only where that is"):
        open_engine(blob.data, {**row, "engine": ""}, 1)


def test_the_list_of_kept_regions_says_who_made_them_and_makes_none_younger(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, region = Counted(), whole_region()
    blob = hand_over(region, backend, backend.target, OPTIONS, SAMPLES, records)
    price(region, blob, backend, backend.target, OPTIONS, SAMPLES, records)
    for file in Path(f"{records.name}.blobs").iterdir():
        os.utime(file, (1e9, 1e9))
    assert run(["cache", "ls", "--blobs", "--store", records.name, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["blobs"]
    assert (row["backend"], row["target"], row["versions"]) == ("openvino", "cpu", dict(blob.versions))
    assert row["bytes"] > len(blob.data)
    assert row["used"] == 1e9
    assert run(["cache", "ls", "--blobs", "--store", records.name]) == 0
    assert "1 compiled region beside" in capsys.readouterr().out
    assert run(["cache", "ls", "--blobs", "--quarantined", "--store", records.name]) == 2
