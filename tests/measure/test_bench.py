from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from rich.console import Console

from tests.conftest import mlp
from tvmstack.core.errors import BackendError, UsageError
from tvmstack.measure.bench import BenchReport, PeerResult, PeerSpec, bench
from tvmstack.measure.peer import PEERS
from tvmstack.measure.stats import summarise
from tvmstack.report.timing import bench_page

pytestmark = pytest.mark.cpu


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "mlp.onnx"
    onnx.save(mlp(), path)
    return str(path)


FEED = {"x": np.ones((2, 32), np.float32)}


def test_two_peers_take_turns_and_a_program_against_itself_is_near_one(model: str) -> None:
    twice = [PeerSpec("onnxruntime", model, "first"), PeerSpec("onnxruntime", model, "second")]
    report = bench(twice, FEED, threads=1, rounds=3, seconds=0.05)
    data = report.to_json()
    assert [p["name"] for p in data["peers"]] == ["first", "second"]
    assert all(len(p["rounds_s"]) == 3 for p in data["peers"])
    assert data["peers"][1]["ratio"]["low"] <= data["peers"][1]["ratio"]["median"] <= data["peers"][1]["ratio"]["high"]
    assert 0.1 < data["peers"][1]["ratio"]["median"] < 10
    assert data["peers"][0]["peak_rss_bytes"] > 10 << 20
    assert bench_page(data)


def test_a_peer_that_fails_says_why_in_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(BackendError, match=r"onnxruntime could not run broken\.onnx"):
        bench([PeerSpec("onnxruntime", str(broken))], FEED, threads=1, rounds=1, seconds=0.01)


def test_an_unknown_peer_gets_the_nearest_name(model: str) -> None:
    with pytest.raises(UsageError, match="did you mean onnxruntime"):
        bench([PeerSpec("onnxruntim", model)], FEED, threads=1, rounds=1, seconds=0.01)


def test_a_peer_that_is_not_installed_is_told_of_and_the_others_are_measured(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text("raise ImportError('hidden')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    peers = [PeerSpec("onnxruntime", model, "first"), PeerSpec("openvino", model), PeerSpec("onnxruntime", model)]
    data = bench(peers, FEED, threads=1, rounds=1, seconds=0.01).to_json()
    assert [p["name"] for p in data["peers"]] == ["first", "onnxruntime"]
    (missing,) = data["missing"]
    assert missing["error"] == "SetupError"
    assert missing["reason"].startswith("openvino was not measured: it is not installed; pip install openvino")
    console = Console(width=120, file=io.StringIO())
    console.print(bench_page(data))
    assert "pip install openvino" in console.file.getvalue()


def test_openvino_computes_in_f32_with_the_threads_it_is_given(model: str) -> None:
    pytest.importorskip("openvino")
    peers = [PeerSpec("onnxruntime", model), PeerSpec("openvino", model)]
    data = bench(peers, FEED, threads=1, rounds=1, seconds=0.01).to_json()
    assert [p["name"] for p in data["peers"]] == ["onnxruntime", "openvino"], data["missing"]
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)}
    run, _ = PEERS["openvino"](model, inputs, 1)
    right = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
    found = next(iter(run().to_dict().values()))  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, right, atol=1e-5)  # bf16 would be wrong by 1e-2


def test_ratio_is_the_peers_time_over_ours() -> None:
    def result(name: str, seconds: float) -> PeerResult:
        return PeerResult(name, "", summarise([seconds]), (seconds,), 0)

    report = BenchReport((result("ours", 1.0), result("slower", 3.0)), 1, "")
    assert report.ratio(1).median == 3.0
