"""Is an artifact right? Compared with the original model, and where it differs, the first tensor that does."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.core.errors import ArtifactError, ModelError, TvmstackError
from tvmstack.driver.boards import opened_artifact, runs_here
from tvmstack.driver.steps import Chosen, Prepared, build, prepare

if TYPE_CHECKING:
    from tvmstack.artifact.manifest import Manifest
    from tvmstack.artifact.verify import Case, Verification
    from tvmstack.board.watch import Boards
    from tvmstack.driver.result import Artifact
    from tvmstack.measure.oracle import Oracle

__all__ = ["compare_build", "compare_reference", "compare_with"]

_log = logging.getLogger("tvmstack.driver")
_SAMPLES = 256


# Where onnxruntime drops a NaN or keeps it depending on the order it meets numbers in, it does not say what is right.
_NO_WORD_ON_NAN = frozenset(
    [
        "Cast",
        "DynamicQuantizeLinear",
        "GRU",
        "GridSample",
        "LRN",
        "LSTM",
        "MaxPool",
        "MaxRoiPool",
        "QuantizeLinear",
        "RNN",
        "Resize",
        "RoiAlign",
        "TopK",
    ]
)

_SPREAD = "nan: Winograd convolution spreads a NaN over the whole tile of outputs it touches; --no-winograd does not"


def compare_build(
    artifact: Artifact, prepared: Prepared, chosen: Chosen, inputs: Mapping[str, np.ndarray] | None = None
) -> None:
    """Compare a fresh build with the model it came from, and keep the outcome in its manifest.

    `inputs` are a case of their own. Where the original refuses every case, the build is kept and said to be unproven.

    Raises:
        ArtifactError: it differs; the message names the first tensor that does, and the node that makes it.
    """
    from tvmstack.artifact import rewrite_manifest

    if prepared.boards is None and not runs_here(prepared.device):
        words = f"this machine cannot run {prepared.device.arch} code: compile with --board to compare on a board"
        _log.warning("not compared: %s", words)
        artifact.report["verification"] = _unproven(words)
        return
    with tempfile.TemporaryDirectory(prefix="tvmstack-original-") as folder:
        oracle = _oracle(prepared, Path(folder))
        frozen = prepared.model.frozen_inputs
        cases, left_out = _cases(artifact.manifest, prepared, inputs)
        try:
            result = _run_cases(artifact.path, oracle, frozen, cases, artifact.manifest.threads, prepared.boards)
        except ModelError as err:
            _log.warning("not compared: %s. Give good ones with --input NAME=FILE.npy", err)
            artifact.report["verification"] = _unproven(str(err))
            return
        result = replace(result, skipped=(*result.skipped, *left_out))
        if not result.ok:
            raise ArtifactError(_blame(prepared, chosen, oracle, cases, result))
        reference = _reference(oracle, cases, frozen)
    data = result.to_json()
    artifact.manifest = replace(artifact.manifest, verification=data, reference=reference)
    rewrite_manifest(artifact.path, artifact.manifest)
    artifact.report["verification"] = data
    artifact.report["size_bytes"] = artifact.path.stat().st_size


def _unproven(words: str) -> dict[str, Any]:
    return {"cases": 0, "worst": 0.0, "skipped": [words], "failures": []}


def _cases(
    manifest: Manifest, prepared: Prepared, inputs: Mapping[str, np.ndarray] | None
) -> tuple[list[Case], tuple[str, ...]]:
    """Return the cases to compare, the caller's first, and a line for one that is left out."""
    from tvmstack.artifact.verify import Case, make_cases

    cases = make_cases(manifest.inputs)
    mute = sorted({node.op_type for node in prepared.model.graph.graph.all_nodes()} & _NO_WORD_ON_NAN)
    left_out = (f"nan: onnxruntime does not settle NaN in {', '.join(mute)}",) if mute else ()
    if not mute and _spreads_nan(manifest):
        left_out = (_SPREAD,)
    vendors = sorted({h["owner"] for h in manifest.plan.get("handed", ()) if not h["owner"].startswith("onnxruntime")})
    if vendors and not left_out:
        left_out = (f"nan: {', '.join(vendors)} need not carry NaN as ONNX says",)
    if left_out:
        cases = [case for case in cases if case.name != "nan"]
    return ([Case("given", dict(inputs))] if inputs else []) + cases, left_out


