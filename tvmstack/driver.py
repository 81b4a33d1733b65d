"""The flow: a model through the rooms to an artifact. Every verb of the command line is a function here.

The order of `compile` is the order of ARCHITECTURE.md; what each step does is in its room.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.core.device import Device, detect_device, device_from_text
from tvmstack.core.errors import ArtifactError, SetupError, UsageError, nearest
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.measure.machine import require_linker

if TYPE_CHECKING:
    from tvmstack.artifact.manifest import Manifest
    from tvmstack.core.model import Model
    from tvmstack.frontend import ScanReport
    from tvmstack.lower.pipeline import Lowered
    from tvmstack.measure.bench import BenchReport
    from tvmstack.measure.profile import ProfileReport
    from tvmstack.partition import Plan

__all__ = [
    "Artifact",
    "bench",
    "cache_export",
    "cache_import",
    "cache_ls",
    "cache_stats",
    "cache_why",
    "check",
    "check_output",
    "compile",
    "profile",
    "scan",
    "seconds_from",
    "tune",
    "verify",
]

_log = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]] | None
Progress = Callable[[Any], None] | None

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# What an artifact needs beside its model: the library's code and the working copy of the build.
_SPARE_BYTES = 32 << 20
_REPORTED_KERNELS = 400


@dataclass
class Artifact:
    """A built and, unless that was switched off, compared artifact that `save` puts in its place.

    Attributes:
        path: the file: a temporary one until `save`.
        manifest: what it says of itself.
        report: what happened while it was built, as plain data.
    """

    path: Path
    manifest: Manifest
    report: dict[str, Any]
    _folder: Any = field(default=None, repr=False)

    def save(self, path: str | Path) -> Path:
        """Put the artifact at `path`, all of it or nothing.

        Raises:
            SetupError: the place cannot be written or is full.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(self.path, part)
            part.chmod(0o755)
            os.replace(part, target)
        except OSError as err:
            part.unlink(missing_ok=True)
            raise SetupError(f"cannot write {target}: {_disk_words(err)}") from err
        self.path = target
        self.report["path"] = str(target)
        self._folder = None
        return target


@dataclass
class _Prepared:
    """A model on its way, as far as unscheduled kernels."""

    origin: Any
    model: Model
    plan: Plan
    lowered: Lowered
    device: Device
    seconds: dict[str, float]


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
) -> Artifact:
    """Compile a model to one shared library, tuned and compared with the original.

    Args:
        model: a path, bytes, an `onnx.ModelProto`, or a `torch.export.ExportedProgram`.
        shapes: dims for inputs that have dynamic ones.
        device: "host" (the default), "cpu:MCPU" or a `Device`.
        tune: time to tune for: seconds, or text like "90s", "2m", "1h".
        trials: how many trials at most.
        store: where tuning records are; None for $TVMSTACK_STORE or the user's cache.
        verify: whether to compare with onnxruntime on the original model.
        onnxruntime_nodes: names of nodes that onnxruntime shall run although TVM could.
        threads: what the artifact will use by default; None for the device's cores.
        progress: called with the state of tuning.
        freeze: inputs to make constants, by name.

    Raises:
        UsageError, ModelError, SetupError, BackendError, TuningError, ArtifactError: see `tvmstack.core.errors`.
    """
    budget = seconds_from(tune)
    require_linker()
    prepared = _prepare(model, shapes, device, onnxruntime_nodes, freeze)
    with _clock(prepared.seconds, "tune"), _records(store) as records:
        tuning = _tune(prepared, records, budget, trials, progress) if budget or trials else None
        chosen = _choose(prepared, records)
    artifact = _build(prepared, chosen, threads)
    artifact.report["tuning"] = tuning
    if verify:
        with _clock(prepared.seconds, "compare"):
            _compare(artifact, prepared, shapes)
    artifact.report["seconds"] = {k: round(v, 3) for k, v in prepared.seconds.items()}
    return artifact


def _prepare(
    model: Any,
    shapes: Shapes,
    device: str | Device | None,
    onnxruntime_nodes: Collection[str],
    freeze: Mapping[str, Any] | None,
) -> _Prepared:
    from tvmstack.frontend import load_model
    from tvmstack.graph import repair
    from tvmstack.lower import lower
    from tvmstack.partition import make_plan

    seconds: dict[str, float] = {}
    target = device if isinstance(device, Device) else device_from_text(device)
    with _clock(seconds, "import"):
        repaired = repair(load_model(model, shapes, freeze=freeze))
        plan = make_plan(repaired, onnxruntime_nodes)
    with _clock(seconds, "lower"):
        lowered = lower(plan.model, target)
    for line in plan.model.changes:
        _log.debug("changed: %s", line)
    return _Prepared(model, repaired, plan, lowered, target, seconds)


