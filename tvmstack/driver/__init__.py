"""The flow: a model through the rooms to an artifact. Every verb of the command line is a function here.

The order of `compile` is the order of ARCHITECTURE.md; what each step does is in its room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.core.device import Device, detect_device
from tvmstack.core.errors import UsageError, nearest
from tvmstack.driver.algorithms import recorded, settled
from tvmstack.driver.boards import (
    board_device,
    opened_artifact,
    opened_boards,
    refuse_regions,
    time_on_board,
)
from tvmstack.driver.compare import compare_build, compare_reference, compare_with, frozen_of
from tvmstack.driver.owners import Wish, built_by_plan, check_wish
from tvmstack.driver.result import Artifact, check_output, check_scratch, seconds_from
from tvmstack.driver.steps import (
    Progress,
    Shapes,
    clock,
    device_of,
    key_context,
    open_records,
    prepare,
    store_line,
    tune_kernels,
)
from tvmstack.measure.machine import require_linker

if TYPE_CHECKING:
    from tvmstack.core.kernel import Kernel
    from tvmstack.frontend import ScanReport
    from tvmstack.measure.bench import BenchReport
    from tvmstack.measure.profile import ProfileReport

__all__ = [
    "Artifact",
    "bench",
    "check",
    "check_output",
    "compile",
    "package",
    "profile",
    "run",
    "scan",
    "seconds_from",
    "tune",
    "verify",
    "why",
]


def compile(
    model: Any,
    shapes: Shapes = None,
    device: str | Device | None = None,
    tune: float | str | None = None,
    trials: int | None = None,
    store: str | Path | None = None,
    verify: bool = True,
    onnxruntime_nodes: Collection[str] = (),
    threads: int | None = None,
    progress: Progress = None,
    freeze: Mapping[str, Any] | None = None,
    sample_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    winograd: bool = True,
    shipped: bool = True,
    board: str | None = None,
    backends: Sequence[str] = (),
    min_region: int = 1,
    memory_budget: int | None = None,
    plan: str | Path | None = None,
) -> Artifact:
    """Compile a model to one shared library, tuned and compared with the original.

    Args:
        model: a path, bytes, an `onnx.ModelProto`, a `torch.export.ExportedProgram`, or a `torch.nn.Module`.
        shapes: dims for inputs that have dynamic ones.
        device: "host" (the default), "cpu:MCPU", "cuda:SM" (like "cuda:sm_80") or a `Device`. A program for a GPU is
            not compared here: that needs the GPU.
        tune: time to tune for: seconds, or text like "90s", "2m", "1h".
        trials: how many trials at most.
        store: where tuning records are; None for $TVMSTACK_STORE or the user's cache.
        verify: whether to compare with onnxruntime on the original model.
        onnxruntime_nodes: names of nodes that onnxruntime shall run although TVM could.
        threads: what the artifact will use by default; None for the device's cores.
        progress: called with the state of tuning.
        freeze: inputs to make constants, by name.
        sample_inputs: for a `torch.nn.Module`: what to trace it with.
        inputs: arrays to compare on besides random and edge ones, by input name.
        winograd: whether 3 x 3 convolutions may use Winograd's algorithm, which adds about 5e-6 of the largest value
            to the error of a layer.
        shipped: whether the records that come with tvmstack count.
        board: "KEY[@TRACKER]": compile for that class of boards, tune and compare there.
        backends: who may have regions of the graph: "auto", or "tvm" and "NAME" or "NAME:TARGET"; where several can run
            here, the plan is chosen by measured cost. By default TVM has all it can take.
        min_region: a region has at least this many nodes.
        memory_budget: bytes that weights, regions and intermediate results may take together.
        plan: an earlier artifact, or its manifest as JSON, whose plan is done again.

    Raises:
        UsageError, ModelError, SetupError, BackendError, TuningError, ArtifactError, BoardError: see
            `tvmstack.core.errors`.
    """
    budget = seconds_from(tune)
    wish = Wish(tuple(backends), min_region, memory_budget, Path(plan) if plan else None)
    check_wish(wish)
    with opened_boards(board) as boards, open_records(store, shipped) as records:
        target = board_device(boards, device)
        require_linker(device_of(target).arch)
        pick = recorded(records, device_of(target), winograd)
        prepared = prepare(model, shapes, target, onnxruntime_nodes, freeze, sample_inputs, pick)
        refuse_regions(boards, prepared.plan)
        prepared.boards = boards
        check_scratch(sum(w.nbytes for w in prepared.lowered.weights))
        tuning = None
        with clock(prepared.seconds, "tune"):
            if budget or trials:
                tuning = tune_kernels(prepared, records, budget, trials, progress)
                prepared = settled(prepared)
        prepared.given_inputs = inputs or {}
        built = built_by_plan(prepared, wish, records, threads)
        prepared, chosen, artifact = built.prepared, built.chosen, built.artifact
        artifact.report["tuning"] = tuning
        if verify and not prepared.device.sm:
            with clock(prepared.seconds, "compare"):
                compare_build(artifact, prepared, chosen, inputs)
    artifact.report["seconds"] = {k: round(v, 3) for k, v in prepared.seconds.items()}
    return artifact


def scan(
    model: Any,
    shapes: Shapes = None,
    freeze: Mapping[str, Any] | None = None,
    sample_inputs: Any = None,
    backends: Sequence[str] = (),
) -> ScanReport:
    """Say for each node who can run it and why not TVM; see `compile` for the arguments. Dims may stay dynamic.

    Each of `backends` ("NAME", "NAME:TARGET", or "auto" for all that run here) is asked about each node as well.

    Raises:
        ModelError: the model cannot be read.
        UsageError: shapes or frozen values do not fit, or there is no such back end or target.
        SetupError: a back end that is named is not installed; the message says how to get it.
        BackendError: one cannot answer.
    """
    from tvmstack.driver.takers import answers_of, open_takers
    from tvmstack.frontend import scan as scan_model

    takers = open_takers(backends, 1, None)
    report = scan_model(model, shapes, sample_inputs, freeze=freeze)
    return replace(report, backends=answers_of(takers, report.model)) if takers else report


def tune(
    model: Any,
    shapes: Shapes = None,
    device: str | Device | None = None,
    tune: float | str | None = None,
    trials: int | None = None,
    store: str | Path | None = None,
    onnxruntime_nodes: Collection[str] = (),
    progress: Progress = None,
    freeze: Mapping[str, Any] | None = None,
    winograd: bool = True,
    board: str | None = None,
) -> dict[str, Any]:
    """Measure schedules for a model's kernels into the store and build nothing; see `compile` for the arguments.

    Returns:
        What was tried and gained, kernel by kernel, as plain data.

    Raises:
        UsageError: neither `tune` nor `trials` says how much.
    """
    seconds = seconds_from(tune)
    if not seconds and not trials:
        raise UsageError("say how much to tune: a time (tune='5m') or a number of trials")
    with opened_boards(board) as boards, open_records(store) as records:
        target = board_device(boards, device)
        require_linker(device_of(target).arch)
        pick = recorded(records, device_of(target), winograd)
        prepared = prepare(model, shapes, target, onnxruntime_nodes, freeze, None, pick)
        prepared.boards = boards
        return tune_kernels(prepared, records, seconds, trials, progress)


def run(
    artifact: str | Path,
    inputs: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    board: str | None = None,
) -> dict[str, np.ndarray]:
    """Run an artifact once, here or on a board; inputs left out get seeded random values."""
    from tvmstack.measure.feed import fill_inputs

    with opened_boards(board) as boards, opened_artifact(Path(artifact), threads, boards) as session:
        return session.run(fill_inputs(session.inputs, inputs or {}))


def bench(
    artifact: str | Path,
    model: str | Path | None = None,
    against: Sequence[str] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    rounds: int = 7,
    seconds: float = 0.5,
    progress: Callable[[str], None] | None = None,
    board: str | None = None,
) -> BenchReport:
    """Time an artifact against other runtimes on the same inputs and threads; see `tvmstack.measure.bench`.

    Args:
        artifact: the `.so`.
        model: the original model, which the peers load.
        against: names of peers; None for onnxruntime where there is a model, else none.
        inputs: what to feed; seeded random values where an input is left out.
        threads: None for what the artifact was built for.
        rounds: turns each program gets.
        seconds: length of one turn.
        progress: called with a line before each round.
        board: "KEY[@TRACKER]": time it there, by the board's clock and without peers.
    """
    from tvmstack.artifact.manifest import read_manifest
    from tvmstack.measure.bench import PeerSpec
    from tvmstack.measure.bench import bench as measure
    from tvmstack.measure.feed import fill_inputs
    from tvmstack.measure.peer import PEERS

    if board is not None:
        if against or model:
            raise UsageError("there are no peers on a board: leave --against and --model out")
        feed = fill_inputs(read_manifest(Path(artifact)).inputs, inputs or {})
        with opened_boards(board) as boards:
            assert boards is not None
            return time_on_board(Path(artifact), boards, feed, rounds, seconds)
    names = list(against) if against is not None else ["onnxruntime"] if model else []
    for name in names:
        if name not in PEERS:
            raise UsageError(f"unknown peer {name!r}; {nearest(name, PEERS)}")
    if names and model is None:
        raise UsageError(f"{', '.join(names)} needs the original model: add --model FILE")
    if model is not None:
        _require_file(model)
    manifest = read_manifest(Path(artifact))
    peers = [PeerSpec("tvmstack", str(artifact))] + [PeerSpec(name, str(model)) for name in names]
    feed = {**fill_inputs(manifest.inputs, inputs or {}), **frozen_of(manifest)}
    count = threads or manifest.threads
    return measure(
        peers, feed, threads=count, device=detect_device().id, rounds=rounds, seconds=seconds, progress=progress
    )


def profile(
    artifact: str | Path,
    inputs: Mapping[str, np.ndarray] | None = None,
    repeats: int = 20,
    peaks: bool = True,
    threads: int | None = None,
    board: str | None = None,
) -> ProfileReport:
    """Time an artifact kernel by kernel, against the machine's measured peaks where `peaks` is on.

    On a board times are by its clock, and peaks are not measured.
    """
    from tvmstack.measure.feed import fill_inputs
    from tvmstack.measure.peaks import measure_peaks
    from tvmstack.measure.profile import profile_rows

    with opened_boards(board) as boards, opened_artifact(Path(artifact), threads, boards) as session:
        limits = measure_peaks(threads or session.manifest.threads) if peaks and boards is None else None
        return profile_rows(session, fill_inputs(session.inputs, inputs or {}), limits, repeats)


def check(artifact: str | Path) -> list[dict[str, Any]]:
    """Return one row for each thing that must hold for an artifact on this machine, executing nothing of it."""
    from tvmstack.artifact import check as check_artifact

    return [row.to_json() for row in check_artifact(Path(artifact))]


def package(
    artifact: str | Path, folder: str | Path, runtime: bool = True, vendor: bool = False, arch: str | None = None
) -> dict[str, Any]:
    """Put an artifact into a new folder with what runs it without Python; see `tvmstack.native.write_package`.

    Returns:
        {"folder", "arch", "files", "libraries_bytes", "notes"} as plain data.
    """
    from tvmstack.native import write_package

    return write_package(Path(artifact), Path(folder), runtime, vendor, arch).to_json()


def verify(
    artifact: str | Path,
    model: str | Path | None = None,
    threads: int | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    board: str | None = None,
) -> dict[str, Any]:
    """Compare an artifact with the original model, or without one with the answers it carries.

    `inputs` are compared besides random and edge ones.

    Returns:
        {"cases", "worst", "tolerance", …} as plain data.

    Raises:
        ArtifactError: it differs.
    """
    from tvmstack.artifact.manifest import read_manifest

    path = Path(artifact)
    manifest = read_manifest(path)
    if model is not None:
        _require_file(model)
    with opened_boards(board) as boards:
        if model is None:
            return compare_reference(path, manifest, threads, boards)
        return compare_with(path, manifest, Path(model), threads, inputs, boards).to_json()


def why(
    model: Any,
    shapes: Shapes = None,
    device: str | Device | None = None,
    store: str | Path | None = None,
    freeze: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Say for each kernel of a model whether the store has a record that fits, and if not, what differs."""
    with open_records(store) as records:
        prepared = prepare(model, shapes, device, (), freeze, None, recorded(records, device_of(device), winograd=True))
        context = key_context(prepared)
        rows = [
            _why_row(kernel, records.explain(kernel, context), prepared.device) for kernel in prepared.lowered.kernels
        ]
    answers = [row["answer"] for row in rows]
    fixed = answers.count("fixed")
    return {"line": store_line(answers.count("found"), len(rows) - fixed, fixed), "kernels": rows}


def _why_row(kernel: Kernel, answer: Any, device: Device) -> dict[str, Any]:
    from tvmstack import schedules

    shown, reason = answer.record or answer.nearest, answer.reason
    if answer.record is None and not schedules.candidates(kernel.func, device, 1):
        verdict, reason = "fixed", "it has one schedule only"
    elif answer.record is None and shown is not None and shown.quarantine:
        verdict = "quarantined"
    else:
        verdict = "found" if answer.record else "missing"
    nearest = None if shown is None else {"median_s": shown.median_s, "when": shown.when, **shown.fields}
    fields = {"differs": list(answer.differs), "record": nearest}
    return {"name": kernel.name, "calls": kernel.calls, "answer": verdict, "why": reason, **fields}


def _require_file(model: str | Path) -> None:
    if not Path(model).is_file():
        raise UsageError(f"there is no file {model}")
