"""What "is a back end" means, as checks that anybody's back end can be put to: `tvmstack backend check NAME`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmstack.backends.base import Backend, NodeVerdict, Options, Support, Target
from tvmstack.backends.registry import backend_named, target_named
from tvmstack.backends.vendor import captured
from tvmstack.backends.worker import hosted
from tvmstack.core.errors import BackendError, TvmstackError, UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region
from tvmstack.driver.handoff import blob_key, check_blob

__all__ = ["ContractRow", "check_backend", "small_regions"]

_KINDS = ("cpu", "gpu", "npu")


@dataclass(frozen=True)
class ContractRow:
    """One promise of a back end: kept, broken, or not to be tried here."""

    name: str
    ok: bool
    words: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row as `report.artifact.check_page` shows it."""
        return {"name": self.name, "ok": self.ok, "reason": self.words, "hint": ""}


def check_backend(name: str, target: str = "", regions: dict[str, Region] | None = None) -> list[ContractRow]:
    """Put a back end to every check, on one target.

    Args:
        name: as it is registered.
        target: of its targets; "" for the first.
        regions: by a name for the row, what it is asked to take; None for `small_regions`. At least one must be taken.

    Raises:
        UsageError, SetupError: there is no such back end or target, or it cannot be loaded.
    """
    inner = backend_named(name)
    chosen = target_named(inner, target)
    rows = [_row("probe", lambda: _probe(inner)), _row("targets", lambda: _targets(inner))]
    ability = inner.probe()
    if not ability.can_compile:
        return [*rows, ContractRow("compile", True, f"not tried: {ability.missing or 'it cannot compile here'}")]
    backend = hosted(inner)
    taken = 0
    for label, region in (regions or small_regions()).items():
        row, verdicts = _queried(label, region, backend, chosen)
        rows.append(row)
        if verdicts and all(v.support is Support.SUPPORTED for v in verdicts.values()):
            taken += 1
            rows.append(_row(f"compile {label}", _compiling(region, backend, chosen)))
            rows.append(_row(f"key {label}", _same_key(region, inner, name, chosen)))
    refusal = _row("refusal", lambda: _refusal(backend, chosen))
    some = ContractRow("takes something", taken > 0, "" if taken else "it took none of the regions it was asked about")
    return [*rows, refusal, some]


def _row(name: str, check: Callable[[], str]) -> ContractRow:
    files = set(os.listdir())
    try:
        with captured() as seen, contextlib.redirect_stdout(io.StringIO()) as printed:
            words = check()
    except TvmstackError as err:
        return ContractRow(name, False, str(err))
    except Exception as err:  # noqa: BLE001  (the border to a stranger's code: what it raises is the finding)
        return ContractRow(name, False, f"it raised {type(err).__name__}, not a BackendError: {err}")
    said = (seen.text + printed.getvalue()).strip()
    if said:
        return ContractRow(name, False, f"it prints: {said.splitlines()[0][:200]}")
    left = sorted(set(os.listdir()) - files)
    return (
        ContractRow(name, False, f"it left files behind: {', '.join(left)}") if left else ContractRow(name, True, words)
    )


def _probe(backend: Backend) -> str:
    ability = backend.probe()
    if not ability.can_compile and not (ability.missing and ability.hint):
        raise BackendError("it cannot compile here and does not say what is missing and how to get it")
    if ability.can_compile and not ability.licence:
        raise BackendError("it names no licence of the vendor's library")
    return f"{ability.version or 'not installed'}; {ability.missing}" if ability.missing else ability.version


def _targets(backend: Backend) -> str:
    targets = backend.targets()
    names = [t.name for t in targets]
    if not names or len(set(names)) != len(names):
        raise BackendError("it has no targets, or two of one name")
    wrong = [t.name for t in targets if t.kind not in _KINDS or t.rtol < 0 or t.atol < 0 or not t.name.strip()]
    if wrong:
        raise BackendError(f"target {wrong[0]} has a kind that is none of {', '.join(_KINDS)}, or a negative tolerance")
    try:
        target_named(backend, f"{names[0]}-no-such-thing")
    except UsageError:
        return ", ".join(names)
    raise BackendError("a target that it does not have was taken")


