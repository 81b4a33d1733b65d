"""The steps of the flow: prepare a model as far as kernels, choose schedules, build the library and its manifest."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmstack.core.device import Device, device_from_text
from tvmstack.core.errors import ModelError, SetupError, TuningError, UsageError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.driver.result import Artifact, disk_words

if TYPE_CHECKING:
    from tvmstack.artifact.manifest import Manifest
    from tvmstack.backends.base import Blob
    from tvmstack.board.watch import Boards
    from tvmstack.core.model import Model
    from tvmstack.lower.algorithms import Picker
    from tvmstack.lower.build import Built
    from tvmstack.lower.memory import MemoryPlan
    from tvmstack.lower.pipeline import Lowered
    from tvmstack.partition import Handed, Plan

__all__ = [
    "Chosen",
    "Prepared",
    "Progress",
    "Shapes",
    "build",
    "choose",
    "clock",
    "device_of",
    "key_context",
    "note_choice",
    "open_records",
    "prepare",
    "replanned",
    "require_tunable",
    "tune_kernels",
]

_log = logging.getLogger("tvmstack.driver")

# How many records of one kernel are replayed in one build, where one after the other fails.
_REPLAY_ROUNDS = 4

Shapes = Mapping[str, Sequence[int]] | None
Progress = Callable[[Any], None] | None


@dataclass
class Prepared:
    """A model on its way, as far as unscheduled kernels."""

    origin: Any
    model: Model
    plan: Plan
    lowered: Lowered
    device: Device
    seconds: dict[str, float]
    shapes: Shapes = None
    sample_inputs: Any = None
    onnxruntime_nodes: tuple[str, ...] = ()
    pick: Picker = field(kw_only=True)
    boards: Boards | None = None
    handed: tuple[Handed, ...] = ()
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    given_inputs: Mapping[str, Any] = field(default_factory=dict)


def prepare(
    model: Any,
    shapes: Shapes,
    device: str | Device | None,
    onnxruntime_nodes: Collection[str],
    freeze: Mapping[str, Any] | None,
    sample_inputs: Any = None,
    pick: Picker | None = None,
) -> Prepared:
    """Import, repair, partition and lower a model: everything that needs no measuring and no linker.

    `pick` decides the algorithm of each convolution; None goes by estimate.
    """
    from tvmstack.frontend import load_model
    from tvmstack.graph import repair
    from tvmstack.lower import lower
    from tvmstack.lower.algorithms import estimate_algorithm
    from tvmstack.partition import make_plan

    seconds: dict[str, float] = {}
    target, pick = device_of(device), pick or estimate_algorithm
    with clock(seconds, "import"):
        repaired = repair(load_model(model, shapes, sample_inputs, freeze=freeze))
        plan = make_plan(repaired, onnxruntime_nodes)
    with clock(seconds, "lower"):
        lowered = lower(plan.model, target, pick)
    for line in plan.model.changes:
        _log.debug("changed: %s", line)
    nodes = tuple(onnxruntime_nodes)
    return Prepared(model, repaired, plan, lowered, target, seconds, shapes, sample_inputs, nodes, pick=pick)


def replanned(prepared: Prepared, handed: Sequence[Handed]) -> Prepared:
    """Return the model with regions handed to back ends, lowered anew; their blobs are still to be had."""
    from tvmstack.lower import lower
    from tvmstack.partition import make_plan

    plan = make_plan(prepared.model, prepared.onnxruntime_nodes, handed)
    with clock(prepared.seconds, "lower"):
        lowered = lower(plan.model, prepared.device, prepared.pick)
    return replace(prepared, plan=plan, lowered=lowered, handed=tuple(handed))


def device_of(device: str | Device | None) -> Device:
    """Return the device that a caller's word means."""
    return device if isinstance(device, Device) else device_from_text(device)


