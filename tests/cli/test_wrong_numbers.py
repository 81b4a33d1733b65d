"""A build whose numbers are wrong is not written, and the guilty tensor is named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.conftest import mlp
from tvmstack.cli.boundary import run
from tvmstack.lower.converters import CONVERTERS

pytestmark = pytest.mark.cpu


@pytest.fixture
def wrong_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower every Sigmoid as a Tanh."""
    monkeypatch.setitem(CONVERTERS, ("", "Sigmoid"), CONVERTERS[("", "Tanh")])


@pytest.mark.usefixtures("wrong_sigmoid")
def test_the_first_tensor_that_differs_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    assert run(["-q", "compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so")]) == 7
    err = capsys.readouterr().err
    assert "output 'y'" in err
    assert "first tensor that differs is 's', made by node 'sigmoid_2'" in err
    assert "--onnxruntime-nodes sigmoid_2" in err
    assert "Traceback" not in err
    assert not (tmp_path / "m.so").exists()


@pytest.mark.usefixtures("wrong_sigmoid")
def test_the_hint_that_is_given_helps(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    words = [
        "-q",
        "compile",
        str(tmp_path / "m.onnx"),
        "-o",
        str(tmp_path / "m.so"),
        "--onnxruntime-nodes",
        "sigmoid_2",
    ]
    assert run(words) == 0


@pytest.mark.usefixtures("wrong_sigmoid")
def test_verify_tells_a_wrong_artifact_from_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    assert run(["-q", "compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so"), "--no-verify"]) == 0
    capsys.readouterr()
    assert run(["-q", "verify", str(tmp_path / "m.so"), "--model", str(tmp_path / "m.onnx")]) == 7
    assert "differs from" in capsys.readouterr().err
    assert run(["-q", "verify", str(tmp_path / "m.so")]) == 7
    assert "--model" in capsys.readouterr().err
