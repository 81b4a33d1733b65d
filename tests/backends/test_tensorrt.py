"""TensorRT: engines built without a GPU, refusals by node, and what is said where something is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from tests.backends.test_handoff import SAMPLES, Records, whole_region
from tvmstack.backends import tensorrt
from tvmstack.backends.base import Options, Support
from tvmstack.backends.registry import open_backend
from tvmstack.backends.tensorrt import TensorRt, chosen_module
from tvmstack.backends.vendor import is_importable
from tvmstack.core.errors import SetupError, UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.driver.handoff import hand_over
from tvmstack.runtime.engines import cuda, open_engine
from tvmstack.runtime.engines import tensorrt as engine

pytestmark = pytest.mark.cpu

needs_wheel = pytest.mark.skipif(not is_importable("tensorrt_rtx"), reason="tensorrt-rtx-cu12 is not installed")
ROW = {
    "engine": "tensorrt",
    "digest": "abc",
    "target": "sm86",
    "versions": {"tensorrt_rtx": "1.7.1"},
    "engine_inputs": [],
    "engine_outputs": [],
    "outputs": [],
}


@pytest.mark.parametrize(
    ("installed", "gpu", "chosen"),
    [
        (["tensorrt", "tensorrt_rtx"], True, "tensorrt"),
        (["tensorrt", "tensorrt_rtx"], False, "tensorrt_rtx"),
        (["tensorrt_rtx"], True, "tensorrt_rtx"),
        (["tensorrt"], False, ""),
        ([], True, ""),
    ],
)
def test_plain_tensorrt_only_builds_where_a_gpu_is(installed: list[str], gpu: bool, chosen: str) -> None:
    assert chosen_module(installed, gpu) == chosen


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "is_importable", lambda _: False)
    assert not TensorRt().probe().can_compile
    with pytest.raises(SetupError, match=r"neither tensorrt_rtx nor tensorrt.*tvmstack\[tensorrt\]"):
        open_backend("tensorrt")


def test_an_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpu_targets", tuple)
    with pytest.raises(UsageError, match="sm9"):
        open_backend("tensorrt:sm90")


@pytest.mark.parametrize(
    ("here", "gpus", "words"),
    [
        ("", (), "not installed: pip install tensorrt-rtx-cu12==1.7.1"),
        ("1.6.0", (), "an engine of tensorrt_rtx 1.7.1, installed is 1.6.0"),
        ("1.7.1", (), "has no NVIDIA GPU"),
        ("1.7.1", ("sm89",), "this machine has sm89"),
    ],
)
def test_an_engine_that_cannot_run_here_is_a_sentence(
    here: str, gpus: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "installed_version", lambda _: here)
    monkeypatch.setattr(cuda, "gpu_targets", lambda: gpus)
    with pytest.raises(SetupError, match=words):
        open_engine(b"", ROW, 1)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"profile": {}}, "no option 'profile'"),
        ({"profiles": {"z": []}}, "which is no input"),
        ({"profiles": {"x": [[4, 32], [2, 32], [1, 32]]}}, "rising shapes"),
        ({"profiles": {"x": [[1, 8], [2, 32], [4, 32]]}}, "rising shapes"),
    ],
)
def test_a_wrong_profile_is_refused(extra: dict[str, Any], words: str) -> None:
    backend = TensorRt()
    with pytest.raises(UsageError, match=words):
        backend.compile(_dynamic(), backend.targets()[0], Options(extra=extra), {})


def _dynamic() -> Any:
    return dataclasses.replace(whole_region(), inputs=(TensorSpec("x", "float32", ("n", 32)),))


@needs_wheel
@pytest.mark.parametrize("target", ["sm86", "sm120"])
def test_an_engine_is_built_without_a_gpu(target: str, tmp_path: Path) -> None:
    region, (backend, wanted) = whole_region(), open_backend(f"tensorrt:{target}")
    blob = hand_over(region, backend, wanted, Options(threads=1), SAMPLES, Records(tmp_path))
    assert len(blob.data) > 1000
    assert (blob.target, blob.inputs, blob.outputs) == (target, region.inputs, region.outputs)
    assert set(blob.versions) == {"tensorrt_rtx"}


@needs_wheel
def test_refused_nodes_are_named_and_their_neighbours_taken() -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4, 4]), ("y", [2])))
    nodes = [helper.make_node("Relu", ["x"], ["a"], "relu"), helper.make_node("Det", ["a"], ["y"], "det")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    backend, target = open_backend("tensorrt")
    said = backend.query(model.SerializeToString(), target)
    assert said["relu"].support is Support.SUPPORTED
    assert said["det"].support is Support.UNSUPPORTED
    assert "Det" in said["det"].reason
