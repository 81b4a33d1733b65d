"""Regions handed to back ends: compiled once, compared with onnxruntime before anybody relies on them, timed, kept."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.artifact.manifest import region_row
from tvmstack.backends.base import Backend, Blob, Cost, Options, Support, Target
from tvmstack.backends.trial import Trial
from tvmstack.backends.wire import pack, unpack
from tvmstack.backends.worker import Hosted, call
from tvmstack.core.device import detect_device, physical_cores
from tvmstack.core.errors import BackendError, TvmstackError
from tvmstack.core.region import Region
from tvmstack.store.blobs import blob_folder, key_of

if TYPE_CHECKING:
    from tvmstack.partition import Border

__all__ = ["blob_key", "border", "check_blob", "hand_over", "kept_blobs", "price", "region_blobs", "region_facts"]

_log = logging.getLogger("tvmstack.driver")
_FLOOR = "onnxruntime"
_PRICE_S = 0.3

Samples = Mapping[str, Sequence[np.ndarray]]


def region_blobs(regions: Sequence[Region], blobs: Mapping[str, Blob]) -> list[tuple[Region, Blob]]:
    """Return each region with its blob; one that no back end was given runs in onnxruntime as it is."""
    return [(r, blobs[r.digest] if r.digest in blobs else _plain(r)) for r in regions]


def _plain(region: Region) -> Blob:
    return Blob(region.model, _FLOOR, "cpu", _FLOOR, region.inputs, region.outputs, {_FLOOR: ""})


def region_facts(region: Region, blob: Blob) -> dict[str, Any]:
    """Return a region's row in the manifest; see `artifact.manifest.region_row`."""
    return {
        "digest": region.digest,
        "nodes": list(region.nodes),
        "reasons": list(region.reasons),
        "inputs": [s.to_json() for s in region.inputs],
        "outputs": [s.to_json() for s in region.outputs],
        "backend": blob.backend,
        "target": blob.target,
        "engine": blob.engine,
        "versions": dict(blob.versions),
        "options": dict(blob.options),
        "engine_inputs": [s.name for s in blob.inputs],
        "engine_outputs": [s.name for s in blob.outputs],
    }


def hand_over(
    region: Region, backend: Backend, target: Target, options: Options, samples: Samples, records: Any = None
) -> Blob:
    """Return a region compiled for a target and compared with onnxruntime; from the cache where it is there.

    Args:
        region: what to compile.
        backend: as `registry.open_backend` gives it.
        target: one of its targets.
        options: what the caller wants of it.
        samples: arrays by input name, the same number for each; also for calibration.
        records: the store whose blobs these are; None for the user's cache.

    Raises:
        BackendError: the region is refused, parts of it would silently run elsewhere, or its numbers are wrong; the
            message says which output is off by how much, so that the region goes back to TVM.
    """
    folder, key = blob_folder(records), blob_key(region, backend, target, options)
    kept = _kept(folder.get(key), region)
    if kept is not None:
        return kept
    _require_taken(region, backend, target)
    blob = backend.compile(region, target, options, samples)
    check_blob(region, blob, backend, target, options, samples)
    folder.put(key, pack(blob))
    return blob


def kept_blobs(records: Any = None) -> list[dict[str, Any]]:
    """Return what a store's folder keeps of compiled regions, the last used first; measured costs are left out.

    Returns:
        {"key", "backend", "target", "versions", "bytes", "used"} of each as plain data; "used" in seconds of the epoch.
    """
    folder, rows = blob_folder(records), []
    for key, size, used in folder.files():
        data = folder.get(key, used=False)
        try:
            blob = None if data is None else unpack(data)
        except (BackendError, ValueError):
            continue
        if isinstance(blob, Blob):
            facts = {"backend": blob.backend, "target": blob.target, "versions": dict(blob.versions)}
            rows.append({"key": key, **facts, "bytes": size, "used": used})
    return rows


def blob_key(region: Region, backend: Backend, target: Target, options: Options) -> str:
    """Return the key of a region's blob: the same for the same region, back end, release, target and options."""
    parts = {
        "region": region.digest,
        "backend": backend.name,
        "toolchain": backend.probe().version,
        "target": target.name,
        "tolerance": [target.rtol, target.atol],
        "threads": options.threads,
        "extra": dict(options.extra),
    }
    if target.runs_here:
        parts["device"] = detect_device().id
    return key_of(parts)


