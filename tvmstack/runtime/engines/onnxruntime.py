"""Regions that are ONNX models, run by onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError

__all__ = ["open_engine"]


class _Engine:
    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session, self._inputs, self._outputs = session, list(inputs), list(outputs)

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        results = self._session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)))
        return [np.asarray(r) for r in results]

    def close(self) -> None:
        self._session = None


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> _Engine:
    """Open an ONNX model.

    Raises:
        SetupError: onnxruntime is missing or refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as err:
        raise SetupError("a region of this artifact runs in onnxruntime: pip install onnxruntime") from err
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Spinning threads would take the cores from TVM's kernels between two regions.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    except Exception as err:  # the border to onnxruntime, whose errors share no class
        first = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise SetupError(f"onnxruntime {onnxruntime.__version__} refuses region {row['digest']}: {first}") from err
    return _Engine(session, row["engine_inputs"], row["engine_outputs"])