@contextmanager
def _clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start


def seconds_from(text: float | str | None) -> float | None:
    """Return a time budget in seconds: 90, "90", "90s", "2m" or "1h".

    Raises:
        UsageError: the text is no such time.
    """
    if text is None or isinstance(text, (int, float)):
        seconds = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
        if match is None:
            raise UsageError(f"{text!r} is not a time; write 90s, 2m or 1h")
        seconds = float(match[1]) * _UNITS[match[2]]
    if seconds is not None and seconds <= 0:
        raise UsageError(f"the time to tune for must be more than nothing, not {text!r}")
    return float(seconds) if seconds is not None else None


def check_output(path: Path, model: Path | None = None) -> None:
    """Refuse an output file that could not be written, before any long work.

    Raises:
        SetupError: its folder is missing, not writable or too full.
        UsageError: it is a folder.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise SetupError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise SetupError(f"cannot write {path}: the folder {folder} is not writable")
    need = 2 * (model.stat().st_size if model and model.is_file() else 0) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < need:
        raise SetupError(
            f"cannot write {path}: about {need >> 20} MiB are needed and {free >> 20} MiB are free in {folder}"
        )


def _disk_words(err: OSError) -> str:
    if err.errno == errno.ENOSPC:
        return "the disk is full"
    return err.strerror or str(err)


def scan(
    model: Any, shapes: Shapes = None, freeze: Mapping[str, Any] | None = None, sample_inputs: Any = None
) -> ScanReport:
    """Say for each node who can run it and why not TVM; see `compile` for the arguments. Dims may stay dynamic."""
    from tvmstack.frontend import scan as scan_model

    return scan_model(model, shapes, sample_inputs, freeze=freeze)


@contextmanager
def _records(store: str | Path | None) -> Iterator[Any]:
    from tvmstack.store import open_store

    records = open_store(store)
    try:
        yield records
    finally:
        records.close()


def _context(prepared: _Prepared) -> Any:
    from tvmstack.store import KeyContext

    return KeyContext.current(prepared.device, prepared.lowered.pipeline.digest)


def _tune(
    prepared: _Prepared, records: Any, seconds: float | None, trials: int | None, progress: Progress
) -> dict[str, Any]:
    from tvmstack.tuning import tune as tune_kernels

    lowered = prepared.lowered
    report = tune_kernels(
        lowered.kernels,
        prepared.device,
        lowered.pipeline.digest,
        records,
        seconds=seconds,
        trials=trials,
        progress=progress,
    )
    data: dict[str, Any] = report.to_json()
    _log.info("tuned: %d trials in %.0f s", data["trials"], data["seconds"])
    return data


@dataclass(frozen=True)
class _Chosen:
    """Choices by kernel name, and what is known of each: {"source": …, "median_us": …}."""

    choices: dict[str, Choice]
    facts: dict[str, dict[str, Any]]


def _choose(prepared: _Prepared, records: Any) -> _Chosen:
    """Take the best record of each kernel; kernels without one, or whose record no longer applies, get the default."""
    from tvmstack import schedules
    from tvmstack.core.errors import TuningError

    context, choices, facts = _context(prepared), {}, {}
    found = 0
    for kernel in prepared.lowered.kernels:
        record = records.best(kernel, context)
        source = "default"
        if record is not None:
            try:
                schedules.apply(kernel.func, record.choice, prepared.device)
                choices[kernel.name] = record.choice
                source = record.source
                found += 1
            except TuningError as err:
                _log.warning("the record of %s does not apply and is left aside: %s", kernel.name, err)
                record = None
        facts[kernel.name] = {"source": source, "median_us": record.median_s * 1e6 if record else None}
    _log.info("%d of %d kernels from the store", found, len(prepared.lowered.kernels))
    return _Chosen(choices, facts)


def _build(prepared: _Prepared, chosen: _Chosen, threads: int | None) -> Artifact:
    from tvmstack.artifact import write_artifact
    from tvmstack.lower.build import build_library

    folder = tempfile.TemporaryDirectory(prefix="tvmstack-build-")
    library, path = Path(folder.name) / "library.so", Path(folder.name) / "artifact.so"
    regions = [(r.digest, r.model) for r in prepared.plan.regions]
    try:
        with _clock(prepared.seconds, "build"):
            arena = build_library(prepared.lowered, chosen.choices, library)
        with _clock(prepared.seconds, "write"):
            described = _manifest(prepared, chosen, arena, threads or prepared.device.cores)
            manifest = write_artifact(path, library, prepared.lowered.weights, regions, described)
            library.unlink()
    except OSError as err:
        raise SetupError(f"cannot build in {folder.name}: {_disk_words(err)}; TMPDIR names another place") from err
    return Artifact(path, manifest, _report(prepared, chosen, path, manifest), folder)


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
    prepared = _prepare(model, shapes, device, onnxruntime_nodes, freeze)
    with _records(store) as records:
        return _tune(prepared, records, seconds, trials, progress)


def bench(
    artifact: str | Path,
    model: str | Path | None = None,
    against: Sequence[str] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    rounds: int = 7,
    seconds: float = 0.5,
    progress: Callable[[str], None] | None = None,
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
    """
    from tvmstack.artifact.manifest import read_manifest
    from tvmstack.measure.bench import PeerSpec
    from tvmstack.measure.bench import bench as measure
    from tvmstack.measure.feed import fill_inputs
    from tvmstack.measure.peer import PEERS

    names = list(against) if against is not None else ["onnxruntime"] if model else []
    for name in names:
        if name not in PEERS:
            raise UsageError(f"unknown peer {name!r}; {nearest(name, PEERS)}")
    if names and model is None:
        raise UsageError(f"{', '.join(names)} needs the original model: add --model FILE")
    if model is not None and not Path(model).is_file():
        raise UsageError(f"there is no file {model}")
    manifest = read_manifest(Path(artifact))
    peers = [PeerSpec("tvmstack", str(artifact))] + [PeerSpec(name, str(model)) for name in names]
    feed = fill_inputs(manifest.inputs, inputs or {})
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
) -> ProfileReport:
    """Time an artifact kernel by kernel, against the machine's measured peaks where `peaks` is on."""
    from tvmstack.measure.feed import fill_inputs
    from tvmstack.measure.peaks import measure_peaks
    from tvmstack.measure.profile import profile_rows
    from tvmstack.runtime import load

    session = load(artifact, threads=threads)
    limits = measure_peaks(threads or session.manifest.threads) if peaks else None
    return profile_rows(session, fill_inputs(session.inputs, inputs or {}), limits, repeats)


