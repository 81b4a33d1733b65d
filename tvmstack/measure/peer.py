"""One program under measurement in a process of its own: `python -m tvmstack.measure.peer` speaks JSON lines.

The first line in is the `PeerSpec`; each line after it asks for a round. Only the parent decides who runs when, so that
two peers never run at the same time and no peer's spinning threads sit beside another's work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tvmstack.core.errors import BackendError, SetupError, TvmstackError, UsageError, nearest

__all__ = ["PEERS", "main"]

Runner = Callable[[], object]
Inputs = dict[str, np.ndarray]


def _tvmstack(path: str, inputs: Inputs, threads: int) -> tuple[Runner, str]:
    from tvmstack.runtime import load

    session = load(path, threads=threads)
    mine = {spec.name: inputs[spec.name] for spec in session.inputs}
    return lambda: session.run(mine), ""


def _onnxruntime(path: str, inputs: Inputs, threads: int) -> tuple[Runner, str]:
    try:
        import onnxruntime as ort
    except ImportError as err:
        raise SetupError("it is not installed; pip install onnxruntime") from err
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs), str(ort.__version__)


def _openvino(path: str, inputs: Inputs, threads: int) -> tuple[Runner, str]:
    try:
        import openvino as ov
    except ImportError as err:
        raise SetupError("it is not installed; pip install openvino, or 'tvmstack[bench]'") from err
    core = ov.Core()
    model = core.read_model(path)
    if model.is_dynamic():
        model.reshape({name: list(value.shape) for name, value in inputs.items()})
    # On a CPU with AMX its own choice is bf16, which is another computation.
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(model, "CPU", hints)
    used = compiled.get_property("INFERENCE_PRECISION_HINT")
    if used != ov.Type.f32:
        raise BackendError(f"it would compute in {used.get_type_name()}, not in f32")
    request = compiled.create_infer_request()
    # Inputs are read where they lie, as onnxruntime does.
    return lambda: request.infer(inputs, share_inputs=True), str(ov.__version__).split("-", maxsplit=1)[0]


PEERS: dict[str, Callable[[str, Inputs, int], tuple[Runner, str]]] = {
    "tvmstack": _tvmstack,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


def _round(run: Runner, seconds: float, least: int) -> list[float]:
    """Time single runs until `seconds` have passed, after two that wake threads and caches up."""
    run(), run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def peak_rss() -> int:
    """Return this process's largest resident size in bytes.

    From /proc, because `ru_maxrss` is inherited from the parent across exec.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next((x for x in status.read_text().splitlines() if x.startswith("VmHWM")), "VmHWM: 0")
    return int(line.split()[1]) * 1024


def _serve(lines: TextIO, reply: Callable[[dict[str, Any]], None]) -> None:
    spec = json.loads(lines.readline())
    maker = PEERS.get(spec["kind"])
    if maker is None:
        raise UsageError(f"unknown peer {spec['kind']!r}; {nearest(spec['kind'], PEERS)}")
    with np.load(spec["inputs"]) as stored:
        inputs = {name: stored[name] for name in stored.files}
    run, version = maker(spec["path"], inputs, spec["threads"])
    run()
    reply({"ready": True, "version": version})
    for line in lines:
        ask = json.loads(line)
        reply({"seconds": _round(run, ask["seconds"], ask["least"]), "peak_rss": peak_rss()})


def main() -> int:
    """Serve one parent until it closes our standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not land among the answers

    def reply(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        _serve(sys.stdin, reply)
    except TvmstackError as err:
        reply({"error": str(err), "class": type(err).__name__})
        return err.exit_code
    except Exception as err:  # noqa: BLE001 - a vendor library may raise anything; the parent gets its words
        reply({"error": f"{type(err).__name__}: {err}", "class": "BackendError"})
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