@contextmanager
def clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time the block takes to `seconds[stage]`."""
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start


@contextmanager
def open_records(store: str | Path | None, shipped: bool = True) -> Iterator[Any]:
    """Open the store for the block, with the records that come with tvmstack unless `shipped` is off."""
    from tvmstack.store import open_store

    records = open_store(store, shipped)
    try:
        yield records
    finally:
        records.close()


def key_context(prepared: Prepared) -> Any:
    """Return what a record must match to be used for this build."""
    from tvmstack.store import KeyContext

    return KeyContext.current(prepared.device, prepared.lowered.pipeline.digest)


def require_tunable(device: Device) -> None:
    """Refuse to tune for a device whose kernels cannot be run.

    Raises:
        UsageError: it is a GPU.
    """
    if device.sm:
        raise UsageError(f"{device.id} cannot be tuned for: this version of tvmstack runs nothing on a GPU")


def tune_kernels(
    prepared: Prepared, records: Any, seconds: float | None, trials: int | None, progress: Progress
) -> dict[str, Any]:
    """Measure schedules for the kernels into the store; return what was tried and gained as plain data."""
    from tvmstack.driver.algorithms import alternatives
    from tvmstack.driver.boards import board_states
    from tvmstack.tuning import tune

    require_tunable(prepared.device)
    lowered = prepared.lowered
    report = tune(
        lowered.kernels,
        prepared.device,
        lowered.pipeline.digest,
        records,
        seconds=seconds,
        trials=trials,
        progress=progress,
        alternatives=alternatives(prepared),
        boards=prepared.boards,
    )
    data: dict[str, Any] = {**report.to_json(), "boards": board_states(prepared.boards)}
    _log.info("tuned: %d trials in %.0f s", data["trials"], data["seconds"])
    return data


@dataclass(frozen=True)
class Chosen:
    """Choices by kernel name, and what is known of each: {"source": …, "median_us": …}."""

    choices: dict[str, Choice]
    facts: dict[str, dict[str, Any]]
    by_workload: dict[str, Choice] = field(default_factory=dict)

    def for_kernels(self, kernels: Sequence[Kernel]) -> Chosen:
        """Return these choices for the kernels of another model, as far as the kernels are the same work."""
        choices = {k.name: self.by_workload[k.workload] for k in kernels if k.workload in self.by_workload}
        return Chosen(choices, {k.name: {"source": "tuned", "median_us": None} for k in kernels}, self.by_workload)

    def as_built(self, built: Built) -> Chosen:
        """Return what a build for a GPU made of these: schedules that the compiler took, and what each kernel takes."""
        facts = {name: {**fact, **_resources_of(name, built)} for name, fact in self.facts.items()}
        return Chosen(dict(built.choices), facts, self.by_workload)


def _resources_of(name: str, built: Built) -> dict[str, Any]:
    """Return ptxas' report of a kernel's functions: it has several where its sum is divided."""
    found = {f: r.to_json() for code in built.code for f, r in code.resources.items() if _belongs(f, name)}
    words: dict[str, Any] = {"resources": found} if found else {}
    return {**words, **({"refused": list(built.refused[name])} if name in built.refused else {})}


def _belongs(function: str, kernel: str) -> bool:
    rest = function.removeprefix(f"{kernel}_kernel")
    return rest != function and (not rest or rest.removeprefix("_").isdecimal())


def choose(prepared: Prepared, records: Any) -> Chosen:
    """Take the best record of each kernel; kernels without one, or whose record no longer applies, get the default."""
    from tvmstack import schedules

    context, choices, facts = key_context(prepared), {}, {}
    best = best_proven(prepared.lowered.kernels, prepared.device, context, records, prepared.boards)
    for kernel in prepared.lowered.kernels:
        record = _applicable(kernel, best[kernel.workload], prepared.device)
        if record is not None:
            choices[kernel.name] = record.choice
            facts[kernel.name] = {"source": record.source, "median_us": record.median_s * 1e6}
        else:
            tunable = bool(schedules.candidates(kernel.func, prepared.device, 1))
            facts[kernel.name] = {"source": "default" if tunable else "fixed", "median_us": None}
    fixed = sum(fact["source"] == "fixed" for fact in facts.values())
    _log.info("%s", store_line(len(choices), len(facts) - fixed, fixed))
    by_workload = {k.workload: choices[k.name] for k in prepared.lowered.kernels if k.name in choices}
    return Chosen(choices, facts, by_workload)


def store_line(found: int, tunable: int, fixed: int) -> str:
    """Return "N of N kernels from the store", kernels that have one schedule only counted apart."""
    words = f"{found} of {tunable} kernels from the store"
    return words + (f"; {fixed} more have nothing to tune" if fixed else "")


def best_proven(
    kernels: Sequence[Kernel], device: Device, context: Any, records: Any, boards: Boards | None = None
) -> dict[str, Any]:
    """Return the best record of each kernel by its workload, or None.

    A record that came from elsewhere is replayed in a process of its own, or on a board, before it is used for the
    first time; where that fails it goes to quarantine, and the next best takes its turn.
    """
    by_workload = {k.workload: k for k in kernels}
    best = {workload: records.best(kernel, context) for workload, kernel in by_workload.items()}
    undecided: set[str] = set()
    for _ in range(_REPLAY_ROUNDS):
        waiting = {w: r for w, r in best.items() if r is not None and not r.proven and w not in undecided}
        if not waiting:
            break
        undecided |= _replay(waiting, by_workload, device, records, boards)
        best.update({w: records.best(by_workload[w], context) for w in waiting})
    return {w: r if r is not None and r.proven else None for w, r in best.items()}


def _replay(
    waiting: Mapping[str, Any],
    kernels: Mapping[str, Kernel],
    device: Device,
    records: Any,
    boards: Boards | None,
) -> set[str]:
    """Replay records and note in the store which ran and which did not; return those of which nothing can be said."""
    from tvmstack.tuning import replay

    _log.info("replaying %d records that were not measured here", len(waiting))
    undecided = set()
    for outcome in replay([(kernels[w], record.choice) for w, record in waiting.items()], device, boards):
        workload, name = outcome.kernel.workload, outcome.kernel.name
        if not outcome.failure:
            records.prove(waiting[workload])
        elif outcome.is_open:
            undecided.add(workload)
            _log.warning("the record of %s is left aside, it cannot be replayed: %s", name, outcome.failure)
        else:
            records.quarantine(waiting[workload], outcome.failure)
            _log.warning("the record of %s goes to quarantine: %s", name, outcome.failure)
    return undecided


def _applicable(kernel: Kernel, record: Any, device: Device) -> Any:
    """Return the record if its choice can still be applied."""
    from tvmstack import schedules

    if record is None:
        return None
    try:
        schedules.apply(kernel.func, record.choice, device)
    except TuningError as err:
        _log.warning("the record of %s does not apply and is left aside: %s", kernel.name, err)
        return None
    return record


def build(prepared: Prepared, chosen: Chosen, threads: int | None) -> Artifact:
    """Build, link and write the artifact into a temporary folder of its own.

    Raises:
        SetupError: the temporary folder is full or not writable.
    """
    from tvmstack.artifact import write_artifact
    from tvmstack.driver.handoff import region_blobs
    from tvmstack.lower.build import build_gpu_library, build_library

    folder = tempfile.TemporaryDirectory(prefix="tvmstack-build-")
    library, path = Path(folder.name) / "library.so", Path(folder.name) / "artifact.so"
    regions = [(r.digest, blob.data) for r, blob in region_blobs(prepared.plan.regions, prepared.blobs)]
    code: list[bytes] = []
    if prepared.device.sm and regions:
        words = f"{len(regions)} region(s) of this model run outside TVM, which a program for a GPU cannot call"
        raise ModelError(f"{words}: {prepared.plan.regions[0].reasons[0] if prepared.plan.regions[0].reasons else ''}")
    try:
        with clock(prepared.seconds, "build"):
            if prepared.device.sm:
                built = build_gpu_library(prepared.lowered, chosen.choices, library)
                memory, code = built.plan, [c.image for c in built.code]
                chosen = chosen.as_built(built)
            else:
                memory = build_library(prepared.lowered, chosen.choices, library)
        with clock(prepared.seconds, "write"):
            described = _manifest(prepared, chosen, memory, threads or prepared.device.cores)
            manifest = write_artifact(path, library, prepared.lowered.weights, regions, described, code)
            library.unlink()
    except OSError as err:
        raise SetupError(f"cannot build in {folder.name}: {disk_words(err)}; TMPDIR names another place") from err
    return Artifact(path, manifest, _report(prepared, chosen, path, manifest), folder)


def note_choice(artifact: Artifact, facts: Mapping[str, Any]) -> None:
    """Keep in an artifact's manifest and report how its plan was found, and how exact its targets are."""
    from tvmstack.artifact import rewrite_manifest

    known = {k: v for k, v in facts.items() if k != "tolerance"}
    plan = {**artifact.manifest.plan, "choice": known, "tolerance": facts.get("tolerance", 0.0)}
    manifest = replace(artifact.manifest, plan=plan)
    rewrite_manifest(artifact.path, manifest)
    artifact.manifest = manifest
    artifact.report["choice"] = known


