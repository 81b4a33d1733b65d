"""Options and arguments that several commands share, and how their texts become values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from tvmstack.core.errors import UsageError

__all__ = [
    "artifact_argument",
    "backend_option",
    "board_option",
    "bytes_from_text",
    "device_option",
    "freeze_option",
    "frozen_from_texts",
    "input_option",
    "inputs_from_texts",
    "json_option",
    "model_argument",
    "onnxruntime_nodes_option",
    "report_option",
    "shape_option",
    "shapes_from_texts",
    "store_option",
    "threads_option",
    "winograd_option",
]

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

model_argument = click.argument("model", metavar="MODEL")
artifact_argument = click.argument("artifact", metavar="ARTIFACT")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
device_option = click.option(
    "--device",
    metavar="NAME",
    help="What to compile for: host (the default), cpu:MCPU (for example cpu:haswell, cpu:cortex-a72) or cuda:SM "
    "(cuda:sm_80).",
)
board_option = click.option(
    "--board", metavar="KEY[@TRACKER]", help="Do it on a board of this class [default tracker: 127.0.0.1:9190]."
)
store_option = click.option(
    "--store",
    metavar="PATH",
    help="Tuning records: a file, or postgresql://user@host/name "
    "[default: $TVMSTACK_STORE or ~/.cache/tvmstack/store.db].",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads to use [default: the physical cores we may use].",
)
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=D,D,…", help="Fix an input's dims: --shape x=1,3,224,224."
)
freeze_option = click.option(
    "--freeze", "freeze", multiple=True, metavar="NAME=VALUE", help="Make an input a constant: --freeze sr=16000."
)
onnxruntime_nodes_option = click.option(
    "--onnxruntime-nodes",
    "onnxruntime_nodes",
    multiple=True,
    metavar="NAME",
    help="Give this node to onnxruntime although TVM could take it.",
)
report_option = click.option(
    "--report", metavar="FILE.html", help="Also write a page with each kernel's curve; it needs no network."
)
winograd_option = click.option(
    "--winograd/--no-winograd",
    default=True,
    help="Let 3x3 convolutions use Winograd's algorithm: faster, adds about 5e-6 of the largest value to the error.",
)
backend_option = click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME[:TARGET],…",
    help="Who may run parts of the model: tvm (the default), auto, or names like openvino,tvm and qnn:htp:v73. "
    "Among those that run here the plan is chosen by measured cost.",
)
input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="Feed this array; other inputs get seeded random values.",
)


def shapes_from_texts(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return {"x": (1, 3, 224, 224)} for ["x=1,3,224,224"]; an input without dims ("x=") is a scalar."""
    shapes = {}
    for name, dims in _pairs(texts, "--shape", "x=1,3,224,224"):
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError as err:
            raise UsageError(
                f"--shape {name}={dims}: dims are whole numbers with commas, like {name}=1,3,224,224"
            ) from err
        if any(d < 1 for d in shapes[name]):
            raise UsageError(f"--shape {name}={dims}: every dim must be 1 or more")
    return shapes


def bytes_from_text(text: str | None) -> int | None:
    """Return bytes for "64MB", "1.5GiB" or "500000"; decimal and binary units are told apart."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b?|b?)\s*", text.lower())
    if match is None:
        raise UsageError(f"--memory-budget {text!r} is no size; write 64MB or 1.5GiB")
    unit = match[2].rstrip("b")
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match[1]) * base ** " kmg".index(unit[:1] or " "))


def frozen_from_texts(texts: Iterable[str]) -> dict[str, float | int]:
    """Return {"sr": 16000} for ["sr=16000"]."""
    values: dict[str, float | int] = {}
    for name, text in _pairs(texts, "--freeze", "sr=16000"):
        try:
            values[name] = float(text) if any(c in text for c in ".en") else int(text)
        except ValueError as err:
            raise UsageError(f"--freeze {name}={text}: the value must be a number") from err
    return values


def inputs_from_texts(texts: Iterable[str]) -> dict[str, Any]:
    """Load the arrays of ["x=image.npy"]; nothing is unpickled."""
    import numpy as np

    arrays = {}
    for name, file in _pairs(texts, "--input", "x=image.npy"):
        try:
            arrays[name] = np.load(Path(file), allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise UsageError(f"--input {name}={file}: cannot read a .npy array: {err}") from err
    return arrays


def _pairs(texts: Iterable[str], option: str, example: str) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not sign or not name:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE, like {option} {example}")
        yield name, value.strip()
