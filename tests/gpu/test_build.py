"""Building for a GPU on a machine without one, and what goes wrong there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import tvmstack
from tests.gpu.test_templates import one_node
from tvmstack.artifact.elf import read_sections
from tvmstack.artifact.manifest import DEVICE, read_manifest
from tvmstack.core.device import Device, detect_device, device_from_text
from tvmstack.core.errors import ArtifactError, SetupError, TvmstackError, UsageError
from tvmstack.schedules.cuda.estimate import Tile, product_seconds

FAKE = Path(__file__).with_name("fake_nvcc.py")


@pytest.fixture
def fake_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for nvcc first on PATH; return its folder, where a file "refuse" names what it refuses."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(FAKE, folder / "fake_nvcc.py")
    (folder / "nvcc").write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/fake_nvcc.py "$@"\n')
    (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def product() -> object:
    return one_node("MatMul", (13, 101), weights=((101, 29),))


@pytest.mark.null
def test_an_sm_is_checked_and_the_nearest_offered() -> None:
    assert device_from_text("cuda:sm_90").gpu is not None
    with pytest.raises(UsageError, match="did you mean sm_8"):
        device_from_text("cuda:sm_81")
    with pytest.raises(UsageError, match="known: sm_75"):
        device_from_text("cuda")


@pytest.mark.null
def test_a_gpu_survives_json_and_a_cpu_says_nothing_of_it() -> None:
    gpu = device_from_text("cuda:sm_86")
    assert Device.from_json(gpu.to_json()) == gpu
    assert gpu.id.startswith("cuda-sm_86")
    assert gpu.target()["host"]["kind"] == "llvm"
    assert "sm" not in detect_device().to_json()


@pytest.mark.null
@pytest.mark.parametrize(
    ("tile", "words"),
    [
        (Tile(128, 128, 1, 1, 8), "16384 threads"),
        (Tile(16, 16, 8, 8, 8), "4 threads"),
        (Tile(128, 128, 8, 8, 64, 2), "bytes of shared memory"),
        (Tile(128, 128, 16, 16, 8), "registers a thread"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(tile: Tile, words: str) -> None:
    gpu = device_from_text("cuda:sm_80").gpu
    assert gpu is not None
    assert words in tile.refusal(gpu)


@pytest.mark.null
def test_one_block_more_than_a_wave_costs_a_wave() -> None:
    gpu, tile = device_from_text("cuda:sm_80").gpu, Tile(64, 64, 4, 4, 16)
    assert gpu is not None
    full = product_seconds((1, 64, 64 * gpu.sms, 4096), tile, 1, gpu)
    assert product_seconds((1, 64, 64 * (gpu.sms - 1), 4096), tile, 1, gpu) == pytest.approx(full)


@pytest.mark.cpu
def test_an_artifact_carries_code_and_report(fake_nvcc: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    tvmstack.compile(product(), device="cuda:sm_89").save(path)
    manifest = read_manifest(path)
    assert DEVICE in read_sections(path)
    assert manifest.device["sm"] == "sm_89"
    (kernel,) = manifest.kernels
    assert kernel["template"] == "gemm"
    (taken,) = kernel["resources"].values()
    assert taken == {"registers": 40, "shared_bytes": 2048, "spill_bytes": 12, "stack_bytes": 0}
    at = read_sections(path)[DEVICE]
    image = path.read_bytes()[at.offset : at.end]
    assert image.startswith(b"\x06" + bytes(7) + b"fatbin")
    assert image.endswith(b"not really a fat binary")


@pytest.mark.cpu
def test_damaged_device_code_is_noticed(fake_nvcc: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    tvmstack.compile(product(), device="cuda:sm_80").save(path)
    at, data = read_sections(path)[DEVICE], bytearray(path.read_bytes())
    data[at.end - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="its device is damaged"):
        tvmstack.load(path)


@pytest.mark.cpu
def test_loading_without_a_driver_is_a_sentence(fake_nvcc: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    tvmstack.compile(product(), device="cuda:sm_80").save(path)
    with pytest.raises(SetupError, match=r"built for a GPU \(sm_80\)"):
        tvmstack.load(path)


@pytest.mark.cpu
def test_a_refused_kernel_goes_down_the_ladder_alone(fake_nvcc: Path, tmp_path: Path) -> None:
    (fake_nvcc / "refuse").write_text("gemm_left_k_pad_shared_ptr")
    path = tmp_path / "m.so"
    tvmstack.compile(product(), device="cuda:sm_80").save(path)
    (kernel,) = read_manifest(path).kernels
    assert kernel["template"] == "dlight"
    assert "no room for gemm_left_k_pad_shared_ptr" in kernel["refused"][0]


@pytest.mark.cpu
def test_a_compiler_that_refuses_everything_leaves_nothing(fake_nvcc: Path) -> None:
    (fake_nvcc / "refuse").write_text("__global__")
    with pytest.raises(TvmstackError, match=r"cannot be compiled by any schedule.*serial: nvcc refuses it"):
        tvmstack.compile(product(), device="cuda:sm_80")


@pytest.mark.cpu
def test_no_compiler_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: None if name == "nvcc" else which(name, *a, **k))
    with pytest.raises(SetupError, match="nvcc, which is not on PATH: install a CUDA toolkit"):
        tvmstack.compile(product(), device="cuda:sm_80")


@pytest.mark.cpu
def test_tuning_for_a_gpu_is_refused(fake_nvcc: Path) -> None:
    with pytest.raises(UsageError, match="cannot be tuned for"):
        tvmstack.tune(product(), device="cuda:sm_80", trials=4)


@pytest.mark.cpu
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("sm", ["sm_80", "sm_89", "sm_90"])
def test_nvcc_takes_every_template_without_spills(sm: str, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    tvmstack.compile(one_node("Conv", (1, 13, 11, 7), weights=((17, 13, 3, 3),)), device=f"cuda:{sm}").save(path)
    (kernel,) = read_manifest(path).kernels
    assert kernel["template"] == "gemm"
    assert "refused" not in kernel
    assert all(r["registers"] > 8 and r["spill_bytes"] == 0 for r in kernel["resources"].values())