def check(artifact: str | Path) -> list[dict[str, Any]]:
    """Return one row for each thing that must hold for an artifact on this machine, executing nothing of it."""
    from tvmstack.artifact import check as check_artifact

    return [row.to_json() for row in check_artifact(Path(artifact))]


def _manifest(prepared: _Prepared, chosen: _Chosen, arena: int, threads: int) -> Manifest:
    from tvmstack.artifact.manifest import Manifest

    plan, lowered = prepared.plan, prepared.lowered
    return Manifest.describe(
        device=prepared.device,
        inputs=plan.model.inputs,
        outputs=plan.model.outputs,
        source={"name": plan.model.source, "digest": plan.model.digest},
        changes=plan.model.changes,
        pipeline={"text": lowered.pipeline.text, "digest": lowered.pipeline.digest},
        plan={
            "tvm_nodes": sum(1 for verdict in plan.verdicts.values() if verdict),
            "regions": [
                {
                    "digest": r.digest,
                    "nodes": list(r.nodes),
                    "reasons": list(r.reasons),
                    "inputs": [s.to_json() for s in r.inputs],
                    "outputs": [s.to_json() for s in r.outputs],
                }
                for r in plan.regions
            ],
        },
        kernels=[_kernel_fact(k, chosen, prepared.device) for k in lowered.kernels],
        memory={"weights_bytes": sum(w.nbytes for w in lowered.weights), "arena_bytes": arena},
        threads=threads,
    )


def _kernel_fact(kernel: Kernel, chosen: _Chosen, device: Device) -> dict[str, Any]:
    from tvmstack import schedules

    choice = chosen.choices.get(kernel.name) or schedules.default_choice(kernel.func, device)
    return {
        "name": kernel.name,
        "template": choice.template,
        "choice": choice.to_json(),
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "calls": kernel.calls,
        "nodes": list(kernel.nodes),
        **chosen.facts[kernel.name],
    }


def _report(prepared: _Prepared, chosen: _Chosen, path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what `compile` tells, as plain data; comparison, tuning and times are added as they happen."""
    sources = Counter(fact["source"] for fact in chosen.facts.values())
    memory = manifest.memory
    return {
        "path": str(path),
        "size_bytes": path.stat().st_size,
        "source": prepared.plan.model.source,
        "device": prepared.device.id,
        "threads": manifest.threads,
        "nodes": len(prepared.plan.verdicts),
        "tvm_nodes": manifest.plan["tvm_nodes"],
        "regions": manifest.plan["regions"],
        "kernels": len(prepared.lowered.kernels),
        "sources": dict(sources),
        "weights_bytes": memory.get("weights_bytes", 0),
        "arena_bytes": memory.get("arena_bytes", 0),
        "library_digest": manifest.digests["library"],
        "changes": list(prepared.plan.model.changes),
        "tuning": None,
        "verification": None,
    }
