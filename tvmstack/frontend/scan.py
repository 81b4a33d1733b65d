"""`scan`: who can run each node, why not TVM, and what would help; before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir

from tvmstack.core.model import Model, TensorSpec
from tvmstack.core.verdict import Verdict
from tvmstack.frontend.load import load_model
from tvmstack.frontend.shapes import assume_dims, option_for
from tvmstack.graph import repair
from tvmstack.partition.grouping import group_foreign
from tvmstack.partition.refusals import refusal
from tvmstack.partition.verdicts import judge

__all__ = ["Answer", "BackendAnswers", "ScanReport", "ScanRow", "scan"]

_SUPPORTS = ("supported", "vendor_cpu", "unsupported")


@dataclass(frozen=True)
class ScanRow:
    """One node of the repaired model.

    Attributes:
        name: its name.
        op: its operator.
        domain: the operator's domain, empty for the standard one.
        owner: who will run it: "tvm", "onnxruntime", or "none" where neither can.
        verdict: what TVM says to it.
    """

    name: str
    op: str
    domain: str
    owner: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "name": self.name,
            "op": self.op,
            "domain": self.domain,
            "owner": self.owner,
            "reason": self.verdict.reason,
            "hint": self.verdict.hint,
        }


@dataclass(frozen=True)
class Answer:
    """What a back end says to one node.

    Attributes:
        name: the node's name.
        op: its operator.
        domain: the operator's domain, empty for the standard one.
        support: "supported", "vendor_cpu" (taken, but it would run on the vendor's CPU code) or "unsupported".
        reason: why it is not plainly supported.
        hint: what would help.
    """

    name: str
    op: str
    domain: str
    support: str
    reason: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class BackendAnswers:
    """What one back end says to the nodes of a model.

    Attributes:
        backend: its name.
        target: the target it was asked for.
        version: its library's.
        answers: one for each node, in the graph's order.
    """

    backend: str
    target: str
    version: str
    answers: tuple[Answer, ...]

    @property
    def totals(self) -> dict[str, int]:
        """Nodes by support."""
        counts = Counter(answer.support for answer in self.answers)
        return {support: counts[support] for support in _SUPPORTS}

    @property
    def refused(self) -> list[dict[str, Any]]:
        """What it does not plainly take: operators with the same answer together, the most frequent first."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for a in self.answers:
            if a.support != "supported":
                groups.setdefault((a.op, a.domain, a.support, a.reason, a.hint), []).append(a.name)
        names = ("op", "domain", "support", "reason", "hint")
        rows = [{**dict(zip(names, key, strict=True)), "nodes": nodes} for key, nodes in groups.items()]
        return sorted(rows, key=lambda row: -len(row["nodes"]))

    def to_json(self) -> dict[str, Any]:
        """Return the answers as plain data."""
        return {
            "backend": self.backend,
            "target": self.target,
            "version": self.version,
            "totals": self.totals,
            "refused": self.refused,
            "nodes": [answer.to_json() for answer in self.answers],
        }


@dataclass(frozen=True)
class ScanReport:
    """What a compilation of the model would look like.

    Attributes:
        source: the model's name.
        inputs: its inputs, dynamic dims by name.
        outputs: its outputs.
        rows: the nodes left after repair.
        regions: how many onnxruntime regions they would form.
        changes: what repair changed.
        open_dims: for each input with dynamic dims, the --shape option that fixes them.
        assumed: the --shape options this scan took for those.
        model: the repaired model that the rows are of.
        backends: what back ends said to it, where any were asked.
    """

    source: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: tuple[ScanRow, ...]
    regions: int
    changes: tuple[str, ...]
    open_dims: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    model: Model = field(kw_only=True, repr=False, compare=False)
    backends: tuple[BackendAnswers, ...] = field(default=(), kw_only=True)

    @property
    def totals(self) -> dict[str, int]:
        """Nodes by owner."""
        counts = Counter(row.owner for row in self.rows)
        return {owner: counts[owner] for owner in ("tvm", "onnxruntime", "none")}

    @property
    def refused(self) -> tuple[ScanRow, ...]:
        """The rows TVM does not run."""
        return tuple(row for row in self.rows if row.owner != "tvm")

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "source": self.source,
            "inputs": [s.to_json() for s in self.inputs],
            "outputs": [s.to_json() for s in self.outputs],
            "nodes": [row.to_json() for row in self.rows],
            "totals": self.totals,
            "regions": self.regions,
            "changes": list(self.changes),
            "open_dims": list(self.open_dims),
            "assumed": list(self.assumed),
            "backends": [answers.to_json() for answers in self.backends],
        }


def scan(
    model_source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sample_inputs: Any = None,
    *,
    freeze: Mapping[str, Any] | None = None,
) -> ScanReport:
    """Load and repair a model and say for each node who would run it. Dims that are not fixed are assumed.

    Raises:
        ModelError: the model cannot be read.
        UsageError: shapes or frozen values do not fit.
    """
    loaded = load_model(model_source, shapes, sample_inputs, freeze=freeze, allow_dynamic=True)
    open_dims = tuple(option_for(v) for v in loaded.graph.graph.inputs if _is_open(v))
    assumed = assume_dims(loaded.graph) if open_dims else ()
    model = repair(loaded)
    verdicts = judge(model)
    nodes = list(model.graph.graph)
    refused = {n for n in nodes if not verdicts[n.name or ""]}
    groups = group_foreign(nodes, refused)
    foreign = {n for group in groups for n in group}
    lost = {n: reason for n in foreign if (reason := refusal(n, model.graph))}
    rows = []
    for node in nodes:
        owner = "none" if node in lost else "onnxruntime" if node in foreign else "tvm"
        verdict = verdicts[node.name or ""]
        if owner == "none":
            verdict = Verdict.no(lost[node])
        elif owner == "onnxruntime" and verdict:
            verdict = Verdict.no("TVM could take it, but it stands between nodes of a region")
        rows.append(ScanRow(node.name or "", node.op_type, node.domain, owner, verdict))
    return ScanReport(
        source=model.source,
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        rows=tuple(rows),
        regions=len(groups),
        changes=model.changes,
        open_dims=open_dims,
        assumed=assumed,
        model=model,
    )


def _is_open(value: onnx_ir.Value) -> bool:
    return value.shape is None or any(not isinstance(d, int) for d in value.shape)
