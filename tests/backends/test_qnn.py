"""Qualcomm's HTP: what is said without its library, and in its emulator one context binary that gives the numbers."""

import numpy as np
import pytest

from tests.graph.build import model, node
from tvmstack import driver
from tvmstack.backends.base import Support
from tvmstack.backends.qnn import QnnBackend
from tvmstack.backends.registry import choose
from tvmstack.core.errors import SetupError, UsageError
from tvmstack.core.packages import installed_version
from tvmstack.runtime import load
from tvmstack.runtime.engines.qnn import open_engine

needs_qnn = pytest.mark.skipif(
    not installed_version("onnxruntime-qnn"), reason="onnxruntime-qnn is not installed: pip install 'tvmstack[qnn]'"
)


def quantised(scale: float = 0.05):
    """relu(conv(x)), quantised to uint8 at every step."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(0, 255, (8, 4, 3, 3)).astype(np.uint8),
        "step": np.float32(scale),
        "zero": np.uint8(128),
        "wide": np.float32(1.0),
    }
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], "xq"),
        node("DequantizeLinear", ["xq", "step", "zero"], "xd"),
        node("DequantizeLinear", ["w", "step", "zero"], "wd"),
        node("Conv", ["xd", "wd"], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["c", "wide", "zero"], "cq"),
        node("DequantizeLinear", ["cq", "wide", "zero"], "y"),
    ]
    return model(nodes, {"x": (1, 4, 8, 8)}, weights=weights)


@pytest.mark.null
def test_a_wrong_architecture_is_refused_by_us():
    with pytest.raises(UsageError, match=r"no target 'htp:v74'; did you mean htp:v7"):
        choose("qnn:htp:v74")


@pytest.mark.null
def test_without_its_library_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("tvmstack.backends.qnn.installed_version", lambda package: "")
    ability = QnnBackend().probe()
    assert not ability.can_compile
    assert "not installed" in ability.missing
    assert "tvmstack[qnn]" in ability.hint


@pytest.mark.null
def test_a_context_of_another_release_is_refused(monkeypatch):
    monkeypatch.setattr("tvmstack.runtime.engines.qnn.installed_version", lambda package: "2.6.0")
    row = {"digest": "0" * 16, "versions": {"onnxruntime-qnn": "2.7.0"}, "options": {"architecture": "73"}}
    with pytest.raises(SetupError, match=r"context of onnxruntime-qnn 2\.7\.0, installed is 2\.6\.0"):
        open_engine(b"", row, 1)


@needs_qnn
@pytest.mark.cpu
def test_one_region_one_context_within_one_quantum(tmp_path):
    artifact = driver.compile(quantised(), backends=["qnn:htp:v73"], store=tmp_path / "s.db")
    [row] = artifact.manifest.plan["regions"]
    assert (row["backend"], row["target"], row["engine"]) == ("qnn", "htp:v73", "qnn")
    plain = driver.compile(quantised(), store=tmp_path / "s.db")
    x = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)
    with load(artifact.path) as ours, load(plain.path) as theirs:
        gap = np.abs(ours.run({"x": x})["y"] - theirs.run({"x": x})["y"])
    assert gap.max() <= 1.0 + 1e-5


@needs_qnn
@pytest.mark.cpu
def test_a_node_that_the_chip_does_not_take_stays_out_with_the_reason():
    from tvmstack.backends.registry import open_backend

    proto = model([node("Relu", ["x"], "r"), node("Det", ["r"], "y")], {"x": (2, 4, 4)})
    backend, target = open_backend("qnn:htp:v73")
    answers = backend.query(proto.SerializeToString(), target)
    assert answers["Det_y"].support is not Support.SUPPORTED
    assert answers["Det_y"].reason
