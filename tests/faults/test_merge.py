"""Two stores tuned apart and merged: both models are built from records, without a trial."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tvmstack
from tests.conftest import conv_block, mlp
from tvmstack.cli.boundary import run
from tvmstack.store import open_store

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


def test_two_stores_tuned_apart_and_merged_serve_both_models_without_a_trial(tmp_path: Path) -> None:
    models = {"mlp": mlp(), "cnn": conv_block()}
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
        words = [
            "-q",
            "tune",
            str(tmp_path / f"{name}.onnx"),
            "--store",
            str(tmp_path / f"{name}.db"),
            "--trials",
            "24",
        ]
        assert run([*words, "--json"]) == 0
    merged = str(tmp_path / "merged.db")
    assert run(["cache", "merge", str(tmp_path / "mlp.db"), str(tmp_path / "cnn.db"), "-o", merged]) == 0
    before = len(open_store(merged, shipped=False).records())
    for name in models:
        artifact = tvmstack.compile(tmp_path / f"{name}.onnx", store=merged)
        sources = artifact.report["sources"]
        assert artifact.report["tuning"] is None
        assert sources["tuned"] >= 1, sources
        assert "default" not in sources, sources
        assert artifact.report["verification"]["worst"] <= 1e-3
    store = open_store(merged, shipped=False)
    assert len(store.records()) == before
    assert any(r.proven for r in store.records())
    assert store.records(quarantined=True) == []
    store.close()
