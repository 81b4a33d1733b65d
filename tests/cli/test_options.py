"""What each argv means, and what is said to an argv that means nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvmstack import driver
from tvmstack.cli.boundary import run
from tvmstack.cli.options import frozen_from_texts, inputs_from_texts, shapes_from_texts
from tvmstack.core.errors import UsageError

pytestmark = pytest.mark.null

COMPILE: dict[str, Any] = {
    "shapes": {},
    "device": None,
    "board": None,
    "tune": None,
    "trials": None,
    "store": None,
    "verify": True,
    "onnxruntime_nodes": (),
    "winograd": True,
    "threads": None,
    "progress": None,
    "freeze": {},
    "inputs": {},
    "backends": [],
    "min_region": 1,
    "memory_budget": None,
    "plan": None,
}
CASES = {
    "nothing but the output": ([], {}),
    "two shapes": (["--shape", "x=1,3,8,8", "--shape", "y=4"], {"shapes": {"x": (1, 3, 8, 8), "y": (4,)}}),
    "a scalar": (["--shape", "sr="], {"shapes": {"sr": ()}}),
    "a name with an equals sign": (["--shape", "a=b=2"], {"shapes": {"a=b": (2,)}}),
    "tuning time": (["--tune", "2m"], {"tune": "2m"}),
    "trials": (["--trials", "64"], {"trials": 64}),
    "store": (["--store", "here.db"], {"store": "here.db"}),
    "no comparison": (["--no-verify"], {"verify": False}),
    "threads": (["--threads", "3"], {"threads": 3}),
    "device": (["--device", "cpu:haswell"], {"device": "cpu:haswell"}),
    "nodes for onnxruntime": (
        ["--onnxruntime-nodes", "a", "--onnxruntime-nodes", "b"],
        {"onnxruntime_nodes": ("a", "b")},
    ),
    "back ends": (
        ["--backend", "openvino,tvm", "--backend", "qnn:htp:v73"],
        {"backends": ["openvino", "tvm", "qnn:htp:v73"]},
    ),
    "limits of a plan": (
        ["--min-region", "4", "--memory-budget", "1.5MiB"],
        {"min_region": 4, "memory_budget": 3 << 19},
    ),
    "a plan": (["--plan", "earlier.so"], {"plan": "earlier.so"}),
    "frozen inputs": (["--freeze", "sr=16000", "--freeze", "gain=0.5"], {"freeze": {"sr": 16000, "gain": 0.5}}),
}


@pytest.mark.parametrize("case", CASES)
def test_compile_reads_its_options(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = CASES[case]
    seen: dict[str, Any] = {}

    def fake(model: str, **options: Any) -> Any:
        seen.update(options, model=model)
        return SimpleNamespace(save=lambda path: seen.update(output=path), report={})

    monkeypatch.setattr(driver, "compile", fake)
    out = str(tmp_path / "m.so")
    assert run(["--quiet", "compile", "model.onnx", "-o", out, "--json", *words]) == 0
    assert seen == {**COMPILE, **expected, "model": "model.onnx", "output": out}
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1.5min", 90), ("1h", 3600), (5, 5), (None, None)]
)
def test_times_are_read(text: Any, seconds: float | None) -> None:
    assert driver.seconds_from(text) == seconds


@pytest.mark.parametrize("text", ["2 weeks", "m", "", "-3s", "0", 0, -1])
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match=r"time"):
        driver.seconds_from(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x", "not NAME=VALUE"),
        ("x=1,b", "whole numbers"),
        ("x=0,3", "1 or more"),
        ("=3", "not NAME=VALUE"),
        ("x=1,,3", "whole numbers"),
    ],
)
def test_a_shape_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        shapes_from_texts([text])


def test_a_frozen_value_must_be_a_number() -> None:
    with pytest.raises(UsageError, match="must be a number"):
        frozen_from_texts(["sr=fast"])


def test_an_input_file_is_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"cannot read a \.npy array"):
        inputs_from_texts([f"x={tmp_path / 'x.npy'}"])


def test_output_in_a_missing_folder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["compile", "no-such-model.onnx", "-o", str(tmp_path / "gone" / "m.so")])
    assert code == 4
    assert "there is no folder" in capsys.readouterr().err


def test_output_that_is_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", "no-such-model.onnx", "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
