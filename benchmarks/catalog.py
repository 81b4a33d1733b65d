"""Every model a benchmark can name, and how each is had: written here, fetched in a wheel, or given as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from benchmarks.models import MODELS, write
from benchmarks.wheels import CACHE, WHEEL_MODELS, fetch

__all__ = ["CALL", "DEFAULT", "QUICK", "Source", "given", "names", "source"]

# The model whose time is that of a call.
CALL = "one_relu"
DEFAULT = (
    "resnet50",
    "mobilenet_v2",
    "deit_tiny",
    "bert_base_1x128",
    "yolo_like_320",
    "minilm_l6_1x32",
    "ppocrv4_det",
    "ppocrv4_rec",
    "silero_vad",
    "silero_vad_lstm",
    "magika",
    "smart_turn",
)
QUICK = ("mobilenet_v2", "ppocrv4_det", "minilm_l6_1x32", "silero_vad")

_EXPORT = "torch exports it: write it to a file and add --model {0}=PATH.onnx"
# Trained models that only torch can read; minilm_l6_1x32 and mobilenet_v2 are the same networks with other weights.
_ONLY_GIVEN = ("minilm_l6", "mobilenetv2_reid")
# Classic networks whose weights the graph makes itself; they come with the onnx package.
_LIGHT = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")


@dataclass(frozen=True)
class Source:
    """A model to measure.

    Attributes:
        name: what tables call it.
        path: its file, for one that was given or comes with a package; None for one that is made or fetched.
        shapes: dims for its dynamic inputs.
        freeze: inputs made constants.
    """

    name: str
    path: Path | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    freeze: dict[str, int] = field(default_factory=dict)

    def file(self) -> Path:
        """Return the model's file, made or fetched the first time.

        Raises:
            OSError: it cannot be had; the message says why.
        """
        if self.path is not None:
            if not self.path.is_file():
                raise OSError(f"there is no file {self.path}")
            return self.path
        if self.name in WHEEL_MODELS:
            return fetch(self.name)
        if self.name in _ONLY_GIVEN:
            raise OSError(_EXPORT.format(self.name))
        return write(self.name, CACHE / "benchmarks" / f"{self.name}.onnx")


def names() -> list[str]:
    """Return every name `source` knows."""
    return [*MODELS, *WHEEL_MODELS, *_ONLY_GIVEN, *(f"light_{n}" for n in _LIGHT)]


def source(name: str) -> Source:
    """Return the model of that name, which must be one of `names`."""
    if name in WHEEL_MODELS:
        return Source(name, None, WHEEL_MODELS[name].shapes, WHEEL_MODELS[name].freeze)
    if name.startswith("light_"):
        return Source(name, Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx")
    return Source(name)


def given(texts: Sequence[str]) -> list[Source]:
    """Return the models of ["NAME=PATH"]; a known name keeps its shapes.

    Raises:
        ValueError: a text is not NAME=PATH.
    """
    sources = []
    for text in texts:
        name, sign, path = text.partition("=")
        if not name or not sign or not path:
            raise ValueError(f"--model {text!r} is not NAME=PATH.onnx")
        known = source(name) if name in names() else Source(name)
        sources.append(Source(name, Path(path), known.shapes, known.freeze))
    return sources
