"""One build of the library, one packaged folder, the test program, and artifacts of each kind of region."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.conftest import build, conv_block, mlp
from tests.runtime.make import make_artifact
from tvmstack.core.region import Region
from tvmstack.measure.machine import find_compiler
from tvmstack.native import write_package

HERE = Path(__file__).parent
STRICT = ("-Werror",)

Run = Callable[..., str]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="session")
def cache(place: Path) -> Path:
    return place / "cache"


@pytest.fixture(scope="session")
def dense(place: Path) -> Path:
    """x: float32 [2, 32] → y: float32 [2, 8]."""
    return make_artifact(mlp(), place / "dense.so")


@pytest.fixture(scope="session")
def conv(place: Path) -> Path:
    """x: float32 [1, 3, 64, 64] → y: float32 [1, 10]."""
    return make_artifact(conv_block(size=64), place / "conv.so")


@pytest.fixture(scope="session")
def split(place: Path) -> Path:
    """The model of `dense`, its sigmoid in onnxruntime."""
    return make_artifact(mlp(), place / "split.so", ["sigmoid_2"])


@pytest.fixture(scope="session")
def passing(place: Path) -> Path:
    """x: float32 [1, 1024] → x itself and 2 x."""
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Add", ["x", "x"], ["twice"])]
    return make_artifact(build(nodes, {"x": (1, 1024)}, {"same": (1, 1024), "twice": (1, 1024)}), place / "passing.so")


@pytest.fixture(scope="session")
def openvino_split(place: Path) -> Path:
    """The model of `dense`, its sigmoid in OpenVINO."""
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("no openvino here: pip install 'tvmstack[bench]'")
    return make_artifact(mlp(), place / "openvino.so", ["sigmoid_2"], hand=openvino_blob)


@pytest.fixture(scope="session")
def triple_split(place: Path) -> Path:
    """The model of `dense`, its sigmoid replaced by the engine of a stranger that multiplies by three."""
    return make_artifact(mlp(), place / "triple.so", ["sigmoid_2"], hand=triple_blob)


def openvino_blob(region: Region) -> tuple[dict[str, Any], bytes]:
    """Compile a region with OpenVINO, in a process of its own: its threads and ours don't mix."""
    code = (
        "import io, sys, openvino as ov; core = ov.Core();"
        "model = core.read_model(sys.stdin.buffer.read());"
        "blob = core.compile_model(model, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'}).export_model();"
        "sys.stdout.buffer.write(ov.__version__.split('-')[0].encode() + b'\\0' + "
        "(blob if isinstance(blob, bytes) else blob.getvalue()))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=region.model, capture_output=True, check=True)
    version, _, blob = done.stdout.partition(b"\0")
    return openvino_row(region, version.decode()), blob


def openvino_row(region: Region, version: str) -> dict[str, Any]:
    return {
        "backend": "openvino",
        "engine": "openvino",
        "target": "cpu",
        "versions": {"openvino": version},
        "options": {"INFERENCE_PRECISION_HINT": "f32", "precision": "f32"},
        "engine_inputs": [s.name for s in region.inputs],
        "engine_outputs": [s.name for s in region.outputs],
    }


def triple_blob(_: Region) -> tuple[dict[str, Any], bytes]:
    return {"engine": "triple", "backend": "triple", "target": "cpu", "versions": {}, "options": {}}, b"\3"


@pytest.fixture(scope="session")
def package(dense: Path, place: Path, cache: Path) -> Path:
    """The folder that `tvmstack package` makes of `dense`, its libraries compiled without a warning."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler here: apt-get install g++")
    write_package(dense, place / "package", cache=cache, flags=STRICT)
    return place / "package"


@pytest.fixture(scope="session")
def probe(package: Path) -> Path:
    """The test program, built against the package by the C compiler as a C programmer would."""
    program = package / "bin" / "probe"
    compile_c(HERE / "probe.c", program, package)
    return program


@pytest.fixture(scope="session")
def triple_engine(package: Path, place: Path) -> Path:
    """The folder with the stranger's engine."""
    folder = place / "engines"
    folder.mkdir()
    compile_c(HERE / "engine_triple.c", folder / "libtvmstack_engine_triple.so", package, "-shared", "-fPIC")
    return folder


def compile_c(source: Path, target: Path, package: Path, *more: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here: apt-get install gcc")
    command = [compiler, "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", str(source)]
    command += [f"-I{package / 'include'}", *more, "-o", str(target), "-lm", "-pthread"]
    if "-shared" not in more:
        command += [f"-L{package / 'lib'}", "-ltvmstack", "-Wl,-rpath,$ORIGIN/../lib"]
    subprocess.run(command, check=True, timeout=120)


@pytest.fixture(scope="session")
def run(probe: Path) -> Run:
    """Run the test program where there is no Python and no setting, and return what it says."""

    def call(*words: object, **env: str) -> str:
        done = subprocess.run(
            [str(probe), *map(str, words)], capture_output=True, text=True, check=False, timeout=120, env=env
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    return call


def vendor_library(package: str, pattern: str) -> str:
    """Return an installed vendor library's path."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"no {package} here")
    found = sorted(Path(spec.origin).parent.glob(pattern))
    if not found:
        pytest.skip(f"this wheel of {package} has no {pattern}")
    return str(found[0])


def onnxruntime_library() -> dict[str, str]:
    return {"TVMSTACK_ONNXRUNTIME_LIBRARY": vendor_library("onnxruntime", "capi/libonnxruntime.so*")}


def openvino_library() -> dict[str, str]:
    return {"TVMSTACK_OPENVINO_LIBRARY": vendor_library("openvino", "libs/libopenvino_c.so*")}


def values_of(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what onnxruntime gives for the one input and output of a model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


ARCH = platform.machine()
