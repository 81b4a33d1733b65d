"""An artifact on a board, used like a `runtime.Session` here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.artifact.manifest import Manifest, read_manifest
from tvmstack.board.watch import Boards
from tvmstack.core.device import Device
from tvmstack.core.errors import ArtifactError
from tvmstack.core.model import TensorSpec
from tvmstack.runtime.session import KernelTime
from tvmstack.runtime.tensors import Signature

__all__ = ["RemoteSession", "require_fit"]


def require_fit(path: Path, manifest: Manifest, board: str, device: Device) -> None:
    """Refuse an artifact that the board cannot run.

    Raises:
        ArtifactError: it is for another CPU, or has regions, for which a board has no onnxruntime.
    """
    built = Device.from_json(manifest.device)
    missing = [f for f in built.features if f not in device.features]
    if built.arch != device.arch or missing:
        what = f"is {device.arch}" if built.arch != device.arch else f"lacks {', '.join(missing)}"
        raise ArtifactError(
            f"{path} was built for {built.mcpu} ({built.arch}); board {board} {what}: compile with --board"
        )
    if manifest.regions:
        reasons = {reason for region in manifest.plan["regions"] for reason in region["reasons"]}
        raise ArtifactError(
            f"{path} cannot run on board {board}: {len(manifest.regions)} region(s) of it run in onnxruntime, which "
            f"boards do not have ({'; '.join(sorted(reasons))})"
        )


class RemoteSession:
    """An artifact loaded on a board of a class; the board is given back by `close`.

    Raises:
        ArtifactError: it is damaged, or not for this board.
    """

    def __init__(self, boards: Boards, path: Path) -> None:
        self._manifest = read_manifest(path)
        require_fit(path, self._manifest, boards.facts.name, boards.facts.device())
        self._boards = boards
        self._signature = Signature(self._manifest.inputs)
        boards.load(path)

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self._manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `run` takes."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `run` returns."""
        return self._manifest.outputs

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the model there; see `tvmstack.runtime.Session.run`."""
        found = self._boards.infer(self._signature.arrays(inputs))
        return dict(zip((spec.name for spec in self.outputs), found, strict=True))

    def time(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[float]:
        """Return the seconds of `repeats` runs by the board's clock, transfers left out."""
        return self._boards.time(self._signature.arrays(inputs), repeats)

    def profile(self, inputs: Mapping[str, Any], repeats: int = 20) -> list[KernelTime]:
        """Return the time of each kernel there; see `tvmstack.runtime.Session.profile`."""
        runs = self._boards.profile(self._signature.arrays(inputs), repeats)
        names = [name for name in runs[-1] if not name.startswith("vm.")]
        return [KernelTime(name, float(np.median([run[name][0] for run in runs])), runs[-1][name][1]) for name in names]

    def close(self) -> None:
        """Give the board back."""
        self._boards.close()

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
