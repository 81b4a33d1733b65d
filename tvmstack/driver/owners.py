"""Who runs what, by measured cost: TVM, or a back end for a region of the graph.

The graph is cut into chunks. What a chunk costs TVM is read from a profile of the model built by TVM alone; what it
costs a back end is measured by running it there. The cheapest row of segments is searched, every segment of it is
measured as one region, and at last the plan is built and timed, in turns with the model built for each owner alone:
what wins there is taken, and of what is equally fast the plan with fewer regions.

A back end that cannot run here has no measured costs: where one is named, those named are given all they take, the
first named first, in as few regions as possible.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.artifact.manifest import read_manifest
from tvmstack.core.errors import BackendError, ModelError, UsageError
from tvmstack.driver.steps import build, choose, clock, note_choice, replanned
from tvmstack.driver.takers import AUTO, Taker, open_takers, sample_tensors
from tvmstack.driver.written_out import written_out
from tvmstack.partition import (
    FLOOR,
    TVM,
    Chunk,
    Costs,
    Handed,
    Segment,
    chunks_of,
    cut,
    in_running_order,
    positions,
    settle,
    whole_regions,
)
from tvmstack.report.words import size

if TYPE_CHECKING:
    from tvmstack.backends.base import Blob
    from tvmstack.core.model import Model
    from tvmstack.core.region import Region
    from tvmstack.driver.result import Artifact
    from tvmstack.driver.steps import Chosen, Prepared

__all__ = ["Built", "Wish", "built_by_plan", "check_wish", "choose_owners"]

_log = logging.getLogger("tvmstack.driver")

_CHUNKS = 12
# Plans whose times differ by less than this share are equally fast.
_NOISE = 0.03
_ROUNDS, _TURN_S = 7, 0.3
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Wish:
    """Which back ends may have regions, and within which limits.

    Attributes:
        names: "tvm", "auto", "NAME" or "NAME:TARGET"; nothing means TVM, and onnxruntime for what TVM cannot take.
        min_region: a region has at least this many nodes.
        memory_budget: bytes that weights, blobs and intermediate results may take; None for any.
        plan: an earlier artifact, or its manifest as JSON, whose plan is done again without measuring.
        seconds: how long to measure at most, beside building.
    """

    names: tuple[str, ...] = ()
    min_region: int = 1
    memory_budget: int | None = None
    plan: Path | None = None
    seconds: float = 180.0

    @property
    def leaves_all_to_tvm(self) -> bool:
        """Whether there is nothing to choose."""
        return self.plan is None and not set(self.names) - {TVM}


def check_wish(wish: Wish) -> None:
    """Refuse a wish that cannot be fulfilled, before any long work.

    Raises:
        UsageError: a name is unknown, or the plan cannot be read.
        SetupError: a back end that is named is not installed.
    """
    if wish.plan is not None:
        _read_plan(wish.plan)
    elif not wish.leaves_all_to_tvm:
        open_takers(wish.names, 1, None)


@dataclass
class Built:
    """A model built by one plan, and what was measured to find it."""

    prepared: Prepared
    chosen: Chosen
    artifact: Artifact
    facts: dict[str, Any] = field(default_factory=dict)


BlobOf = Callable[[Any, str], Any]
Make = Callable[[Sequence[Handed], BlobOf], Built]


def built_by_plan(prepared: Prepared, wish: Wish, records: Any, threads: int | None) -> Built:
    """Return the model built as the wish says: by TVM, or by the plan that `choose_owners` finds."""

    def make(handed: Sequence[Handed], blob_of: BlobOf) -> Built:
        mine = replanned(prepared, handed) if handed else prepared
        given = {r.digest: mine.plan.owners[r.digest] for r in mine.plan.regions}
        mine.blobs = {r.digest: blob_of(r, given[r.digest]) for r in mine.plan.regions if given[r.digest] != FLOOR}
        chosen = choose(mine, records)
        return Built(mine, chosen, build(mine, chosen, threads))

    if wish.leaves_all_to_tvm:
        built = make((), lambda region, owner: None)
        _check_budget(built, wish.memory_budget)
        return built
    with clock(prepared.seconds, "choose owners"):
        built = choose_owners(prepared, wish, records, threads or prepared.device.cores, make)
    note_choice(built.artifact, built.facts)
    return built


def choose_owners(prepared: Prepared, wish: Wish, records: Any, threads: int, make: Make) -> Built:
    """Return the model built by the plan that the wish leads to.

    Args:
        prepared: the model as TVM alone would have it.
        wish: what the caller wants.
        records: the store.
        threads: CPU threads that the artifact will use.
        make: builds the model with some regions handed over, their blobs asked for by region and owner.

    Raises:
        UsageError: a name is unknown, the plan fits another model, or no plan fits the memory budget.
        SetupError: a back end that is named is not installed.
        BackendError: a region of a given plan is refused.
    """
    if wish.plan is not None:
        return _replayed(prepared, wish, records, threads, make)
    takers = open_takers(wish.names, threads, records)
    start = time.monotonic()
    prepared.model = _written_out(prepared, takers)
    market = _Market(prepared, takers, wish, start + wish.seconds)
    comparable = bool(takers) and all(t.target.runs_here for t in takers)
    if comparable and (AUTO in wish.names or TVM in wish.names or len(takers) > 1):
        built = _measured(market, make)
    else:
        built = _given(market, make)
    built.facts["seconds"] = round(time.monotonic() - start, 1)
    built.facts["tolerance"] = _tolerance(built, takers)
    _check_budget(built, wish.memory_budget)
    return built


def _written_out(prepared: Prepared, takers: Sequence[Taker]) -> Model:
    """Return the model as it suits back ends of the NPU kind, which are to have as much of it as they can."""
    from tvmstack.measure.feed import fill_inputs

    model = prepared.model
    for taker in takers:
        if taker.target.kind == "npu":
            model = written_out(model, taker, fill_inputs(model.inputs, prepared.given_inputs))
    return model


class _Market:
    """The chunks of a model, what each costs each owner, and the regions that segments make."""

    def __init__(self, prepared: Prepared, takers: Sequence[Taker], wish: Wish, deadline: float) -> None:
        import onnx_ir

        self.prepared, self.takers, self.wish, self.deadline = prepared, takers, wish, deadline
        self.by_owner = {taker.owner: taker for taker in takers}
        self.graph = prepared.model.graph.graph
        model = onnx_ir.to_proto(prepared.model.graph).SerializeToString()
        kept = set(prepared.onnxruntime_nodes)
        self.refused = {
            taker.owner: {n: v for n, v in taker.verdicts(model).items() if v.support.value != "supported"}
            | dict.fromkeys(kept)
            for taker in takers
        }
        self.chunks = chunks_of(self.graph, _CHUNKS, self._changes())
        self.feeds = self._feeds()
        self.samples = self._samples()

    def _changes(self) -> list[int]:
        """Return where a node begins what some back end takes, or ends it."""
        taken = [tuple(n.name not in self.refused[t.owner] for t in self.takers) for n in in_running_order(self.graph)]
        return [k for k in range(1, len(taken)) if taken[k] != taken[k - 1]]

    def _feeds(self) -> dict[str, np.ndarray]:
        """Return inputs that onnxruntime takes: the caller's, else the first that serve to compare.

        Raises:
            ModelError: it takes none.
        """
        import onnx_ir

        from tvmstack.artifact.verify import make_cases
        from tvmstack.measure.feed import fill_inputs
        from tvmstack.measure.oracle import Oracle

        model, given = self.prepared.model, self.prepared.given_inputs
        oracle = Oracle(onnx_ir.to_proto(model.graph))
        ones = {s.name: np.ones([d for d in s.shape if isinstance(d, int)], s.dtype) for s in model.inputs}
        wide = [{**case.feeds, **given} for case in make_cases(model.inputs)]
        tried = [fill_inputs(model.inputs, given), *wide, {**ones, **given}]
        words = ""
        for feeds in tried:
            try:
                oracle.run(feeds)
            except ModelError as err:
                words = str(err)
            else:
                return feeds
        raise ModelError(f"{words}; back ends are compared on inputs: give good ones with --input NAME=FILE.npy")

    def _samples(self) -> dict[str, np.ndarray]:
        """Return a value of everything that passes between chunks."""
        regions = [self.region(chunk.nodes) for chunk in self.chunks]
        names = dict.fromkeys(s.name for r in regions for s in r.inputs if s.is_static)
        return sample_tensors(self.prepared.model, list(names), self.feeds)

    def region(self, names: Sequence[str]) -> Region:
        """Return the region that nodes make."""
        wanted = set(names)
        region, _, _ = cut(self.prepared.model, [n for n in self.graph if n.name in wanted], [], describe=True)
        return region

    def samples_of(self, region: Region) -> dict[str, list[np.ndarray]]:
        """Return its inputs' samples."""
        missing = [s.name for s in region.inputs if s.name not in self.samples]
        if missing:
            self.samples.update(sample_tensors(self.prepared.model, missing, self.feeds))
        return {s.name: [self.samples[s.name]] for s in region.inputs}

    def blob(self, region: Region, owner: str) -> Blob:
        """Return a region compiled by its owner, compared with onnxruntime on samples."""
        return self.by_owner[owner].blob(region, self.samples_of(region))

    def nodes_of(self, segment: Segment) -> tuple[str, ...]:
        """Return the names of a segment's nodes."""
        return tuple(n for chunk in self.chunks[segment.start : segment.stop] for n in chunk.nodes)

    def seconds(self, segment: Segment) -> float | None:
        """Return what a segment takes on its back end; None where the time to measure is over."""
        if time.monotonic() > self.deadline:
            return None
        nodes = self.nodes_of(segment)
        if any(n in self.refused[segment.owner] for n in nodes):
            return math.inf
        region = self.region(nodes)
        return self.by_owner[segment.owner].seconds(region, self.samples_of(region))

    def handed(self, segments: Sequence[Segment]) -> tuple[Handed, ...]:
        """Return the regions of a plan."""
        return tuple(Handed(s.owner, self.nodes_of(s)) for s in segments if s.owner != TVM)


