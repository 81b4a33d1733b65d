from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.conftest import mlp
from tvmstack.artifact.verify import Case, compare, make_cases, verify
from tvmstack.core.errors import ModelError
from tvmstack.core.model import TensorSpec
from tvmstack.measure.oracle import Oracle

pytestmark = pytest.mark.null
X, Y = TensorSpec("x", "float32", (4, 8)), TensorSpec("y", "float32", (4, 8))
Arrays = Mapping[str, np.ndarray]
PLAIN = Case("plain", {})


def verdict(ours: object, theirs: object, dtype: str = "float32", case: Case = PLAIN) -> bool:
    a, b = np.asarray(ours, dtype), np.asarray(theirs, dtype)
    return compare([TensorSpec("y", dtype, a.shape)], {"y": a}, {"y": b}, case)[0].ok


@pytest.mark.parametrize(
    ("ours", "theirs", "dtype", "right"),
    [
        ([1.0, 2.0], [1.0, 2.0019], "float32", True),
        ([1.0, 2.0], [1.0, 2.0021], "float32", False),
        ([1e-9, 1.0], [5e-4, 1.0], "float32", True),
        ([0.0, 0.0], [0.0, 0.0], "float32", True),
        ([0.0, 0.01], [0.0, 0.0], "float32", False),
        ([np.nan, 1.0], [np.nan, 1.0], "float32", True),
        ([np.nan, 1.0], [1.0, np.nan], "float32", False),
        ([0.5, 1.0], [np.nan, 1.0], "float32", False),
        ([np.inf, 1.0], [np.inf, 1.0], "float32", True),
        ([-np.inf, 1.0], [np.inf, 1.0], "float32", False),
        ([np.nan, 1.0], [np.inf, 1.0], "float32", False),
        ([1.0, 2.01], [1.0, 2.0], "float16", True),
        ([1, 2], [1, 2], "int64", True),
        ([1, 3], [1, 2], "int64", False),
        ([True, False], [True, True], "bool", False),
        ([1, 2], [1, 4], "uint8", False),
        ([1] * 99 + [2], [1] * 100, "uint8", True),
        ([2] * 100, [1] * 100, "uint8", False),
        ([], [], "float32", True),
    ],
)
def test_values_are_right_or_wrong(ours: object, theirs: object, dtype: str, right: bool) -> None:
    assert verdict(ours, theirs, dtype) is right


def test_a_wrong_value_is_named_with_its_place() -> None:
    a = np.zeros((4, 8), np.float32)
    b = a.copy()
    b[2, 5] = 3
    (difference,) = compare([Y], {"y": a}, {"y": b}, PLAIN)
    assert difference.reason == "at [2, 5] is 0, the original gives 3"


@pytest.mark.parametrize("other", [np.zeros((8, 4), np.float32), np.zeros((4, 8), np.float64)])
def test_another_shape_or_type_is_wrong(other: np.ndarray) -> None:
    (difference,) = compare([Y], {"y": other}, {"y": np.zeros((4, 8), np.float32)}, PLAIN)
    assert not difference.ok
    assert "the original gives float32[4, 8]" in difference.reason


def test_what_the_original_overflows_is_left_out_of_a_large_case() -> None:
    large = Case("large", {}, overflows=True)
    assert verdict([1.0, 7.0], [1.0, np.inf], case=large)
    assert not verdict([np.inf, 7.0], [1.0, np.inf], case=large)


def test_cases_fit_the_types_of_the_inputs() -> None:
    specs = [X, TensorSpec("ids", "int64", (1, 50)), TensorSpec("attention_mask", "int64", (1, 50))]
    specs += [TensorSpec("image", "uint8", (1, 100)), TensorSpec("flag", "bool", ())]
    cases = {case.name: case.feeds for case in make_cases(specs)}
    assert list(cases) == ["random 0", "random 1", "zeros", "large", "nan", "larger integers"]
    assert all(
        feeds[s.name].shape == s.shape and feeds[s.name].dtype == s.dtype for feeds in cases.values() for s in specs
    )
    assert set(np.unique(cases["random 0"]["ids"])) == {0, 1}
    assert cases["larger integers"]["ids"].max() > 50
    assert cases["larger integers"]["attention_mask"].max() == 1
    assert cases["random 0"]["image"].max() > 200
    assert np.abs(cases["large"]["x"]).max() > 1000
    assert np.isnan(cases["nan"]["x"]).sum() == 1
    assert not np.array_equal(cases["random 0"]["x"], cases["random 1"]["x"])


