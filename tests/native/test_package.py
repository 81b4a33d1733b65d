"""The folder that `tvmstack package` makes: whole or not there, right by its list, usable from CMake and elsewhere."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.board.conftest import need_arm_tools
from tests.conftest import mlp
from tests.native.conftest import ARCH, STRICT, openvino_row
from tests.runtime.make import make_artifact
from tvmstack.core.device import device_from_text
from tvmstack.core.errors import ArtifactError, SetupError, UsageError
from tvmstack.native import build as native_build
from tvmstack.native import native_libraries, write_package

pytestmark = pytest.mark.cpu


def test_the_list_names_every_file_with_its_digest(package: Path) -> None:
    text = (package / "MANIFEST.txt").read_text()
    listed = dict(reversed(line.split("  ")) for line in text.splitlines() if "  " in line)
    for name in ("dense.so", "bin/run", "lib/libtvmstack.so", "include/tvmstack.h", "licenses/apache-tvm/LICENSE"):
        assert name in listed
    for name, digest in listed.items():
        assert hashlib.sha256((package / name).read_bytes()).hexdigest() == digest, name
    assert "built with: ffi 0." in text


def test_examples_build_by_cmake_and_run_where_they_were_moved(package: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake here: apt-get install cmake")
    moved = tmp_path / "moved here"
    shutil.copytree(package, moved)
    for command in (["cmake", "-S", "examples", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=moved, check=True, capture_output=True, timeout=200)
    said = subprocess.run(["build/simple_c", "dense.so"], cwd=moved, env={}, check=True, capture_output=True, text=True)
    assert said.stdout.count("y[") == 10
    said = subprocess.run(
        ["build/threads_cpp", "dense.so", "3"], cwd=moved, env={}, check=True, capture_output=True, text=True
    )
    assert said.stdout.count("100 runs, first output has 2 dimensions") == 3


def test_a_second_package_compiles_nothing(
    dense: Path, package: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert package.exists()

    def refuse(*_: object) -> None:
        raise AssertionError("the compiler was called")

    monkeypatch.setattr(native_build, "_compile", refuse)
    write_package(dense, tmp_path / "again", cache=cache, flags=STRICT)
    assert (tmp_path / "again" / "bin" / "run").exists()


def test_without_the_runtime_it_says_what_must_be_there(split: Path, tmp_path: Path) -> None:
    report = write_package(split, tmp_path / "bare", runtime=False)
    assert {path for path, _, _ in report.files} == {"split.so"}
    assert [note.split(" ")[0] for note in report.notes] == ["libtvmstack.so", "onnxruntime"]
    assert "$TVMSTACK_ONNXRUNTIME_LIBRARY" in (tmp_path / "bare" / "MANIFEST.txt").read_text()


def test_vendor_libraries_come_with_their_licences_and_run(
    split: Path, cache: Path, package: Path, tmp_path: Path
) -> None:
    assert package.exists()
    report = write_package(split, tmp_path / "vendor", vendor=True, cache=cache, flags=STRICT)
    names = [path for path, _, _ in report.files]
    assert any(name.startswith("lib/libonnxruntime.so") for name in names)
    assert "licenses/onnxruntime/LICENSE" in names
    done = subprocess.run([str(tmp_path / "vendor/bin/run"), str(tmp_path / "vendor/split.so")], env={}, check=False)
    assert done.returncode == 0


def test_openvino_libraries_come_along_and_run(
    openvino_split: Path, cache: Path, package: Path, tmp_path: Path
) -> None:
    assert package.exists()
    report = write_package(openvino_split, tmp_path / "ov", vendor=True, cache=cache, flags=STRICT)
    names = [path for path, _, _ in report.files]
    assert any("intel_cpu_plugin" in name for name in names)
    assert not any("intel_gpu_plugin" in name or "_onnx_frontend" in name for name in names)
    assert any(name.startswith("licenses/openvino/") for name in names)
    done = subprocess.run([str(tmp_path / "ov/bin/run"), str(tmp_path / "ov/openvino.so")], env={}, check=False)
    assert done.returncode == 0


def test_an_openvino_of_another_version_is_not_packed(cache: Path, package: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="no openvino here: pip install 'tvmstack[bench]'")
    assert package.exists()
    old = make_artifact(
        mlp(), tmp_path / "old.so", ["sigmoid_2"], hand=lambda r: (openvino_row(r, "2023.1.0"), b"whatever")
    )
    with pytest.raises(SetupError, match=r"compiled by openvino 2023\.1\.0, installed is 20"):
        write_package(old, tmp_path / "out", vendor=True, cache=cache, flags=STRICT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.so"]


def test_a_folder_in_use_another_cpu_and_a_damaged_file_are_refused(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(UsageError, match="is there already and not empty"):
        write_package(dense, tmp_path / "used")
    with pytest.raises(UsageError, match=f"was built for {ARCH}, not riscv64"):
        write_package(dense, tmp_path / "out", arch="riscv64")
    data = bytearray(dense.read_bytes())
    data[len(data) // 3] ^= 1
    (tmp_path / "broken.so").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"cannot be packaged: its .* is damaged"):
        write_package(tmp_path / "broken.so", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    dense: Path, cache: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert package.exists()
    copy = shutil.copy2

    def full(source: Path, target: Path) -> None:
        if target.name == "libtvm_ffi.so":
            raise OSError(28, "No space left on device")
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(SetupError, match=r"cannot write .*: No space left on device"):
        write_package(dense, tmp_path / "out", cache=cache, flags=STRICT)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot build the native runtime: "):
        native_libraries(ARCH, tmp_path / "cache", ["--no-such-flag"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_digests_are_the_same_with_and_without_the_cpus_instructions(package: Path, tmp_path: Path) -> None:
    program = tmp_path / "sha"
    source = tmp_path / "sha.cc"
    header = native_build.SOURCES / "src" / "sha256.h"
    source.write_text(
        f'#include "{header}"\n#include <cstdio>\n'
        "int main() { for (size_t n = 0; n < 300; ++n) { std::string t(n, char('a' + n % 26));\n"
        "for (bool quick : {false, tvmstack::Sha256::HasInstructions()}) { tvmstack::Sha256 s(quick);\n"
        "s.Update(t.data(), n / 3); s.Update(t.data() + n / 3, n - n / 3);\n"
        'std::printf("%s\\n", tvmstack::Hex(s.Digest()).c_str()); } } }\n'
    )
    assert package.exists()
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    texts = [bytes([ord("a") + n % 26]) * n for n in range(300)]
    assert said == [hashlib.sha256(text).hexdigest() for text in texts for _ in range(2)]


def test_an_artifact_for_arm_gets_arm_libraries_and_runs_there(cache: Path, tmp_path: Path) -> None:
    need_arm_tools()
    artifact = make_artifact(mlp(), tmp_path / "arm.so", device=device_from_text("cpu:cortex-a72"))
    try:
        report = write_package(artifact, tmp_path / "arm", arch="aarch64", cache=cache, flags=STRICT)
    except SetupError as err:
        if "pip cannot get" not in str(err):
            raise
        pytest.skip(str(err))
    assert report.arch == "aarch64"
    command = [
        "qemu-aarch64",
        "-L",
        "/usr/aarch64-linux-gnu",
        str(tmp_path / "arm/bin/run"),
        str(tmp_path / "arm/arm.so"),
    ]
    done = subprocess.run(command, env={"QEMU_CPU": "cortex-a72"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "output y: float32 [2, 8]" in done.stdout


@pytest.mark.slow
def test_valgrind_finds_no_leak_and_no_bad_access(probe: Path, tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind here: apt-get install valgrind")
    artifact = make_artifact(mlp(), tmp_path / "old.so", device=device_from_text("cpu:haswell"))
    command = ["valgrind", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]
    done = subprocess.run(
        [*command, str(probe), "open", str(artifact)], capture_output=True, text=True, check=False, timeout=250
    )
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr[-3000:]


def test_the_command_line_makes_one(dense: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tvmstack", "package", str(dense), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "needs" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 2
    assert "is there already and not empty" in again.stderr
