"""onnxruntime, its optimisations off, on the original model: what is right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.core.errors import ModelError, SetupError

__all__ = ["Oracle"]


class Oracle:
    """A model as onnxruntime runs it, node by node as it is written.

    Args:
        model: a path (external data beside it is found), the bytes of a model, or an `onnx.ModelProto`.

    Raises:
        SetupError: onnxruntime is not installed.
        ModelError: onnxruntime refuses the model.
    """

    def __init__(self, model: str | Path | bytes | Any) -> None:
        try:
            import onnxruntime
        except ImportError as err:
            raise SetupError("comparing with the original needs onnxruntime: pip install onnxruntime") from err
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        try:
            source = _source(model)
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as err:  # the border to onnxruntime, whose errors share no class
            raise ModelError(f"onnxruntime refuses the model: {_first_line(err)}") from err
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return each output by name.

        Raises:
            ModelError: onnxruntime refuses these inputs.
        """
        try:
            results = self._session.run(None, {k: v for k, v in feeds.items() if k in self.inputs})
        except Exception as err:  # the border to onnxruntime, whose errors share no class
            raise ModelError(f"onnxruntime refuses the inputs: {_first_line(err)}") from err
        return {name: np.asarray(r) for name, r in zip(self.outputs, results, strict=True)}


def _source(model: str | Path | bytes | Any) -> str | bytes:
    if isinstance(model, (str, Path)):
        return str(model)
    # Over 2 GB, protobuf refuses here: such a model is a file with external data.
    return model if isinstance(model, bytes) else bytes(model.SerializeToString())


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
