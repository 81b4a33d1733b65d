from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import mlp
from tvmstack.core.errors import BackendError, UsageError
from tvmstack.measure.bench import PeerSpec, bench
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
