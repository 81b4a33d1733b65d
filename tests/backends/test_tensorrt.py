"""TensorRT: engines built without a GPU, refusals by node, and what is said where something is missing."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
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


DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *c) { return c != (void *)1; }
int cuStreamCreate(void **s, unsigned f) { *s = (void *)7; return 0; }
int cuStreamDestroy_v2(void *s) { return s != (void *)7; }
int cuStreamSynchronize(void *s) { return s != (void *)7; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { if (n > 1000000) return 2; *p = (size_t)malloc(n); return 0; }
int cuMemFree_v2(unsigned long long p) { free((void *)p); return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long p, void *h, size_t n, void *s) { memcpy((void *)p, h, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *h, unsigned long long p, size_t n, void *s) { memcpy(h, (void *)p, n); return 0; }
"""


class Doubling:
    """In TensorRT's place: y = x + x, computed where the addresses point."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def create_execution_context(self) -> Doubling:
        return Doubling()

    def set_input_shape(self, name: str, shape: Any) -> bool:
        self.shape = tuple(shape)
        return name == "x"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape

    def set_tensor_address(self, name: str, address: int) -> None:
        self.places[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        count = int(np.prod(self.shape))
        x, y = (np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.places[n])) for n in "xy")
        y[:] = x + x
        return stream == 7


def test_tensors_travel_to_the_gpu_and_back(tmp_path: Path) -> None:
    """The driver here is malloc and memcpy in C, so that addresses wider than 32 bits and argument types count."""
    (tmp_path / "cuda.c").write_text(DRIVER)
    library = tmp_path / "cuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    row = {"engine_inputs": ["x"], "engine_outputs": ["y"], "outputs": [{"dtype": "float32"}]}
    opened = engine._Engine(cuda.Cuda(ctypes.CDLL(str(library)), 0), [Doubling()], row)
    for count in (4, 100, 8):
        x = np.arange(2 * count, dtype=np.float32).reshape(2, count)[:, ::-1]
        (y,) = opened.run([x])
        assert np.array_equal(y, x + x)
    with pytest.raises(SetupError, match="cuMemAlloc_v2: CUDA error 2"):
        opened.run([np.zeros(1_000_000, np.float32)])
    opened.close()
