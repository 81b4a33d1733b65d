"""One artifact that tests copy and damage, and an ELF file of no model for what needs no compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.random._pcg64
import pytest

from tests.conftest import mlp
from tests.runtime.make import make_artifact
from tvmstack.artifact import Manifest, write_artifact
from tvmstack.core.device import detect_device
from tvmstack.core.model import TensorSpec

WEIGHTS = (np.arange(7, dtype=np.float32), np.arange(6, dtype=np.int8).reshape(2, 3))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small artifact with weights and a region; tests read it and do not change it."""
    return make_artifact(mlp(), tmp_path_factory.mktemp("built") / "mlp.so", ["sigmoid_2"])


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Some shared library: an extension module of numpy's."""
    return Path(shutil.copy(numpy.random._pcg64.__file__, tmp_path / "library.so"))


@pytest.fixture
def manifest() -> Manifest:
    """A manifest of nothing in particular, for this machine."""
    return Manifest.describe(
        device=detect_device(),
        inputs=[TensorSpec("x", "float32", (1, 4))],
        outputs=[TensorSpec("y", "float32", (1, "n"))],
        source={"name": "m.onnx", "digest": "ab"},
        changes=["a", "b"],
        pipeline={"text": "one,two", "digest": "cd"},
        plan={"tvm_nodes": 1, "regions": []},
        kernels=[{"name": "k", "choice": {"template": "t", "decisions": {"a": 1}}}],
        memory={"weights_bytes": 34},
        threads=2,
    )


@pytest.fixture
def written(library: Path, manifest: Manifest, tmp_path: Path) -> Path:
    """An artifact round a library that holds no model."""
    path = tmp_path / "m.so"
    write_artifact(path, library, WEIGHTS, [("0123456789abcdef", b"not really onnx")], manifest)
    return path
