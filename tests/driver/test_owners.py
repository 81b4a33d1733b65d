"""Who runs what, end to end on a small network: chosen by cost, given on request, done again, kept within limits."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.graph.build import INT64, model, node
from tvmstack import driver
from tvmstack.artifact.manifest import read_manifest
from tvmstack.core.errors import ModelError, SetupError, UsageError
from tvmstack.driver.owners import _best as best_plan
from tvmstack.report.plan import border_line, choice_lines, owner_lines, plan_html
from tvmstack.runtime import load

pytestmark = pytest.mark.cpu


def tower(depth: int = 6, side: int = 16):
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for k in range(depth):
        weights[f"w{k}"] = rng.standard_normal((8, 8, 3, 3)).astype(np.float32) * 0.2
        nodes.append(node("Conv", [x, f"w{k}"], f"c{k}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"c{k}"], f"r{k}" if k < depth - 1 else "y"))
        x = f"r{k}"
    return model(nodes, {"x": (1, 8, side, side)}, weights=weights)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tower built with onnxruntime competing."""
    folder = tmp_path_factory.mktemp("owners")
    artifact = driver.compile(tower(), backends=["onnxruntime", "tvm"], store=folder / "s.db")
    return artifact.save(folder / "chosen.so")


def run(path: Path) -> np.ndarray:
    x = np.random.default_rng(3).standard_normal((1, 8, 16, 16)).astype(np.float32)
    with load(path) as session:
        return session.run({"x": x})["y"]


def test_the_plan_is_the_fastest_of_those_that_were_timed(chosen):
    choice = read_manifest(chosen).plan["choice"]
    timed = {row["plan"]: row for row in choice["finalists"]}
    assert "tvm" in timed
    assert any(label.startswith("onnxruntime:cpu (12") for label in timed)
    assert choice["chosen"] in timed
    for row in choice["chunks"]:
        assert set(row["seconds"]) == {"tvm", "onnxruntime:cpu"}
        assert all(seconds > 0 for seconds in row["seconds"].values())


def finalist(plan: str, regions: int, median: float, quick: float) -> dict[str, object]:
    return {"plan": plan, "regions": regions, "median_s": median, "quick_s": quick}


@pytest.mark.parametrize(
    ("mixed", "taken"), [((0.9, 0.9), "mixed"), ((0.9, 0.99), "tvm"), ((0.99, 0.9), "tvm"), ((2.0, 0.5), "tvm")]
)
def test_more_regions_are_taken_only_where_they_are_clearly_ahead(mixed, taken):
    figures = [finalist("mixed", 2, *mixed), finalist("tvm", 0, 1.0, 1.0), finalist("vendor", 1, 1.5, 1.4)]
    assert best_plan(figures) == taken


def test_all_that_a_back_end_takes_is_given_on_request_and_done_again_by_its_plan(tmp_path):
    first = driver.compile(tower(), backends=["onnxruntime"], store=tmp_path / "s.db").save(tmp_path / "first.so")
    plan = read_manifest(first).plan
    assert [h["owner"] for h in plan["handed"]] == ["onnxruntime:cpu"]
    assert plan["tvm_nodes"] == 0
    again = driver.compile(tower(), plan=first, store=tmp_path / "s.db").save(tmp_path / "again.so")
    assert read_manifest(again).plan["handed"] == plan["handed"]
    np.testing.assert_array_equal(run(first), run(again))
    (tmp_path / "plan.json").write_text(json.dumps(read_manifest(first).to_json()))
    third = driver.compile(tower(), plan=tmp_path / "plan.json", store=tmp_path / "s.db")
    assert third.manifest.plan["handed"] == plan["handed"]