def test_cases_are_the_same_every_time() -> None:
    for one, other in zip(make_cases([X]), make_cases([X]), strict=True):
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])


def test_cases_without_floats_have_no_nan() -> None:
    assert [c.name for c in make_cases([TensorSpec("i", "uint8", (3,))])] == ["random 0", "random 1", "zeros"]


def run_double(feeds: Arrays) -> dict[str, np.ndarray]:
    return {"y": feeds["x"] * 2}


def test_equal_programs_agree() -> None:
    result = verify([Y], make_cases([X]), run_double, run_double)
    assert result.ok
    assert result.cases == 5
    assert result.worst == 0
    assert result.to_json()["failures"] == []


def test_a_wrong_program_fails_where_it_is_wrong() -> None:
    result = verify([Y], make_cases([X]), lambda f: {"y": np.maximum(f["x"], 0) * 2}, run_double)
    assert {case for case, _ in result.failures} == {"random 0", "random 1", "large", "nan"}
    assert not result.ok


def test_a_case_the_original_refuses_is_skipped_and_said() -> None:
    def picky(feeds: Arrays) -> dict[str, np.ndarray]:
        if np.isnan(feeds["x"]).any():
            raise ModelError("no NaN please")
        return run_double(feeds)

    result = verify([Y], make_cases([X]), run_double, picky)
    assert result.ok
    assert result.cases == 4
    assert result.skipped == ("nan: no NaN please",)


def test_a_model_that_refuses_everything_cannot_be_compared() -> None:
    def never(_: Arrays) -> dict[str, np.ndarray]:
        raise ModelError("never")

    with pytest.raises(ModelError, match="refuses every input"):
        verify([Y], make_cases([X]), run_double, never)


def test_an_original_that_jumps_at_a_rounding_error_settles_nothing() -> None:
    def jumpy(feeds: Arrays) -> dict[str, np.ndarray]:
        return {"y": np.sin(feeds["x"].astype(np.float64) * 1e9).astype(np.float32)}

    def ours(feeds: Arrays) -> dict[str, np.ndarray]:
        return jumpy({"x": feeds["x"] * np.float32(1 + 1e-6)})

    result = verify([Y], make_cases([X])[:2], ours, jumpy)
    assert result.ok
    assert len(result.unsettled) == 2


def test_an_original_that_is_steady_excuses_nothing() -> None:
    result = verify([Y], make_cases([X])[:1], lambda f: {"y": f["x"] * 2.01}, run_double)
    assert not result.ok


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_the_oracle_takes_a_model_in_any_form(form: str, tmp_path: Path) -> None:
    model = mlp()
    onnx.save(model, tmp_path / "m.onnx")
    source = {"path": tmp_path / "m.onnx", "bytes": model.SerializeToString(), "proto": model}[form]
    oracle = Oracle(source)
    assert oracle.inputs == ("x",)
    assert oracle.run({"x": np.zeros((2, 32), np.float32), "unused": np.zeros(1)})["y"].shape == (2, 8)


def test_the_oracle_finds_external_data(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert Oracle(tmp_path / "m.onnx").run({"x": np.zeros((2, 32), np.float32)})["y"].shape == (2, 8)


def test_the_oracle_says_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        Oracle(b"no model")
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    values = [("x", TensorProto.FLOAT, [4]), ("i", TensorProto.INT64, [2]), ("y", TensorProto.FLOAT, [2])]
    x, i, y = (helper.make_tensor_value_info(*v) for v in values)
    graph = helper.make_graph([node], "g", [x, i], [y])
    oracle = Oracle(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with pytest.raises(ModelError, match="onnxruntime refuses the inputs"):
        oracle.run({"x": np.zeros(4, np.float32), "i": np.array([0, 40])})
