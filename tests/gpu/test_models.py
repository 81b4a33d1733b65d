"""Every kernel of four well-known networks, as an untuned build for a GPU has it, equals numpy on PoCL."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from benchmarks.models import bert, deit_tiny, mobilenet_v2, resnet50
from tests.gpu import pocl
from tests.gpu.check import gap_of, lowered_for_gpu

pytestmark = [pytest.mark.gpu_sim, pytest.mark.timeout(900)]

_MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "deit_tiny": deit_tiny,
    "bert_tiny": lambda: bert(2, 128, 2, 32, words=1000),
}


@pytest.mark.skipif(bool(pocl.missing()), reason=pocl.missing())
@pytest.mark.parametrize("name", _MODELS)
def test_all_kernels_equal_numpy(name: str) -> None:
    prepared = lowered_for_gpu(onnx.shape_inference.infer_shapes(_MODELS[name]()))
    gaps = {k.name: gap_of(k, prepared.device) for k in prepared.lowered.kernels}
    assert len(gaps) > 15
    assert {n: g for n, g in gaps.items() if not g < 2e-5} == {}
