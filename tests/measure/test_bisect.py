from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

from tests.conftest import attention, mlp
from tvmstack.measure.bisect import cut_at, first_difference, inner_tensors

pytestmark = pytest.mark.null


@pytest.mark.parametrize("guilty", range(17))
def test_the_first_that_differs_is_found_in_few_trials(guilty: int) -> None:
    asked: list[int] = []

    def differs(item: int) -> bool:
        asked.append(item)
        return item >= guilty

    assert first_difference(range(17), differs) == guilty
    assert len(asked) <= 5


def test_a_cut_model_gives_the_inner_tensor_and_drops_the_rest() -> None:
    whole = onnx.shape_inference.infer_shapes(mlp())
    model = onnx_ir.from_proto(whole)
    tensors = inner_tensors(model)
    assert tensors == [("h", "matmul_0"), ("h2", "add_1"), ("s", "sigmoid_2"), ("y", "matmul_3")]
    cut = cut_at(model, "s")
    assert [n.name for n in cut.graph] == ["matmul_0", "add_1", "sigmoid_2"]
    assert len(list(model.graph)) == 4
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(cut).SerializeToString())
    (s,) = session.run(None, {"x": np.zeros((2, 32), np.float32)})
    assert s.shape == (2, 48)
    assert ((s > 0) & (s < 1)).all()


def test_tensors_come_in_an_order_the_model_can_run_in() -> None:
    model = onnx_ir.from_proto(onnx.shape_inference.infer_shapes(attention()))
    names = [name for name, _ in inner_tensors(model)]
    assert names.index("qt") < names.index("scores") < names.index("shares") < names.index("y")
