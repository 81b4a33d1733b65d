"""Several models tuned together: what is shared is tuned once, and a broken one costs only itself."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.conftest import conv_block, mlp
from tests.tuning.test_tuning import DEVICE, dense_kernel
from tvmstack import schedules
from tvmstack.cli.boundary import run
from tvmstack.core.errors import UsageError
from tvmstack.driver.fleet import is_fleet, model_paths, tune_fleet
from tvmstack.store import open_store
from tvmstack.tuning import tune
from tvmstack.tuning.search import Search


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, one a second time under another name, and one that is no model."""
    there = tmp_path / "models"
    there.mkdir()
    onnx.save(mlp(), there / "a.onnx")
    onnx.save(mlp(), there / "b.onnx")
    (there / "broken.onnx").write_bytes(b"no model")
    return there


@pytest.mark.null
def test_words_become_files_each_once(folder: Path) -> None:
    assert [p.name for p in model_paths([folder, folder / "a.onnx"])] == ["a.onnx", "b.onnx", "broken.onnx"]
    assert is_fleet([folder])
    assert not is_fleet([folder / "a.onnx"])
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.onnx file"):
        model_paths([folder / "empty"])


@pytest.mark.cpu
def test_equal_kernels_are_tuned_once_and_a_broken_model_costs_only_itself(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "fleet.html"
    code = run(["-q", "tune", str(folder), "--trials", "4", "--json", "--report", str(page)])
    captured = capsys.readouterr()
    assert code == 3, captured.err
    assert captured.err.count("broken.onnx") >= 1
    data = json.loads(captured.out)
    errors = {row["name"]: row["error"] for row in data["fleet"]}
    assert errors["a"] is errors["b"] is None
    assert errors["broken"]
    assert data["trials"] == 4
    assert data["tasks"]
    assert all(set(task["models"]) == {"a", "b"} for task in data["tasks"])
    assert set(data["models"]) == {"a", "b"}
    assert data["models"]["a"] == data["models"]["b"]
    assert "broken.onnx" in page.read_text()


@pytest.mark.cpu
def test_a_shape_goes_to_the_models_that_have_the_input_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    onnx.save(mlp(batch="n"), tmp_path / "a.onnx")
    other = conv_block()
    for value in other.graph.input:
        value.name = "image"
    for node in other.graph.node:
        node.input[:] = ["image" if name == "x" else name for name in node.input]
    onnx.save(other, tmp_path / "b.onnx")
    with pytest.raises(UsageError, match="no model has an input imagee; did you mean image"):
        tune_fleet([tmp_path], shapes={"imagee": (1,)}, trials=1)
    data = tune_fleet([tmp_path], shapes={"x": (2, 32)}, trials=2)
    assert [row["error"] for row in data["fleet"]] == [None, None]


@pytest.mark.null
def test_a_gpu_is_refused_before_any_model_is_read(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be tuned for"):
        tune_fleet([folder], device="cuda:sm_80", trials=1)


@pytest.mark.cpu
def test_where_no_model_can_be_tuned_the_first_error_is_told(folder: Path) -> None:
    assert run(["-q", "tune", str(folder / "broken.onnx"), str(folder / "gone.onnx"), "--trials", "1"]) == 3


@pytest.mark.null
def test_a_second_counts_by_the_time_of_each_model_that_it_is_spent_in() -> None:
    module = importlib.import_module("tvmstack.tuning.tune")
    kernel, totals = dense_kernel(), {"small": 0.01, "large": 1.0}

    def share(users: dict[str, int], seconds: float) -> float:
        search = Search(kernel, schedules.default_choice(kernel.func, DEVICE), [])
        search.times[search.default.text] = seconds
        return module._share(module._Task(kernel, 1, search, users=users), totals)

    assert share({"small": 2}, 0.002) == pytest.approx(0.4)
    assert share({"large": 2}, 0.002) == pytest.approx(0.004)
    assert share({"small": 2, "large": 2}, 0.002) == pytest.approx(0.404)
    assert share({"small": 1}, 0.002) > share({"large": 50}, 0.002)


@pytest.mark.cpu
def test_a_kernel_counts_by_its_part_of_each_model(tmp_path: Path) -> None:
    small, large = replace(dense_kernel(8, "small.k"), calls=1), replace(dense_kernel(96, "large.k"), calls=50)
    both = replace(dense_kernel(24, "large.both"), calls=1)
    users = {small.workload: {"small": 1}, large.workload: {"large": 50}, both.workload: {"small": 1, "large": 1}}
    store = open_store(tmp_path / "s.db", shipped=False)
    try:
        report = tune([small, large, both], DEVICE, "p", store, trials=12, users=users)
    finally:
        store.close()
    rows = {row.name: row for row in report.tasks}
    assert rows["large.k"].share > 0.9
    assert rows["small.k"].share + rows["large.both"].share == pytest.approx(1.0)
    each = rows["small.k"].best_s
    assert each is not None
    assert report.models["small"][1] == pytest.approx(each + (rows["large.both"].best_s or 0.0))
