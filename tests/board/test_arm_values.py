"""Every CPU template gives numpy's values on an emulated ARM board: the templates' own tests, run there with NEON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedules import test_templates as templates
from tests.schedules.test_templates import *  # noqa: F403 - collected again, to run on the board
from tvmstack import schedules
from tvmstack._tvm import export_library, te, tvm
from tvmstack.board.session import BoardSession
from tvmstack.board.tracker import BoardSpec, request
from tvmstack.core.device import device_from_text
from tvmstack.core.toolchain import cross_compiler

pytestmark = pytest.mark.cpu
A72 = device_from_text("cpu:cortex-a72")


class _Bench:
    """Kernels built here and run there, in one session that is opened again where a kernel ends it."""

    def __init__(self, spec: BoardSpec, folder: Path) -> None:
        self._spec, self._folder, self._count = spec, folder, 0
        self._session: BoardSession | None = None

    def run(
        self, args: list[Any], out: Any, arrays: list[np.ndarray], choice: Any = None, device: Any = A72
    ) -> tuple[Any, np.ndarray]:
        func = te.create_prim_func([*args, out]).with_attr("global_symbol", "kernel")
        scheduled = schedules.apply(func, choice or schedules.default_choice(func, A72), A72)
        self._count += 1
        path = self._folder / f"kernel{self._count}.so"
        library = tvm.compile(scheduled, target=tvm.target.Target(A72.target()))
        export_library(library, str(path), cross_compiler(A72.arch))
        result = np.full([int(d) for d in out.shape], np.nan, "float32")
        return func, self._on_board(path, [*arrays, result])

    def _on_board(self, path: Path, arrays: list[np.ndarray]) -> np.ndarray:
        session = self._session or BoardSession(request(self._spec, 10), "", 600)
        self._session = None
        tensors = [session.tensor(a) for a in arrays]
        session.call(session.load(path, path.name)["kernel"], *tensors)
        session.remove(path.name)
        self._session = session
        return np.asarray(tensors[-1].numpy())


@pytest.fixture(scope="module")
def bench(arm_board: BoardSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Bench]:
    held = _Bench(arm_board, tmp_path_factory.mktemp("kernels"))
    yield held
    held._session = None


@pytest.fixture(autouse=True)
def on_the_board(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert A72.vector_bits == 128
    monkeypatch.setattr(templates, "DEVICE", A72)
    monkeypatch.setattr(templates, "LANES", 4)
    monkeypatch.setattr(templates, "run", bench.run)
