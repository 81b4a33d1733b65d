"""Everything that can be wrong before or while compiling: one sentence, the right exit code, nothing half-written."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import build, conv_block, mlp, unknown_operator
from tvmstack.cli.boundary import run
from tvmstack.store import open_store

pytestmark = pytest.mark.cpu


@pytest.fixture
def fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Compile a file, expect an exit code, and return the sentence after checking its form and what is left on disk."""
    out = tmp_path / "out"
    out.mkdir()

    def compile_and_fail(model: Path, code: int, *words: str) -> str:
        got = run(["-q", "compile", str(model), "-o", str(out / "m.so"), *words])
        captured = capsys.readouterr()
        assert got == code, captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""
        assert list(out.iterdir()) == []
        lines = captured.err.strip().splitlines()
        assert sum(line.startswith("error: ") for line in lines) == 1, captured.err
        return captured.err

    return compile_and_fail


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def test_a_file_that_is_not_there(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "gone.onnx" in fails(tmp_path / "gone.onnx", 2)


def test_a_truncated_file(fails: Callable[..., str], tmp_path: Path) -> None:
    path = saved(conv_block(), tmp_path / "short.onnx")
    path.write_bytes(path.read_bytes()[:-200])
    assert "short.onnx" in fails(path, 3)


def test_a_file_that_is_no_onnx(fails: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "photo.onnx"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    assert "photo.onnx" in fails(path, 3)


def test_an_empty_file(fails: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    assert "empty.onnx" in fails(path, 3)


def test_missing_external_data(fails: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="big.data", size_threshold=0)
    (tmp_path / "big.data").unlink()
    assert "big.data" in fails(path, 3)


def test_a_dynamic_dim_that_nobody_fixed(fails: Callable[..., str], tmp_path: Path) -> None:
    words = fails(saved(mlp(batch="batch"), tmp_path / "dynamic.onnx"), 2)
    assert "batch" in words
    assert "--shape x=" in words


@pytest.mark.parametrize("shape", ["x=2,31", "x=2,32,1", "y=1,2"])
def test_a_shape_that_does_not_fit(shape: str, fails: Callable[..., str], tmp_path: Path) -> None:
    name = shape.split("=")[0]
    assert name in fails(saved(mlp(batch="batch"), tmp_path / "m.onnx"), 2, "--shape", shape)


def test_an_operator_nobody_has(fails: Callable[..., str], tmp_path: Path) -> None:
    words = fails(saved(unknown_operator(), tmp_path / "odd.onnx"), 3)
    assert "Frobnicate" in words
    assert "odd_one" in words


def test_a_dim_of_size_zero(fails: Callable[..., str], tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert "x" in fails(saved(build([relu], {"x": (0, 4)}, {"y": (0, 4)}), tmp_path / "none.onnx"), 3)


def test_a_cycle_is_no_graph(fails: Callable[..., str], tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["b"], name="two")]
    graph = helper.make_graph(
        nodes,
        "cycle",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1,))],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, (1,))],
    )
    fails(
        saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "c.onnx"),
        3,
    )


def test_weights_whose_bytes_do_not_fill_their_shape(fails: Callable[..., str], tmp_path: Path) -> None:
    model = mlp()
    wrong = numpy_helper.from_array(np.zeros((2, 2), np.float32), model.graph.initializer[0].name)
    wrong.dims[0] = 32
    model.graph.initializer[0].CopyFrom(wrong)
    fails(saved(model, tmp_path / "short_weights.onnx"), 3)


def test_a_full_disk_is_seen_before_any_work(
    fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(mlp(), tmp_path / "m.onnx")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 30, used=1 << 30, free=1 << 20))
    assert "1 MiB are free" in fails(path, 4)


def test_a_full_temporary_folder_is_seen_before_any_tuning(
    fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage
    scratch = Path(tempfile.gettempdir())
    none = SimpleNamespace(total=1 << 30, used=1 << 30, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: none if Path(path) == scratch else usage(path))
    assert "TMPDIR" in fails(saved(mlp(), tmp_path / "m.onnx"), 4)


def test_a_disk_that_fills_up_while_writing_leaves_nothing(
    fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copyfile

    def half(source: Path, target: Path) -> object:
        if Path(target).parent.name != "out":
            return copy(source, target)
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    path = saved(mlp(), tmp_path / "m.onnx")
    monkeypatch.setattr(shutil, "copyfile", half)
    assert "the disk is full" in fails(path, 4)


def test_no_compiler_on_path(fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(mlp(), tmp_path / "m.onnx")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    assert "no C++ compiler on PATH" in fails(path, 4)


def test_a_store_that_is_no_database(fails: Callable[..., str], tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    store.write_bytes(b"these are not records " * 100)
    assert "is not a store" in fails(saved(mlp(), tmp_path / "m.onnx"), 6, "--store", str(store))
    assert store.read_bytes().startswith(b"these are not records")


def test_a_damaged_store_is_set_aside_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store.db"
    with contextlib.closing(open_store(store)):
        pass
    data = store.read_bytes()
    store.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    model = saved(mlp(), tmp_path / "m.onnx")
    assert run(["-q", "compile", str(model), "-o", str(tmp_path / "m.so"), "--store", str(store)]) == 0
    assert "was damaged" in capsys.readouterr().err
    assert list(tmp_path.glob("store.db.corrupt-*"))


def test_a_store_that_another_process_holds(fails: Callable[..., str], tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    holder = sqlite3.connect(store, isolation_level=None)
    holder.execute("create table t (a)")
    holder.execute("begin exclusive")
    try:
        assert "store.db" in fails(saved(mlp(), tmp_path / "m.onnx"), 6, "--store", str(store), "--trials", "1")
    finally:
        holder.close()


def test_a_device_nobody_has_gets_the_nearest_name(fails: Callable[..., str], tmp_path: Path) -> None:
    words = fails(saved(mlp(), tmp_path / "m.onnx"), 2, "--device", "cpu:haswel")
    assert "did you mean haswell" in words


def test_a_node_name_nobody_has_gets_the_nearest_name(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "did you mean" in fails(saved(mlp(), tmp_path / "m.onnx"), 2, "--onnxruntime-nodes", "matmul_00")
