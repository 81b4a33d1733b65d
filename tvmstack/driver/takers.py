"""Back ends as the choice of owners sees them: which nodes one takes, what a region costs there, and its blob."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmstack.core.errors import BackendError, UsageError

if TYPE_CHECKING:
    from tvmstack.backends.base import Backend, Blob, NodeVerdict, Target
    from tvmstack.core.model import Model
    from tvmstack.core.region import Region
    from tvmstack.frontend import BackendAnswers
    from tvmstack.partition import Border

__all__ = ["AUTO", "Taker", "answers_of", "open_takers", "sample_tensors"]

_log = logging.getLogger("tvmstack.driver")

AUTO = "auto"
_SIMPLER = "a build writes it out in simpler operators where all of these are taken"


@dataclass
class Taker:
    """One back end with one of its targets.

    Attributes:
        owner: "NAME:TARGET", how plans call it.
        backend: the back end, in a process of its own where it needs that.
        target: what it compiles for.
        threads: CPU threads its regions may use.
        records: the store, which keeps blobs and times.
        refusals: what it refused, in sentences.
    """

    owner: str
    backend: Backend
    target: Target
    threads: int
    records: Any
    refusals: list[str] = field(default_factory=list)

    def verdicts(self, model: bytes) -> Mapping[str, NodeVerdict]:
        """Return for each node by name whether it takes it."""
        return self.backend.query(model, self.target)

    def blob(self, region: Region, samples: Mapping[str, Sequence[np.ndarray]]) -> Blob:
        """Return the region compiled and compared with onnxruntime, from the store where it is there.

        Raises:
            BackendError: the region is refused, or its numbers are wrong.
        """
        from tvmstack.driver.handoff import hand_over

        return hand_over(region, self.backend, self.target, self._options(), samples, self.records)

    def seconds(self, region: Region, samples: Mapping[str, Sequence[np.ndarray]]) -> float:
        """Return what a call of the region takes, measured or, where it cannot run here, estimated; inf if refused."""
        from tvmstack.driver.handoff import price

        try:
            blob = self.blob(region, samples)
            cost = price(region, blob, self.backend, self.target, self._options(), samples, self.records)
        except BackendError as err:
            self.refusals.append(str(err))
            _log.info("%s refuses %d nodes: %s", self.owner, len(region.nodes), err)
            return math.inf
        return math.inf if cost is None else cost.seconds

    def border(self) -> Border:
        """Return what entering a region of this owner costs, from the store where it was measured before."""
        from tvmstack.driver.handoff import border

        return border(self.backend, self.target, self._options(), self.records)

    def _options(self) -> Any:
        from tvmstack.backends.base import Options

        return Options(threads=self.threads)


def open_takers(names: Sequence[str], threads: int, records: Any) -> list[Taker]:
    """Return the back ends that are named; "auto" stands for all that can run here.

    Raises:
        UsageError: a name or a target is unknown.
        SetupError: one that is named cannot compile here; the message says what is missing.
    """
    from tvmstack.backends.registry import available, open_backend

    if AUTO in names and len(set(names) - {AUTO, "tvm"}) > 0:
        raise UsageError("--backend auto stands for every back end: name none beside it")
    wanted = available() if AUTO in names else [n for n in names if n != "tvm"]
    takers = []
    for name in dict.fromkeys(wanted):
        backend, target = open_backend(name)
        takers.append(Taker(f"{backend.name}:{target.name}", backend, target, threads, records))
    return takers


def answers_of(takers: Sequence[Taker], model: Model) -> tuple[BackendAnswers, ...]:
    """Return what each back end says to each node of a repaired model; silence about a node is a refusal.

    Raises:
        BackendError: one cannot answer.
    """
    import onnx_ir

    from tvmstack.backends.base import NodeVerdict, Support
    from tvmstack.frontend import Answer, BackendAnswers
    from tvmstack.graph.decompose import has_simpler_form
    from tvmstack.graph.values import opset_of

    data = onnx_ir.to_proto(model.graph).SerializeToString()
    mute = NodeVerdict(Support.UNSUPPORTED, "it gives no answer for this node")
    simpler = {n.name for n in model.graph.graph if has_simpler_form(n, opset_of(model.graph))}
    found = []
    for taker in takers:
        verdicts = taker.verdicts(data)
        answers = []
        for node in model.graph.graph:
            verdict = verdicts.get(node.name or "", mute)
            hint = verdict.hint
            if not hint and verdict.support is not Support.SUPPORTED and taker.target.kind == "npu":
                hint = _SIMPLER if node.name in simpler else ""
            words = (verdict.support.value, verdict.reason, hint)
            answers.append(Answer(node.name or "", node.op_type, node.domain, *words))
        version = taker.backend.probe().version
        found.append(BackendAnswers(taker.backend.name, taker.target.name, version, tuple(answers)))
    return tuple(found)


def sample_tensors(model: Model, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tensors of a repaired model by name, as onnxruntime computes them from these inputs."""
    import onnx_ir

    from tvmstack.measure.bisect import with_outputs
    from tvmstack.measure.oracle import Oracle

    inner = [n for n in names if n not in feeds]
    if not inner:
        return {n: feeds[n] for n in names}
    found = Oracle(onnx_ir.to_proto(with_outputs(model.graph, inner))).run(feeds)
    return {n: feeds[n] if n in feeds else found[n] for n in names}