def _spreads_nan(manifest: Manifest) -> bool:
    return any("winograd" in kernel["name"] for kernel in manifest.kernels)


def _reference(oracle: Oracle, cases: Sequence[Case], frozen: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return answers for `verify` without the model: those of the first seeded case, if the original takes it."""
    first = next(case for case in cases if case.name == "random 0")
    try:
        return {"case": first.name, "seed": 0, "outputs": _samples(oracle.run({**first.feeds, **frozen}))}
    except ModelError:
        return {}


def compare_with(
    path: Path,
    manifest: Manifest,
    model: Path,
    threads: int | None,
    inputs: Mapping[str, np.ndarray] | None = None,
    boards: Boards | None = None,
) -> Verification:
    """Compare an artifact with a model file.

    Raises:
        ArtifactError: it differs, or takes other inputs.
    """
    from tvmstack.artifact.verify import Case, make_cases
    from tvmstack.measure.oracle import Oracle

    oracle = Oracle(model)
    frozen = frozen_of(manifest)
    missing = [name for name in oracle.inputs if name not in frozen and name not in {s.name for s in manifest.inputs}]
    if missing:
        raise ArtifactError(f"{path} was not made from {model}: it has no input {missing[0]!r}")
    left_out = [line for line in manifest.verification.get("skipped", ()) if line.startswith("nan: ")]
    cases = [case for case in make_cases(manifest.inputs) if not (left_out and case.name == "nan")]
    if inputs:
        cases.insert(0, Case("given", dict(inputs)))
    result = _run_cases(path, oracle, frozen, cases, threads, boards)
    if not result.ok:
        raise ArtifactError(f"{path} differs from {model}: {_first_words(result)}")
    return result


def compare_reference(
    path: Path, manifest: Manifest, threads: int | None, boards: Boards | None = None
) -> dict[str, Any]:
    """Compare an artifact with the answers it carries.

    Raises:
        ArtifactError: it differs, or carries none.
    """
    from tvmstack.artifact.verify import make_cases

    if not manifest.reference:
        raise ArtifactError(f"{path} was built without a comparison and carries no answers: add --model FILE")
    case = make_cases(manifest.inputs, manifest.reference["seed"])[0]
    with opened_artifact(path, threads, boards) as session:
        ours = _samples(session.run(case.feeds))
    worst = 0.0
    for name, kept in manifest.reference["outputs"].items():
        gap = _sample_gap(ours[name], kept)
        worst = max(worst, gap)
        if not gap <= manifest.verification["tolerance"]:
            raise ArtifactError(
                f"{path} gives other answers here than where it was built: output {name!r} differs by {gap:.2g}"
            )
    return {"cases": 1, "worst": worst, "tolerance": manifest.verification["tolerance"], "skipped": [], "failures": []}


def frozen_of(manifest: Manifest) -> dict[str, np.ndarray]:
    """Return the inputs that were made constants, which the original model still has to be fed."""
    return {k: np.asarray(v["value"], v["dtype"]) for k, v in manifest.source.get("frozen", {}).items()}


def _run_cases(
    path: Path,
    oracle: Oracle,
    frozen: Mapping[str, np.ndarray],
    cases: Sequence[Case],
    threads: int | None,
    boards: Boards | None,
) -> Verification:
    from tvmstack.artifact.verify import verify

    with opened_artifact(path, threads, boards) as session:
        wider = float(session.manifest.plan.get("tolerance", 0.0))
        return verify(session.outputs, cases, session.run, lambda feeds: oracle.run({**feeds, **frozen}), wider)


def _oracle(prepared: Prepared, folder: Path) -> Oracle:
    """Return the oracle of the original: the file, the bytes, or what torch's exporter made of a program."""
    import onnx

    from tvmstack.frontend import load_model, save_onnx
    from tvmstack.measure.oracle import Oracle

    origin = prepared.origin
    if isinstance(origin, (str, Path)) and Path(origin).suffix != ".pt2":
        return Oracle(origin)
    if isinstance(origin, (bytes, onnx.ModelProto)):
        return Oracle(origin)
    loaded = load_model(origin, prepared.shapes, prepared.sample_inputs, allow_dynamic=True)
    return Oracle(save_onnx(loaded, folder / "original.onnx"))


def _first_words(result: Verification) -> str:
    case, difference = result.failures[0]
    return f"output {difference.output!r} {difference.reason} (inputs: {case})"


def _blame(prepared: Prepared, chosen: Chosen, oracle: Oracle, cases: Sequence[Case], result: Verification) -> str:
    """Say which tensor is the first that differs; nothing has been written."""
    words = (
        f"the build of {prepared.model.source} differs from the original and was not written: {_first_words(result)}"
    )
    case = next(c for c in cases if c.name == result.failures[0][0])
    _log.info("looking for the first tensor that differs")
    search = _Search(prepared, chosen, case)
    if search.repair_differs(oracle):
        return f"{words}. The model differs from the original already after repair; -v lists what repair changed"
    tensor, node = search.first()
    hint = f"--onnxruntime-nodes {node} keeps it from TVM"
    return f"{words}. The first tensor that differs is {tensor!r}, made by node {node!r}; {hint}"


@dataclass
class _Search:
    """Cuts the repaired model at a tensor, builds what is left with the same schedules, and compares."""

    prepared: Prepared
    chosen: Chosen
    case: Case

    def repair_differs(self, oracle: Oracle) -> bool:
        """Whether the repaired model, run by onnxruntime, is wrong already."""
        import onnx_ir

        from tvmstack.artifact.verify import compare
        from tvmstack.measure.oracle import Oracle

        model = self.prepared.model
        try:
            repaired = Oracle(onnx_ir.to_proto(model.graph)).run(self.case.feeds)
        except (TvmstackError, ValueError) as err:
            _log.info("the repaired model cannot be asked: %s", err)
            return False
        expected = oracle.run({**self.case.feeds, **model.frozen_inputs})
        return not all(d.ok for d in compare(model.outputs, repaired, expected, self.case))

    def first(self) -> tuple[str, str]:
        """Return the tensor and its node."""
        from tvmstack.measure.bisect import first_difference, inner_tensors

        return first_difference(inner_tensors(self.prepared.model.graph), self._differs)

    def _differs(self, item: tuple[str, str]) -> bool:
        import onnx_ir

        from tvmstack.measure.bisect import cut_at
        from tvmstack.measure.oracle import Oracle

        cut = onnx_ir.to_proto(cut_at(self.prepared.model.graph, item[0]))
        kept = {node.name for node in cut.graph.node}
        forced = [name for name in self.prepared.onnxruntime_nodes if name in kept]
        try:
            short = prepare(cut, None, self.prepared.device, forced, None, None, self.prepared.pick)
            part = build(short, self.chosen.for_kernels(short.lowered.kernels), None)
            names = {s.name for s in part.manifest.inputs}
            case = replace(self.case, feeds={k: v for k, v in self.case.feeds.items() if k in names})
            return not _run_cases(part.path, Oracle(cut), {}, [case], None, self.prepared.boards).ok
        except TvmstackError as err:
            _log.info("%s cannot be asked for: %s", item[0], err)
            return False


def _samples(outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return up to 256 values of each output, evenly spread, and its largest: enough to notice another answer."""
    return {name: _sample(np.asarray(value)) for name, value in outputs.items()}


def _sample(value: np.ndarray) -> dict[str, Any]:
    flat = value.reshape(-1).astype(np.float64)
    finite = np.abs(flat[np.isfinite(flat)])
    picked = flat[np.linspace(0, flat.size - 1, min(flat.size, _SAMPLES)).astype(np.int64)] if flat.size else flat
    return {
        "shape": list(value.shape),
        "largest": float(finite.max()) if finite.size else 0.0,
        "values": [float(v) if np.isfinite(v) else str(v) for v in picked],
    }


def _sample_gap(ours: Mapping[str, Any], kept: Mapping[str, Any]) -> float:
    if ours["shape"] != kept["shape"]:
        return float("inf")
    a, b = (np.asarray([float(v) for v in side["values"]]) for side in (ours, kept))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    gap = float(np.abs(np.where(np.isfinite(b), a - b, 0.0)).max()) if b.size else 0.0
    return gap / kept["largest"] if kept["largest"] else gap