def _measured(market: _Market, make: Make) -> Built:
    """Return the fastest of: TVM alone, each back end alone, the cheapest mixture."""
    alone = make((), market.blob)
    costs = _costs(market, alone)
    plan = settle(market.chunks, costs, market.seconds, market.wish.min_region)
    built = {_label(()): alone}
    wholes = [_whole(market, taker.owner, costs) for taker in market.takers]
    for segments in [s for s in (*wholes, plan) if s]:
        handed = market.handed(segments)
        label = _label(handed)
        if label not in built:
            made = _made(make, handed, market)
            built |= {} if made is None else {label: made}
    best, figures = _fastest(built, market.feeds)
    winner = built[best]
    winner.facts = _facts(market, costs, plan, figures, best)
    return winner


def _made(make: Make, handed: Sequence[Handed], market: _Market) -> Built | None:
    try:
        return make(handed, market.blob)
    except (BackendError, ModelError) as err:
        _log.warning("a plan with %s cannot be built: %s", _label(handed), err)
        return None


def _costs(market: _Market, alone: Built) -> Costs:
    """Return TVM's seconds for each chunk from a profile, and each back end's from running it."""
    from tvmstack.runtime import load

    artifact = alone.artifact
    with load(artifact.path, artifact.manifest.threads, verify_digests=False) as session:
        times = session.profile(market.feeds, 10)
        whole = float(np.median(session.time(market.feeds, 20)))
    tvm = _by_chunk(market.chunks, times, artifact.manifest.kernels, alone.prepared.plan.regions)
    costs = Costs({TVM: tvm}, {TVM: whole}, {t.owner: t.border() for t in market.takers if t.target.runs_here})
    wholes = dict(costs.whole)
    chunk: dict[str, list[float]] = {TVM: tvm}
    for taker in market.takers:
        chunk[taker.owner] = [math.inf] * len(market.chunks)
        if not taker.target.runs_here:
            continue
        for k in range(len(market.chunks)):
            seconds = market.seconds(Segment(taker.owner, k, k + 1))
            chunk[taker.owner][k] = math.inf if seconds is None else seconds
            costs.measured[Segment(taker.owner, k, k + 1)] = chunk[taker.owner][k]
        everything = Segment(taker.owner, 0, len(market.chunks))
        seconds = market.seconds(everything)
        if seconds is not None:
            costs.measured[everything] = seconds
            wholes |= {taker.owner: seconds} if math.isfinite(seconds) else {}
    return replace(costs, chunk=chunk, whole=wholes)