def _kept(data: bytes | None, region: Region) -> Blob | None:
    if data is None:
        return None
    try:
        blob = unpack(data)
        _require_same_io(region, blob)
    except (BackendError, AttributeError) as err:
        _log.warning("a kept blob of region %s cannot be used and is made again: %s", region.digest, err)
        return None
    return blob


def _require_taken(region: Region, backend: Backend, target: Target) -> None:
    """Ask again, for the region cut out: some toolchains answer differently then, or run parts on the CPU unasked."""
    for name, verdict in backend.query(region.model, target).items():
        if verdict.support is not Support.SUPPORTED:
            what = "would run it on the CPU" if verdict.support is Support.VENDOR_CPU else "refuses it"
            raise BackendError(f"{backend.name}:{target.name} {what}, node {name}: {verdict.reason}")


def _require_same_io(region: Region, blob: Blob) -> None:
    """Raise where a blob's tensors are not the region's, one by one; names may differ, the order may not."""
    for what, wanted, given in (("inputs", region.inputs, blob.inputs), ("outputs", region.outputs, blob.outputs)):
        if [(s.dtype, tuple(s.shape)) for s in wanted] != [(s.dtype, tuple(s.shape)) for s in given]:
            raise BackendError(
                f"{blob.backend}:{blob.target} gives region {region.digest} other {what}: "
                f"{[(s.name, s.dtype, list(s.shape)) for s in given]}, not {[(s.name, s.dtype) for s in wanted]}"
            )


def check_blob(
    region: Region, blob: Blob, backend: Backend, target: Target, options: Options, samples: Samples
) -> bool:
    """Compare a blob with its region on sample inputs; return whether anything here could run it.

    Raises:
        BackendError: its tensors are not the region's, or what it computes is further from onnxruntime than its target
            may be.
    """
    from tvmstack.measure.oracle import Oracle

    _require_same_io(region, blob)
    feeds = _feeds(region, samples)
    simulate = getattr(backend, "simulate", None)
    if not feeds:
        raise BackendError(f"region {region.digest} cannot be compared: there are no sample inputs")
    if _runs(blob, backend, target):
        given = _try(backend, "run", (blob.data, _row(region, blob), _threads(options), feeds), options.seconds)
    elif simulate is not None:
        given = simulate(region, blob, target, options, samples)
    else:
        _log.info("region %s for %s:%s is not compared: nothing here runs it", region.digest, backend.name, target.name)
        return False
    oracle = Oracle(region.model)
    for feed, results in zip(feeds, given, strict=True):
        want = oracle.run({s.name: a for s, a in zip(region.inputs, feed, strict=True)})
        for spec, got in zip(region.outputs, results, strict=True):
            _require_close(spec.name, got, want[spec.name], region, backend, target)
    return True


def _feeds(region: Region, samples: Samples) -> list[list[np.ndarray]]:
    missing = [s.name for s in region.inputs if s.name not in samples]
    if missing:
        raise BackendError(f"region {region.digest} cannot be compared: no sample for its input {missing[0]}")
    if not region.inputs:
        return [[]]
    count = min(len(samples[s.name]) for s in region.inputs)
    return [[np.asarray(samples[s.name][i]) for s in region.inputs] for i in range(count)]


def _require_close(
    name: str, got: np.ndarray, want: np.ndarray, region: Region, backend: Backend, target: Target
) -> None:
    who = f"{backend.name}:{target.name} computes {name} of region {region.digest} wrong"
    if got.shape != want.shape or got.dtype != want.dtype:
        raise BackendError(f"{who}: {got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}")
    if want.dtype.kind not in "fiub":  # bfloat16 and its like: numpy knows no more of them than their names
        got, want = got.astype(np.float32), want.astype(np.float32)
    one, other = got.astype(np.float64), want.astype(np.float64)
    plain = np.isfinite(other)
    if not np.array_equal(one[~plain], other[~plain], equal_nan=True):
        raise BackendError(f"{who}: NaN or infinity where onnxruntime has none, or the other way round")
    gap = float(np.abs(one[plain] - other[plain]).max(initial=0.0))
    allowed = target.atol + target.rtol * float(np.abs(other[plain]).max(initial=0.0))
    if not gap <= allowed:
        raise BackendError(f"{who}: off by {gap:.3g}, allowed is {allowed:.3g}")


