"""Artifacts that the runtime's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import conv_block, mlp
from tests.runtime.make import make_artifact, many_types
from tvmstack.runtime import Session, load


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="session")
def dense(folder: Path) -> Path:
    """x: float32 [2, 32] → y: float32 [2, 8]."""
    return make_artifact(mlp(), folder / "dense.so")


@pytest.fixture(scope="session")
def conv(folder: Path) -> Path:
    """x: float32 [1, 3, 64, 64] → y: float32 [1, 10]; its kernels run in parallel."""
    return make_artifact(conv_block(size=64), folder / "conv.so")


@pytest.fixture(scope="session")
def split(folder: Path) -> Path:
    """The model of `dense`, its sigmoid in a region."""
    return make_artifact(mlp(), folder / "split.so", ["sigmoid_2"])


@pytest.fixture(scope="session")
def only_region(folder: Path) -> Path:
    """The model of `dense`, all of it in a region."""
    return make_artifact(mlp(), folder / "region.so", ["matmul_0", "add_1", "sigmoid_2", "matmul_3"])


@pytest.fixture(scope="session")
def types(folder: Path) -> Path:
    """See `many_types`."""
    return make_artifact(many_types(), folder / "types.so")


@pytest.fixture
def session(dense: Path) -> Iterator[Session]:
    with load(dense) as loaded:
        yield loaded
