"""Artifacts run from C as they run from Python: values, memory, threads, mistakes of the caller."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import conv_block, mlp
from tests.native.conftest import Run, onnxruntime_library, openvino_library, values_of
from tvmstack.core.errors import BackendError, SetupError
from tvmstack.runtime import load
from tvmstack.runtime.engines.native import NativeEngine

pytestmark = pytest.mark.cpu
RNG = np.random.default_rng(7)


def _many(run: Run, artifact: Path, folder: Path, x: np.ndarray, y: np.ndarray, runs: int = 1000, **env: str) -> None:
    (folder / "x").write_bytes(x.tobytes())
    (folder / "y").write_bytes(y.tobytes())
    said = run("many", artifact, folder / "x", folder / "y", runs, 4, **env)
    found = re.fullmatch(r"wrong (\d+) failed (\d+) before_kb (\d+) after_kb (\d+)\n", said)
    assert found, said
    wrong, failed, before, after = map(int, found.groups())
    assert (wrong, failed) == (0, 0)
    assert after - before < 1024, said


def test_a_thousand_runs_on_four_threads_are_right_and_leave_nothing_behind(
    run: Run, conv: Path, tmp_path: Path
) -> None:
    x = RNG.standard_normal((1, 3, 64, 64)).astype("float32")
    with load(conv, threads=1) as session:
        python = session.run({"x": x})["y"]
    np.testing.assert_allclose(python, values_of(conv_block(size=64), x), rtol=1e-4, atol=1e-5)
    _many(run, conv, tmp_path, x, python)


def test_an_onnxruntime_region_runs_from_c(run: Run, split: Path, tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 32)).astype("float32")
    _many(run, split, tmp_path, x, values_of(mlp(), x), **onnxruntime_library())


def test_an_openvino_region_runs_from_c(run: Run, openvino_split: Path, tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 32)).astype("float32")
    _many(run, openvino_split, tmp_path, x, values_of(mlp(), x), **openvino_library())


def test_a_strangers_engine_runs_from_c_and_from_python(
    run: Run, triple_split: Path, triple_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = RNG.standard_normal((2, 32)).astype("float32")
    model = mlp()
    weights = {t.name: np.frombuffer(t.raw_data, "float32").reshape(t.dims) for t in model.graph.initializer}
    w, b, v = (weights[model.graph.node[i].input[1]] for i in (0, 1, 3))
    _many(run, triple_split, tmp_path, x, (3 * (x @ w + b)) @ v, TVMSTACK_ENGINES=str(triple_engine))

    monkeypatch.setenv("TVMSTACK_ENGINES", f"/nowhere:{triple_engine}")
    row = {"engine": "triple", "digest": "d", "inputs": [], "outputs": [{"name": "y", "dtype": "float32", "shape": []}]}
    engine = NativeEngine(b"\3", row, 1)
    strided = np.asfortranarray(np.arange(6, dtype="float32").reshape(2, 3))
    for _ in range(3):
        np.testing.assert_array_equal(engine.run([strided])[0], 3 * strided)
    with pytest.raises(BackendError, match="triple failed in region d: a value is too large"):
        engine.run([np.full((2, 3), 2e30, "float32")])
    engine.close()
    with pytest.raises(SetupError, match=r"region d \(triple\): the blob has 2 bytes, not 1"):
        NativeEngine(b"\3\3", row, 1)
    with pytest.raises(SetupError, match=r"there is no libtvmstack_engine_other\.so"):
        NativeEngine(b"\3", {**row, "engine": "other"}, 1)


def test_an_output_that_is_an_input_outlives_it(run: Run, passing: Path) -> None:
    assert run("same", passing) == "wrong 0\n"


def test_every_mistake_gets_a_sentence_and_the_process_goes_on(run: Run, dense: Path) -> None:
    said = dict(line.split(": ", 1) for line in run("words", dense).splitlines())
    assert said == {
        "no path": "2: path is NULL",
        "odd flag": "2: there is no flag 64",
        "second input": "2: there is no input 1: the model has 1",
        "info": "y float32 2 8",
        "minus one thread": "2: threads must be a whole number from 1 on, or 0, not -1",
        "output before a run": "2: there are no outputs: the session has not run, or its last run failed",
        "two inputs": "2: the model has 1 inputs, got 2",
        "wrong shape": "2: input 'x' must be float32 [2, 32], got float32 [3, 32]",
        "wrong rank": "2: input 'x' must be float32 [2, 32], got float32 [64]",
        "wrong dtype": "2: input 'x' must be float32 [2, 32], got int32 [2, 32]",
        "no memory": "2: input 'x' has no memory",
        "no tensor": "2: input 'x' is NULL",
        "on a GPU": "2: input 'x' must be in CPU memory",
        "unaligned": "0",
        "offset": "0",
        "strided": "0",
        "short input": "2: input 'x' of float32 [2, 32] takes 256 bytes, got 255",
        "small output": "2: output 'y' needs 64 bytes, the buffer has 63",
        "needed": "64",
        "buffers": "0",
        "output 7": "2: there is no output 7: the model has 1",
    }


def test_nothing_of_python_is_needed(package: Path, dense: Path) -> None:
    for file in (package / "bin" / "run", package / "lib" / "libtvmstack.so"):
        needs = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
        assert "python" not in needs
        assert "not found" not in needs
    done = subprocess.run([str(package / "bin" / "run"), str(dense), "--repeat", "5"], env={}, **_captured())
    assert done.returncode == 0, done.stderr
    assert "input x: float32 [2, 32]\noutput y: float32 [2, 8]\n" in done.stdout
    assert re.search(r"5 runs on \d threads: median \d+\.\d+ ms", done.stdout)
    wrong = subprocess.run([str(package / "bin" / "run"), "/nowhere.so"], env={}, **_captured())
    assert (wrong.returncode, wrong.stderr) == (7, "error: there is no file /nowhere.so\n")


def test_only_the_c_interface_is_visible(package: Path) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(package / "lib" / "libtvmstack.so")], **_captured())
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    header = (package / "include" / "tvmstack.h").read_text()
    declared = set(re.findall(r"TVMSTACK_API [^(]*?(tvmstack_\w+)\(", header))
    assert names == declared
    assert len(declared) == 15


def test_memory_before_weights_and_libraries_stay_small(package: Path, dense: Path) -> None:
    libraries = sum(file.stat().st_size for file in (package / "lib").glob("*.so"))
    assert libraries <= 8 << 20
    done = subprocess.run([str(package / "bin" / "run"), str(dense), "--threads", "1"], env={}, **_captured())
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert peak
    assert int(peak.group(1)) <= 20 << 10


def _captured() -> dict[str, object]:
    return {"capture_output": True, "text": True, "check": False, "timeout": 60}