def _by_chunk(
    chunks: Sequence[Chunk], times: Sequence[Any], kernels: Sequence[Mapping[str, Any]], regions: Sequence[Region]
) -> list[float]:
    """Return the seconds of TVM's kernels chunk by chunk; a kernel of several chunks is shared among its nodes."""
    place = positions(chunks)
    nodes = {k["name"]: list(k.get("nodes", ())) for k in kernels}
    nodes |= {f"tvmstack.region.{r.digest}": list(r.nodes) for r in regions}
    seconds = [0.0] * len(chunks)
    for entry in times:
        own = [place[n] for n in nodes.get(entry.name, ()) if n in place]
        for index in own or range(len(chunks)):
            seconds[index] += entry.seconds / (len(own) or len(chunks))
    return seconds


def _whole(market: _Market, owner: str, costs: Costs) -> tuple[Segment, ...]:
    """Return all that a back end takes as its own, as few segments as there are stretches of it."""
    segments: list[Segment] = []
    for k, seconds in enumerate(costs.chunk[owner]):
        who = owner if math.isfinite(seconds) else TVM
        if segments and segments[-1].owner == who:
            segments[-1] = Segment(who, segments[-1].start, k + 1)
        else:
            segments.append(Segment(who, k, k + 1))
    least = market.wish.min_region
    return tuple(s if len(market.nodes_of(s)) >= least else replace(s, owner=TVM) for s in segments)


