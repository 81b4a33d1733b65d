"""Regions of an artifact that onnxruntime runs: one packed function each, registered under its digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError
from tvmstack.runtime.tensors import aligned

__all__ = ["PREFIX", "register_region"]

PREFIX = "tvmstack.region."


def register_region(digest: str, model: bytes, row: Mapping[str, Any], threads: int) -> None:
    """Make the packed function of a region; two artifacts with the same region share the last one made.

    Raises:
        SetupError: onnxruntime is missing or refuses the region.
    """
    import tvm_ffi

    try:
        import onnxruntime
    except ImportError as err:
        raise SetupError("a region of this artifact runs in onnxruntime: pip install onnxruntime") from err
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as err:  # the border to onnxruntime, whose errors share no class
        raise SetupError(f"onnxruntime {onnxruntime.__version__} refuses region {digest}: {err}") from err
    names = [spec["name"] for spec in row["inputs"]]
    wanted = [spec["name"] for spec in row["outputs"]]

    def run(*tensors: Any) -> Any:
        feed = {name: np.from_dlpack(t) for name, t in zip(names, tensors, strict=True)}
        results = [tvm_ffi.from_dlpack(aligned(np.asarray(r))) for r in session.run(wanted, feed)]
        return results[0] if len(results) == 1 else results

    tvm_ffi.register_global_func(f"{PREFIX}{digest}", run, override=True)
