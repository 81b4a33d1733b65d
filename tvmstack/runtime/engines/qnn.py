"""Run a Qualcomm context binary: on the chip's HTP, or on x86-64 in the emulator that comes with the same library."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack.core.errors import SetupError
from tvmstack.core.packages import installed_version, same_release

__all__ = ["open_engine", "session_options"]

_PROVIDER, _PACKAGE = "QNNExecutionProvider", "onnxruntime-qnn"
_lock = threading.Lock()


class _Engine:
    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session, self._inputs, self._outputs = session, list(inputs), list(outputs)

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [np.asarray(y) for y in self._session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)))]

    def close(self) -> None:
        self._session = None


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> _Engine:
    """Open the ONNX model whose one EPContext node holds the binary; `threads` mean nothing on the HTP.

    Raises:
        SetupError: the library is missing or of another release, or refuses the binary.
    """
    wanted, here = str(row["versions"].get(_PACKAGE, "")), installed_version(_PACKAGE)
    if wanted and here and not same_release(wanted, here):
        install = f"pip install {_PACKAGE}=={wanted}"
        raise SetupError(f"region {row['digest']} is a context of {_PACKAGE} {wanted}, installed is {here}: {install}")
    config = session_options(str(row["options"]["architecture"]))
    config.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    config.log_severity_level = 3
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(blob, config)
    except Exception as err:  # the border to onnxruntime, whose errors share no class
        raise SetupError(f"the QNN provider refuses region {row['digest']}: {_first_line(err)}") from err
    if _PROVIDER not in session.get_providers():
        raise SetupError(f"region {row['digest']} would run on the CPU: onnxruntime did not take the QNN provider")
    return _Engine(session, row["engine_inputs"], row["engine_outputs"])


def session_options(architecture: str) -> Any:
    """Return options of an onnxruntime session on the HTP of this architecture ("73").

    Raises:
        SetupError: onnxruntime or onnxruntime-qnn is missing, or its library cannot be loaded.
    """
    try:
        import onnxruntime
        import onnxruntime_qnn
    except ImportError as err:
        raise SetupError(f"Qualcomm's library is missing ({err}): pip install 'tvmstack[qnn]'") from err
    options = onnxruntime.SessionOptions()
    settings = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "htp_arch": architecture,
        # Quantising at the border is the HTP's work too: the region stays whole.
        "offload_graph_io_quantization": "0",
    }
    options.add_provider_for_devices(_devices(onnxruntime, onnxruntime_qnn.get_library_path())[:1], settings)
    return options


def _devices(onnxruntime: Any, library: str) -> list[Any]:
    def known() -> list[Any]:
        return [d for d in onnxruntime.get_ep_devices() if d.ep_name == _PROVIDER]

    with _lock:
        if not known():
            try:
                onnxruntime.register_execution_provider_library(_PROVIDER, library)
            except Exception as err:  # the border to onnxruntime, whose errors share no class
                raise SetupError(f"onnxruntime cannot load {library}: {_first_line(err)}") from err
        found = known()
    if not found:
        raise SetupError(f"{library} offers no device on this machine")
    return found


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
