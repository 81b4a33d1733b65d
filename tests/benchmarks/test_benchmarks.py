from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import run
from benchmarks.catalog import DEFAULT, QUICK, given, names, source
from benchmarks.page import means, page
from tvmstack.core.errors import ModelError

pytestmark = pytest.mark.null

SETTINGS = {
    "tune": "1s",
    "threads": 2,
    "peers": ["onnxruntime", "openvino"],
    "versions": {"apache-tvm": "0.27", "onnxruntime": "1.32", "openvino": None},
}
PEAKS = {"gflops": 400.0, "gbytes": 20.0, "threads": 2, "method": "fma kernel"}


def figures(ms: float, ratio: float | None) -> dict[str, Any]:
    spread = {"median": ratio, "low": ratio, "high": ratio} if ratio else None
    times = {f"{k}_ms": ms for k in ("median", "p10", "p90", "mad", "min")}
    return {"version": "1", **times, "runs": 9, "peak_rss_bytes": 5e7, "ratio": spread}


def stage(ours: float, theirs: float, missing: str = "") -> dict[str, Any]:
    return {
        "peers": {"tvmstack": figures(ours, None), "onnxruntime": figures(theirs, theirs / ours)},
        "missing": [{"name": "openvino", "reason": missing, "error": "SetupError"}] if missing else [],
        "compile_s": {"import": 1.0, "build": 2.0, "tune": 60.0},
        "memory": {"arena_bytes": 2_500_000},
        "tuning": None,
    }


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    machine = {"device": {"name": "CPU", "id": "cpu-2c"}, "peaks": PEAKS}
    return {
        "command": "bench",
        "when": "now",
        "commit": "abc",
        "settings": SETTINGS,
        "machine": machine,
        "call": {"untuned": stage(0.01, 0.02)},
        "models": rows,
    }


def test_the_page_gives_ratios_above_one_where_we_are_ahead_and_says_what_was_not_measured() -> None:
    quick = {"model": "a", "peaks": PEAKS, "untuned": stage(1.0, 4.0), "tuned": stage(0.5, 4.0, "openvino is absent")}
    slow = {"model": "b", "peaks": PEAKS, "untuned": stage(4.0, 1.0)}
    broken = {"model": "c", "peaks": PEAKS, "error": "OSError: gone"}
    text = page(result(quick, slow, broken))
    assert "| a | 1.00 | 0.500 | 4.00 | 4.00 (4.00 to 4.00) | 8.00 (8.00 to 8.00) | – | – | – |" in text
    assert "| onnxruntime | **1.00** over 2 models | **8.00** over 1 models |" in text
    assert "- c: OSError: gone" in text
    assert "- a, tuned: openvino is absent" in text
    assert "ours 10.0 µs, onnxruntime 20.0 µs" in text
    assert "| a | untuned | 1.00 | 1.00 to 1.00 | 50 | 3.0 |  | 2.50 |" in text


def test_the_mean_of_ratios_is_geometric_and_absent_without_figures() -> None:
    rows = [{"untuned": stage(1.0, 4.0)}, {"untuned": stage(4.0, 1.0)}, {"error": "x"}]
    assert means(rows, "untuned", "onnxruntime") == (pytest.approx(1.0), 2)
    assert means(rows, "untuned", "openvino") is None


def test_a_resumed_run_measures_only_what_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def measure(model: Any, settings: Any, options: Any, tune: str | None) -> dict[str, Any]:
        calls.append(f"{model.name} {tune}")
        if tune and len(calls) == 2:
            raise ModelError("killed here")
        return stage(1.0, 2.0)

    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "_compile_and_bench", measure)
    monkeypatch.setattr(run, "measure_peaks", lambda threads: Namespace(to_json=lambda: PEAKS))
    model = source("resnet50")
    first = run.measured(model, SETTINGS, Namespace(resume=False))
    assert "killed here" in first["error"]
    assert "untuned" in json.loads((tmp_path / "rows" / "resnet50.json").read_text())
    again = run.measured(model, SETTINGS, Namespace(resume=True))
    assert calls == ["resnet50 None", "resnet50 1s", "resnet50 1s"]
    assert "error" not in again
    assert run.measured(model, SETTINGS, Namespace(resume=True)) == again
    assert len(calls) == 3
    run.measured(model, {**SETTINGS, "threads": 1}, Namespace(resume=True))
    assert len(calls) == 5, "other settings must not reuse a row"


def test_every_name_has_a_source_and_the_lists_are_names() -> None:
    assert {*DEFAULT, *QUICK} <= set(names())
    assert len(set(names())) == len(names())
    made = source("one_relu").file()
    onnx.checker.check_model(onnx.load(made))


def test_a_model_that_only_torch_can_export_says_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"--model minilm_l6=PATH\.onnx"):
        source("minilm_l6").file()
    file = tmp_path / "m.onnx"
    file.write_bytes(b"")
    (mine,) = given([f"minilm_l6={file}"])
    assert mine.file() == file


def test_a_model_given_without_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is not NAME=PATH\.onnx"):
        given(["minilm_l6"])