def _runs(blob: Blob, backend: Backend, target: Target) -> bool:
    """Whether the blob's engine runs it on this machine, on the hardware or in the vendor's emulator."""
    from tvmstack.runtime.engines import engine_names

    if blob.engine not in engine_names():
        return False
    return target.runs_here or backend.probe().can_simulate


def _try(backend: Backend, method: str, arguments: tuple[Any, ...], seconds: float) -> Any:
    """Call a method of `Trial` where this back end's vendor code belongs: here, or in a worker."""
    try:
        if isinstance(backend, Hosted):
            return call(f"{Trial.__module__}:{Trial.__name__}", method, arguments, seconds, backend.name)
        return getattr(Trial(), method)(*arguments)
    except BackendError:
        raise
    except TvmstackError as err:
        raise BackendError(str(err)) from err
    except Exception as err:  # the border to a vendor's runtime, whose errors share no class
        words = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise BackendError(f"{backend.name} compiled the region but cannot run it: {words}") from err


def _row(region: Region, blob: Blob) -> dict[str, Any]:
    return region_row(region_facts(region, blob))


def _threads(options: Options) -> int:
    return options.threads or physical_cores()


def price(
    region: Region,
    blob: Blob,
    backend: Backend,
    target: Target,
    options: Options,
    samples: Samples,
    records: Any = None,
) -> Cost | None:
    """Return what a call of a region costs: measured where it runs here, else the vendor's estimate; None if neither.

    A cost is measured once for each device and kept beside the blobs.

    Raises:
        BackendError: it cannot be run.
    """
    if not target.runs_here or not blob.engine:
        return backend.estimate(region, target, options)
    folder = blob_folder(records)
    key = f"{blob_key(region, backend, target, options)}.cost"
    found = folder.get(key)
    if found is not None:
        return Cost(float(json.loads(found)["seconds"]), "measured")
    feed = _feeds(region, samples)[0]
    times = _try(
        backend, "seconds", (blob.data, _row(region, blob), _threads(options), feed, _PRICE_S), options.seconds
    )
    cost = Cost(statistics.median(times), "measured")
    folder.put(key, json.dumps({"seconds": cost.seconds}).encode())
    return cost


def border(backend: Backend, target: Target, options: Options, records: Any = None) -> Border:
    """Return what entering a region costs: a call of one that does nothing, and copying a byte; measured once.

    A region's own measure holds its engine's call already, so the call here is what TVM adds: passing tensors on. It is
    the same for all engines, and is measured with onnxruntime.
    """
    from tvmstack.measure.border import copy_seconds
    from tvmstack.partition import Border

    folder = blob_folder(records)
    key = key_of({"border": detect_device().id, "threads": options.threads})
    found = folder.get(key)
    if found is not None:
        return Border(**json.loads(found))
    facts = {"call_s": _call_seconds(_threads(options)), "byte_s": copy_seconds()}
    folder.put(key, json.dumps(facts).encode())
    return Border(**facts)


def _call_seconds(threads: int) -> float:
    import tvm_ffi

    from tvmstack.measure.border import call_seconds
    from tvmstack.runtime.engines import open_engine
    from tvmstack.runtime.library import runtime_library
    from tvmstack.runtime.regions import Region as Held
    from tvmstack.runtime.tensors import aligned_empty

    runtime_library()
    region = _nothing()
    held = Held(region.digest, region.model, _row(region, _plain(region)), threads)
    value = aligned_empty((1,), np.dtype(np.float32))
    value[:] = 0
    tensor = tvm_ffi.from_dlpack(value)
    engine = open_engine(region.model, _row(region, _plain(region)), threads)
    return max(0.0, call_seconds(lambda: held(tensor)) - call_seconds(lambda: engine.run([value])))


def _nothing() -> Region:
    """Return a region that gives back the one number it is fed."""
    import hashlib

    from onnx import TensorProto, helper

    from tvmstack.core.model import TensorSpec

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"], "same")], "nothing", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = bytes(model.SerializeToString())
    digest = hashlib.sha256(data).hexdigest()[:16]
    return Region(digest, data, (TensorSpec("x", "float32", (1,)),), (TensorSpec("y", "float32", (1,)),), ("same",), ())
