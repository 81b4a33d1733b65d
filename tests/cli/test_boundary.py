"""Exit codes and words at the border of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from scripts.reference import commands, help_text
from tvmstack import driver
from tvmstack.cli.boundary import run
from tvmstack.cli.root import root
from tvmstack.core import errors

pytestmark = pytest.mark.null

ALL = dict(commands(root))
KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.TvmstackError)]


@pytest.mark.parametrize("name", ALL)
def test_help_reads_as_it_did(name: str, golden) -> None:
    golden(help_text(name, ALL[name]) + "\n")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_each_error_class_has_its_exit_code_and_no_traceback(
    kind: type[errors.TvmstackError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("the sentence")

    monkeypatch.setattr(driver, "scan", fail)
    assert run(["scan", "m.onnx"]) == kind.exit_code
    captured = capsys.readouterr()
    assert captured.err == "error: the sentence\n"
    assert captured.out == ""


def test_an_internal_error_keeps_its_traceback_and_says_where_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(driver, "scan", fail)
    assert run(["scan", "m.onnx"]) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError: inside" in err
    assert "issue tracker" in err


def test_a_missing_library_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")

    monkeypatch.setattr(driver, "scan", fail)
    assert run(["scan", "m.onnx"]) == 4
    err = capsys.readouterr().err
    assert "cannot import tvm" in err
    assert "tvmstack doctor" in err
    assert "Traceback" not in err


def test_ctrl_c_ends_with_130_and_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "scan", stop)
    assert run(["scan", "m.onnx"]) == 130
    assert "is in the store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["complie", "m.onnx"], "Did you mean 'compile'"),
        (["compile", "m.onnx", "-o", "x.so", "--shap", "x=1"], "--shape"),
        (["compile", "m.onnx"], "--output"),
        (["cache", "stat"], "Did you mean 'stats'"),
        (["compile", "m.onnx", "-o", "x.so", "--trials", "0"], "--trials"),
        (["compile", "m.onnx", "-o", "x.so", "--tune", "soon"], "write 90s, 2m or 1h"),
        (["compile", "m.onnx", "-o", "x.so", "--shape", "x=a"], "whole numbers"),
    ],
)
def test_a_wrong_call_is_2_with_the_nearest_right_one(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert part in err
    assert "Traceback" not in err


def test_every_command_and_option_has_help() -> None:
    for name, command in ALL.items():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_help_needs_neither_tvm_nor_onnx_and_is_quick() -> None:
    code = (
        "import sys\n"
        "for name in ('tvm', 'tvm_ffi', 'onnx', 'onnxruntime', 'onnx_ir', 'sqlalchemy', 'rich', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "from tvmstack.cli.boundary import run\n"
        "sys.exit(run(['compile', '--help']))\n"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--tune TIME" in done.stdout
    assert time.perf_counter() - start < 5  # 0.2 s on an idle machine; this catches an import of seconds


def test_a_reader_that_has_gone_is_met_with_silence() -> None:
    script = f"{sys.executable} -m tvmstack doctor --no-peaks | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_signal_during_real_work_ends_with_130(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from tvmstack import driver\n"
        "def scan(*_, **__): print('working', flush=True); time.sleep(60)\n"
        "driver.scan = scan\n"
        "from tvmstack.cli import main\n"
        "sys.argv = ['tvmstack', 'scan', 'm.onnx']\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
