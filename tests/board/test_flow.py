"""The whole way on an emulated ARM board with the native server, and the rest of the commands on this machine's own."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.board.conftest import Farm, free_port
from tests.conftest import attention, conv_block, lstm, mlp
from tvmstack import driver
from tvmstack.board.errors import BoardLost
from tvmstack.board.health import Health
from tvmstack.board.serve import ServerOptions, ServerProcess, python_command
from tvmstack.board.tracker import BoardSpec, board_from_text
from tvmstack.board.watch import Boards
from tvmstack.cli.boundary import run as run_command
from tvmstack.core.errors import ArtifactError, UsageError
from tvmstack.driver.fleet import tune_fleet

pytestmark = pytest.mark.cpu
HERE = platform.machine()


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def test_a_small_cnn_is_tuned_built_run_and_verified_on_the_arm_board(arm_board: BoardSpec, tmp_path: Path) -> None:
    model = save(conv_block(), tmp_path / "cnn.onnx")
    artifact = driver.compile(str(model), board=arm_board.text, trials=20)
    path = artifact.save(tmp_path / "cnn.so")
    assert artifact.manifest.device["mcpu"] == "cortex-a72"
    assert artifact.report["tuning"]["trials"] == 20
    assert artifact.report["tuning"]["stages"]["board run"] > 0
    assert artifact.report["sources"]["tuned"] == 3
    assert artifact.report["verification"]["cases"] >= 4
    assert driver.verify(path, model, board=arm_board.text)["worst"] < 1e-3
    assert driver.verify(path, board=arm_board.text)["cases"] == 1
    outputs = driver.run(path, board=arm_board.text)
    np.testing.assert_allclose(outputs["y"].sum(), 1.0, rtol=1e-5)
    report = driver.bench(path, board=arm_board.text, rounds=2, seconds=0.05).to_json()
    assert report["peers"][0]["summary"]["median_s"] > 0
    profile = driver.profile(path, board=arm_board.text, repeats=3)
    timed = {row.name for row in profile.rows}
    assert timed <= {k["name"] for k in artifact.manifest.kernels}
    assert any(name.startswith("fused_conv2d") for name in timed)
    assert any(name.startswith("fused_dense") for name in timed)
    assert all(row.seconds > 0 for row in profile.rows)
    with pytest.raises(ArtifactError, match="built for aarch64, this machine is"):
        driver.run(path)
    again = driver.compile(str(model), board=arm_board.text, verify=False)
    assert again.report["sources"]["tuned"] == 3


@pytest.mark.parametrize("model", [mlp(), attention(), lstm()], ids=["mlp", "attention", "lstm"])
def test_models_give_the_originals_values_on_the_arm_board(model: onnx.ModelProto, arm_board: BoardSpec) -> None:
    artifact = driver.compile(model, board=arm_board.text)
    assert artifact.report["verification"]["cases"] >= 4
    assert artifact.report["verification"]["worst"] < 1e-3


def test_code_for_another_cpu_is_built_but_said_to_be_unproven(server_folder: Callable[..., Path]) -> None:
    server_folder("aarch64")
    artifact = driver.compile(mlp(), device="cpu:cortex-a72")
    assert artifact.manifest.device["arch"] == "aarch64"
    if HERE != "aarch64":
        assert artifact.report["verification"]["cases"] == 0
        assert "compile with --board" in artifact.report["verification"]["skipped"][0]


def test_tuning_goes_on_when_a_board_dies(farm: Farm, tmp_path: Path) -> None:
    spec = farm.board("herd", HERE, "first")
    seen: list[Any] = []

    def kill_the_first(state: Any) -> None:
        if not seen:
            farm.board("herd", HERE, "second")
            farm.servers[0].stop()
        seen.append(state)

    report = driver.tune(save(conv_block(), tmp_path / "cnn.onnx"), board=spec.text, trials=12, progress=kill_the_first)
    assert report["trials"] == 12
    assert report["failures"] == {}
    assert [name.partition("@")[0] for name in Health().all()] == ["first"]
    assert {row["key"] for row in report["boards"]} == {"herd"}
    assert "second" in {row["name"] for row in report["boards"]}


@pytest.mark.slow
def test_a_fleet_is_tuned_on_a_board_and_what_the_board_cannot_run_is_left_out(farm: Farm, tmp_path: Path) -> None:
    spec = farm.board("fleet", HERE, "fleet")
    models = [save(conv_block(), tmp_path / "cnn.onnx"), save(mlp(), tmp_path / "mlp.onnx")]
    data = tune_fleet(models, board=spec.text, trials=6, onnxruntime_nodes=["sigmoid_2"])
    errors = {row["name"]: row["error"] for row in data["fleet"]}
    assert errors["cnn"] is None
    assert "has no onnxruntime" in errors["mlp"]
    assert data["trials"] == 6
    assert data["failures"] == {}
    assert [row["name"] for row in data["boards"]] == ["fleet"]


@pytest.mark.slow
def test_tuning_ends_with_the_loss_of_the_last_board_and_keeps_what_was_measured(farm: Farm, tmp_path: Path) -> None:
    spec = farm.board("single", HERE, "single")
    model = save(conv_block(), tmp_path / "cnn.onnx")
    measured: list[int] = []

    def kill(state: Any) -> None:
        measured.append(state.trials)
        farm.stop()

    with pytest.raises(BoardLost, match="single was lost"):
        driver.tune(model, board=spec.text, trials=64, progress=kill)
    assert measured[0] > 0
    with driver.open_records(None) as records:
        assert len(records.records()) >= measured[0]


def test_a_model_with_regions_is_refused_before_any_work(farm: Farm) -> None:
    spec = farm.board("bare", HERE)
    with pytest.raises(UsageError, match=r"no onnxruntime, which would run 1 node.*softmax"):
        driver.compile(conv_block(), board=spec.text, onnxruntime_nodes=["softmax_8"])


def test_a_board_leaves_no_device_to_choose(farm: Farm) -> None:
    with pytest.raises(UsageError, match="leave --device out"):
        driver.compile(mlp(), board=farm.board("plain", HERE).text, device="cpu:haswell")
    with pytest.raises(UsageError, match="no peers on a board"):
        driver.bench("any.so", model="any.onnx", board="plain")


@pytest.mark.slow
def test_tvms_python_server_serves_too(tracker: str, tmp_path: Path) -> None:
    server = ServerProcess(python_command(ServerOptions("python", tracker, name="snake", port=free_port())))
    try:
        artifact = driver.compile(save(mlp(), tmp_path / "m.onnx"), board=f"python@{tracker}", trials=4)
        assert artifact.report["verification"]["cases"] >= 4
        with Boards(board_from_text(f"python@{tracker}")) as boards:
            assert boards.facts.server == "python"
    finally:
        server.stop()


def test_serve_starts_a_tracker_and_ends_with_all_it_started(
    server_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tvmstack", "board", "serve", "--key", "here", "--name", "cli"]
    command += ["--tracker", tracker, "--server", str(server_folder(HERE)), "--port", str(free_port())]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(serving.stderr or ()), daemon=True)
    reader.start()
    try:
        _wait_for(lambda: any("is served on" in line for line in lines))
        assert run_command(["board", "ls", "--tracker", tracker, "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)["boards"]
        assert (row["key"], row["name"], row["state"]) == ("here", "cli", "in service")
        assert run_command(["board", "doctor", f"here@{tracker}", "--seconds", "0.2", "--json"]) in (0, 8)
        assert json.loads(capsys.readouterr().out)["board"] == "cli"
        assert run_command(["board", "watch", "--tracker", tracker, "--rounds", "1"]) == 0
        assert "here cli: ok" in capsys.readouterr().err
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(20) == 0
    assert run_command(["board", "ls", "--tracker", tracker]) == 8
    assert "`tvmstack board serve` starts one" in capsys.readouterr().err


def _wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_built_server_is_small_and_complete(server_folder: Callable[..., Path]) -> None:
    folder = server_folder(HERE)
    assert {p.name for p in folder.iterdir()} >= {"tvmstack-board", "libtvm_runtime.so", "libtvm_ffi.so"}
    assert sum(p.stat().st_size for p in folder.iterdir()) < 9e6
    assert os.access(folder / "tvmstack-board", os.X_OK)
