"""Regions that OpenVINO compiled: blobs of `export_model`, imported by the same release on the device they name."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError
from tvmstack.core.packages import same_release

__all__ = ["open_engine"]


class _Engine:
    """Requests serve one call at a time; each caller borrows one."""

    def __init__(self, compiled: Any, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._compiled, self._inputs, self._outputs = compiled, list(inputs), list(outputs)
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        with self._lock:
            request = self._idle.pop() if self._idle else None
        if request is None:
            request = self._compiled.create_infer_request()
        # Inputs are read where they lie; the request's own outputs are overwritten by its next call.
        request.infer(dict(zip(self._inputs, inputs, strict=True)), share_inputs=True, share_outputs=True)
        results = [np.array(request.get_output_tensor(index).data) for index in self._outputs]
        with self._lock:
            self._idle.append(request)
        return results

    def close(self) -> None:
        self._idle.clear()
        self._compiled = None


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> _Engine:
    """Import a blob.

    Raises:
        SetupError: OpenVINO is missing or of another release, has no such device, or refuses the blob.
    """
    wanted = str(row["versions"].get("openvino", ""))
    install = f"pip install openvino=={wanted}" if wanted else "pip install openvino"
    try:
        import openvino
    except ImportError as err:
        raise SetupError(f"region {row['digest']} needs openvino {wanted}, which is not installed: {install}") from err
    here = str(openvino.__version__).split("-", maxsplit=1)[0]
    if wanted and not same_release(wanted, here):
        raise SetupError(f"region {row['digest']} is a blob of openvino {wanted}, installed is {here}: {install}")
    try:
        compiled = openvino.Core().import_model(blob, _device(row), _properties(row, threads))
    except RuntimeError as err:
        words = str(err).strip().splitlines()[-1]
        raise SetupError(
            f"openvino {here} refuses region {row['digest']} on {_device(row)}, although it is of that release: "
            f"{words}. It may be for another CPU: compile the model on this machine"
        ) from err
    return _Engine(
        compiled, _places(compiled.inputs, row["engine_inputs"]), _places(compiled.outputs, row["engine_outputs"])
    )


def _device(row: Mapping[str, Any]) -> str:
    return str(row["target"]).upper()


def _properties(row: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Return what the blob does not keep: the precision, which on some CPUs is half by default, and threads."""
    properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if _device(row) == "CPU":
        properties["INFERENCE_NUM_THREADS"] = threads
    return {**properties, **row["options"]}


def _places(ports: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Return the index of each name among a model's ports, which may be in another order."""
    by_name = {name: index for index, port in enumerate(ports) for name in port.get_names()}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise SetupError(f"the blob has no tensor {missing[0]!r}: it is not the region's")
    return [by_name[name] for name in names]
