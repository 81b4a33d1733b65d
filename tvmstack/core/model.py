"""The model as it travels from the import to the partition: an ONNX graph, its signature and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["Model", "TensorSpec"]


@dataclass(frozen=True)
class TensorSpec:
    """Name, numpy dtype name and shape of one input or output; a dim is an int, or a name where it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return all(isinstance(d, int) for d in self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorSpec:
        """Rebuild a spec from `to_json`."""
        return TensorSpec(data["name"], data["dtype"], tuple(data["shape"]))


@dataclass(frozen=True)
class Model:
    """An ONNX graph with its signature.

    `graph` is an `onnx_ir.Model` that is valid ONNX at every stage, so that onnxruntime can run and check each. Passes
    return a new `Model`; they may change `graph` in place, since nobody keeps the old stage.

    Attributes:
        graph: the `onnx_ir.Model`.
        inputs: what a caller feeds, in order (initializers are not inputs).
        outputs: what a caller gets, in order.
        digest: sha256 (hex) of the file or bytes the model came from, external data included.
        source: where it came from, for messages ("resnet50.onnx", "<bytes>", "torch.export program").
        changes: one line for each thing a repair or a pass changed, in order.
    """

    graph: onnx_ir.Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    digest: str
    source: str
    changes: tuple[str, ...] = ()
    frozen_inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    def changed(self, *lines: str) -> Model:
        """Return this model with more lines in its history."""
        return replace(self, changes=self.changes + lines)