def _label(handed: Sequence[Handed]) -> str:
    """Return a plan in one line: "tvm", "openvino:cpu (58)", …: owners and how many nodes each region has."""
    return " + ".join(f"{h.owner} ({len(h.nodes)} from {next(iter(h.nodes))})" for h in handed) or TVM


def _fastest(built: Mapping[str, Built], feeds: Mapping[str, np.ndarray]) -> tuple[str, list[dict[str, Any]]]:
    """Time plans in turns, each in a process of its own; return the label of the best and everybody's figures."""
    from tvmstack.measure.bench import PeerSpec, bench

    any_built = next(iter(built.values()))
    manifest = any_built.artifact.manifest
    peers = [PeerSpec("tvmstack", str(b.artifact.path), label) for label, b in built.items()]
    if len(peers) == 1:
        return peers[0].label, []
    report = bench(peers, feeds, threads=manifest.threads, rounds=_ROUNDS, seconds=_TURN_S)
    figures: list[dict[str, Any]] = [
        {
            "plan": p.name,
            "median_s": float(np.median(p.rounds)),
            "quick_s": float(np.percentile(p.rounds, 25)),  # what other programs disturb least of all that repeats
            "best_s": min(p.rounds),
            "worst_s": max(p.rounds),
            "regions": len(built[p.name].prepared.handed),
        }
        for p in report.peers
    ]
    return _best(figures), figures