def _queried(
    label: str, region: Region, backend: Backend, target: Target
) -> tuple[ContractRow, dict[str, NodeVerdict]]:
    found: dict[str, NodeVerdict] = {}

    def ask() -> str:
        found.update(backend.query(region.model, target))
        missing = [n for n in region.nodes if n not in found]
        if missing:
            raise BackendError(f"it gives no answer for node {missing[0]}")
        mute = [n for n, v in found.items() if v.support is not Support.SUPPORTED and not v.reason]
        if mute:
            raise BackendError(f"it refuses node {mute[0]} without a reason")
        refused = [f"{n}: {v.reason}" for n, v in found.items() if v.support is not Support.SUPPORTED]
        return "; ".join(refused) or "takes all of it"

    return _row(f"query {label}", ask), found


def _compiling(region: Region, backend: Backend, target: Target) -> Callable[[], str]:
    def work() -> str:
        generator = np.random.default_rng(0)
        samples = {s.name: [_sample(s, generator), _sample(s, generator)] for s in region.inputs}
        options = Options(threads=1)
        blob = backend.compile(region, target, options, samples)
        compared = check_blob(region, blob, backend, target, options, samples)
        return f"{len(blob.data)} bytes, " + ("equals onnxruntime" if compared else "nothing here runs it")

    return work


def _same_key(region: Region, inner: Backend, name: str, target: Target) -> Callable[[], str]:
    """Ask twice, the second time of a back end made anew: what is unlike between builds is compiled at each of them."""

    def work() -> str:
        again = backend_named(name)
        options = Options(threads=1)
        keys = [
            blob_key(region, inner, target, options),
            blob_key(region, again, target_named(again, target.name), options),
        ]
        if keys[0] != keys[1]:
            raise BackendError("the same region asks for another key the second time: no rebuild finds its blob")
        return keys[0]

    return work


def _sample(spec: TensorSpec, generator: np.random.Generator) -> np.ndarray:
    dtype, shape = np.dtype(spec.dtype), [int(d) for d in spec.shape]
    if dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(dtype)
    return generator.integers(-100 if dtype.kind == "i" else 0, 100, shape).astype(dtype)


def _refusal(backend: Backend, target: Target) -> str:
    region = Region("0" * 16, b"this is no model", (), (), (), ())
    try:
        backend.compile(region, target, Options(), {})
    except BackendError as err:
        return str(err).splitlines()[0]
    raise BackendError("it compiled what is no model")


def small_regions() -> dict[str, Region]:
    """Return models that most back ends take some of: float and int8 convolutions, a matrix product, an activation."""
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    weight = numpy_helper.from_array(generator.uniform(-0.3, 0.3, (16, 16, 3, 3)).astype(np.float32), "w")
    matrix = numpy_helper.from_array(generator.uniform(-0.3, 0.3, (32, 16)).astype(np.float32), "w")
    conv = [helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), _relu("c")]
    dense = [helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"), _relu("m")]
    wave = [helper.make_node("Sigmoid", ["x"], ["y"], "sigmoid")]
    kind = TensorProto.FLOAT
    return {
        "float convolution": _region(conv, [weight], (1, 16, 8, 8), (1, 16, 8, 8), kind),
        "float matrix product": _region(dense, [matrix], (4, 32), (4, 16), kind),
        "float activation": _region(wave, [], (4, 32), (4, 32), kind),
    }


def _relu(name: str) -> Any:
    from onnx import helper

    return helper.make_node("Relu", [name], ["y"], "relu")


def _region(nodes: list[Any], weights: list[Any], shape: tuple[int, ...], made: tuple[int, ...], kind: int) -> Region:
    from onnx import helper

    values = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", shape), ("y", made))]
    graph = helper.make_graph(nodes, "contract", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = bytes(model.SerializeToString(deterministic=True))
    dtype = str(helper.tensor_dtype_to_np_dtype(kind))
    digest = hashlib.sha256(data).hexdigest()[:16]
    names = tuple(n.name for n in nodes)
    return Region(digest, data, (TensorSpec("x", dtype, shape),), (TensorSpec("y", dtype, made),), names, ())