def test_a_plan_with_tvm_in_between_computes_the_same(tmp_path):
    names = [n.name for n in tower().graph.node]
    whole = driver.compile(tower(), store=tmp_path / "s.db").save(tmp_path / "whole.so")
    data = read_manifest(whole).to_json()
    data["plan"]["handed"] = [
        {"owner": "onnxruntime:cpu", "nodes": names[:4]},
        {"owner": "onnxruntime:cpu", "nodes": names[8:10]},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    mixed = driver.compile(tower(), plan=tmp_path / "plan.json", store=tmp_path / "s.db").save(tmp_path / "mixed.so")
    assert len(read_manifest(mixed).plan["regions"]) == 2
    np.testing.assert_allclose(run(mixed), run(whole), rtol=1e-4, atol=1e-4)


def test_what_is_not_possible_is_said(tmp_path, chosen):
    with pytest.raises(UsageError, match="did you mean onnxruntime"):
        driver.compile(tower(), backends=["onnxruntim"])
    with pytest.raises(UsageError, match="auto stands for"):
        driver.compile(tower(), backends=["auto", "openvino"])
    with pytest.raises(UsageError, match="memory-budget allows 10 B"):
        driver.compile(tower(), memory_budget=10)
    with pytest.raises(UsageError, match="plan of another model"):
        driver.compile(tower(4), plan=chosen)
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no plan"):
        driver.compile(tower(), plan=tmp_path / "no.json")
    with pytest.raises(UsageError, match="cannot read the plan"):
        driver.compile(tower(), plan=tmp_path / "missing.json")


def divided(by_nothing: bool):
    """x / d, or x / (d - d), which no input makes possible."""
    nodes = [node("Sub", ["d", "d"], "n"), node("Div", ["x", "n" if by_nothing else "d"], "y")]
    return model(nodes, {"x": (4,), "d": (4,)}, types={"x": INT64, "y": INT64, "d": INT64})


def test_inputs_that_the_model_refuses_are_not_what_back_ends_are_compared_on(tmp_path):
    artifact = driver.compile(divided(by_nothing=False), backends=["onnxruntime"], store=tmp_path / "s.db")
    assert artifact.manifest.plan["tvm_nodes"] == 0
    with pytest.raises(ModelError, match="give good ones with --input"):
        driver.compile(divided(by_nothing=True), backends=["onnxruntime"], store=tmp_path / "s.db")


def test_a_back_end_that_is_not_installed_is_said(monkeypatch):
    from tvmstack.backends.base import Capability
    from tvmstack.backends.qnn import QnnBackend

    lacking = Capability("", False, False, missing="onnxruntime-qnn is not installed", hint="pip install it")
    monkeypatch.setattr(QnnBackend, "probe", lambda self: lacking)
    with pytest.raises(SetupError, match="onnxruntime-qnn is not installed: pip install it"):
        driver.compile(tower(), backends=["qnn:htp:v73"])
    with pytest.raises(UsageError, match="has no target"):
        driver.compile(tower(), backends=["qnn:htp:v74"])


def test_with_a_target_that_is_not_here_the_first_named_has_all_it_takes(tmp_path, monkeypatch):
    from tvmstack.backends.base import Target
    from tvmstack.backends.onnxruntime import OnnxRuntime

    monkeypatch.setattr(OnnxRuntime, "targets", lambda self: [Target("cpu", "npu", runs_here=False)])
    artifact = driver.compile(tower(), backends=["onnxruntime", "tvm"], store=tmp_path / "s.db")
    assert artifact.manifest.plan["tvm_nodes"] == 0
    assert artifact.manifest.plan["choice"]["finalists"] == []


def test_the_plan_is_told_in_words_and_drawn(chosen):
    plan = read_manifest(chosen).plan
    assert owner_lines(plan)[0].startswith("tvm: ")
    assert any("taken" in line for line in choice_lines(plan["choice"]))
    page = plan_html(plan, "chosen.so")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert border_line({"regions": [], "tvm_nodes": 3}) == ""


def test_borders_that_take_much_of_the_time_are_warned_about():
    row = {
        "nodes": ["a"],
        "backend": "b",
        "target": "t",
        "inputs": [{"name": "x", "dtype": "float32", "shape": [1000]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [1000]}],
    }
    finalist = {"plan": "p", "median_s": 1e-3}
    choice = {"chosen": "p", "finalists": [finalist], "borders": {"b:t": {"call_s": 1e-4, "byte_s": 0.0}}}
    words = border_line({"regions": [row, row], "choice": choice})
    assert "20%" in words
    finalist["median_s"] = 1.0
    assert border_line({"regions": [row, row], "choice": choice}) == ""