def _best(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the plan to take: more regions only where both the median and the quicker quarter are clearly ahead."""
    rows = sorted(figures, key=lambda f: (f["regions"], f["median_s"]))
    taken = rows[0]
    for row in rows[1:]:
        if all(row[kind] < taken[kind] * (1 - _NOISE) for kind in ("median_s", "quick_s")):
            taken = row
    return str(taken["plan"])


def _given(market: _Market, make: Make) -> Built:
    """Return the model with all that back ends take handed to them, the first named first, in few regions."""
    handed: list[Handed] = []
    left = list(market.graph)
    for taker in market.takers:
        taken = {n for n in left if n.name not in market.refused[taker.owner]}
        for group in whole_regions(list(market.graph), taken):
            handed += _accepted(market, taker, [n.name or "" for n in group])
        gone = {n for h in handed for n in h.nodes}
        left = [n for n in left if n.name not in gone]
    built = make(tuple(handed), market.blob)
    built.facts = _facts(market, None, (), [], _label(handed))
    return built


def _accepted(market: _Market, taker: Taker, names: Sequence[str], depth: int = 0) -> list[Handed]:
    """Return what the back end really compiles, and rightly, of the nodes; what it refuses is tried in halves."""
    if len(names) < market.wish.min_region:
        return []
    region = market.region(names)
    try:
        taker.blob(region, market.samples_of(region))
        return [Handed(taker.owner, tuple(names))]
    except BackendError as err:
        taker.refusals.append(str(err))
        _log.warning("%s: %s", taker.owner, err)
    half = len(names) // 2
    if depth == 3 or not half:
        return []
    parts = names[:half], names[half:]
    return [h for part in parts for h in _accepted(market, taker, part, depth + 1)]


def _facts(
    market: _Market, costs: Costs | None, plan: Sequence[Segment], figures: Sequence[Mapping[str, Any]], chosen: str
) -> dict[str, Any]:
    """Return what was measured, as plain data, for the manifest and for people."""
    rows = [
        {
            "first": c.nodes[0],
            "last": c.nodes[-1],
            "nodes": len(c.nodes),
            "crossing_bytes": c.crossing_bytes,
            "seconds": {} if costs is None else {o: _finite(s[k]) for o, s in costs.chunk.items()},
        }
        for k, c in enumerate(market.chunks)
    ]
    measured = [] if costs is None else [{**asdict(s), "seconds": _finite(t)} for s, t in costs.measured.items()]
    return {
        "asked": list(market.wish.names),
        "chosen": chosen,
        "chunks": rows,
        "measured": measured,
        "plan": [asdict(s) for s in plan],
        "finalists": list(figures),
        "borders": {} if costs is None else {o: asdict(b) for o, b in costs.border.items()},
        "refused": {
            t.owner: {
                "nodes": {n: v.reason if v else "kept on request" for n, v in market.refused[t.owner].items()},
                "regions": t.refusals,
            }
            for t in market.takers
        },
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _check_budget(built: Built, budget: int | None) -> None:
    if budget is None:
        return
    memory = built.artifact.manifest.memory
    blobs = sum(int(place["size"]) for place in built.artifact.manifest.regions)
    weights, arena = memory["weights_bytes"], memory["arena_bytes"]
    need = weights + arena + memory.get("output_bytes", 0) + blobs
    if need > budget:
        parts = f"weights {size(weights)}, arena {size(arena)}, regions {size(blobs)}"
        raise UsageError(f"the plan needs {size(need)} ({parts}), and --memory-budget allows {size(budget)}")


def _replayed(prepared: Prepared, wish: Wish, records: Any, threads: int, make: Make) -> Built:
    """Do a plan again that an artifact, or its manifest as JSON, holds."""
    assert wish.plan is not None
    digest, source, handed = _read_plan(wish.plan)
    if digest != prepared.model.digest:
        raise UsageError(f"{wish.plan} holds a plan of another model ({source}): leave --plan out to find one")
    takers = open_takers(list(dict.fromkeys(h.owner for h in handed)), threads, records)
    market = _Market(prepared, takers, wish, math.inf)
    built = make(handed, market.blob)
    built.facts = {"asked": [f"plan {wish.plan.name}"], "chosen": _label(handed)}
    built.facts["tolerance"] = _tolerance(built, takers)
    return built


def _tolerance(built: Built, takers: Sequence[Taker]) -> float:
    """Return how far off the least exact target of the plan may be, as a share of the largest value."""
    owners = set(built.prepared.plan.owners.values())
    return max((t.target.rtol for t in takers if t.owner in owners), default=0.0)


def _read_plan(path: Path) -> tuple[str, str, tuple[Handed, ...]]:
    """Return the model's digest and name, and the regions that were handed over."""
    try:
        with path.open("rb") as file:
            packed = file.read(4) == _ELF
        data = read_manifest(path).to_json() if packed else json.loads(path.read_text(encoding="utf-8"))
        handed = tuple(Handed(str(h["owner"]), tuple(map(str, h["nodes"]))) for h in data["plan"]["handed"])
        return str(data["source"]["digest"]), str(data["source"]["name"]), handed
    except OSError as err:
        raise UsageError(f"cannot read the plan {path}: {err.strerror}") from err
    except (KeyError, TypeError, ValueError) as err:
        words = "it is neither an artifact nor what `tvmstack inspect --json` prints of one"
        raise UsageError(f"{path} holds no plan: {words}") from err