def _manifest(prepared: Prepared, chosen: Chosen, memory: MemoryPlan, threads: int) -> Manifest:
    from tvmstack.artifact.manifest import Manifest
    from tvmstack.driver.handoff import region_blobs, region_facts

    plan, lowered = prepared.plan, prepared.lowered
    return Manifest.describe(
        device=prepared.device,
        inputs=plan.model.inputs,
        outputs=plan.model.outputs,
        source=_source(prepared.model),
        changes=plan.model.changes,
        pipeline={"text": lowered.pipeline.text, "digest": lowered.pipeline.digest},
        plan={
            "tvm_nodes": sum(1 for verdict in plan.verdicts.values() if verdict),
            "handed": [{"owner": h.owner, "nodes": list(h.nodes)} for h in prepared.handed],
            "regions": [
                region_facts(region, blob) for region, blob in region_blobs(prepared.plan.regions, prepared.blobs)
            ],
        },
        kernels=[_kernel_fact(k, chosen, prepared.device) for k in lowered.kernels],
        memory={"weights_bytes": sum(w.nbytes for w in lowered.weights), **memory.to_json()},
        threads=threads,
    )


def _kernel_fact(kernel: Kernel, chosen: Chosen, device: Device) -> dict[str, Any]:
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


def _source(model: Model) -> dict[str, Any]:
    frozen = {k: {"dtype": v.dtype.name, "value": v.tolist()} for k, v in model.frozen_inputs.items()}
    return {"name": model.source, "digest": model.digest, **({"frozen": frozen} if frozen else {})}


def _report(prepared: Prepared, chosen: Chosen, path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what `compile` tells, as plain data; comparison, tuning and times are added as they happen."""
    sources = Counter(fact["source"] for fact in chosen.facts.values())
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
        "memory": dict(manifest.memory),
        "library_digest": manifest.digests["library"],
        "changes": list(prepared.plan.model.changes),
        "tuning": None,
        "verification": None,
    }
