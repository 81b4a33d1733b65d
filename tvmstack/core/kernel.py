"""What is known of one kernel, and how it may be scheduled: the words that lowering, tuning and the store share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["Choice", "Kernel", "site_kernel"]


@dataclass(frozen=True)
class Choice:
    """How a kernel is scheduled: a template of `schedules/` and its decisions.

    Attributes:
        template: a name known to `tvmstack.schedules`; "meta_schedule" replays a trace of MetaSchedule's.
        decisions: plain JSON data. Templates: decision name to int. "meta_schedule": {"trace": [...]}.
    """

    template: str
    decisions: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {"template": self.template, "decisions": dict(self.decisions)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Choice:
        """Rebuild a choice from `to_json`."""
        return Choice(data["template"], dict(data["decisions"]))

    @property
    def text(self) -> str:
        """The choice as canonical JSON, equal for equal choices."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Kernel:
    """One fused TIR function of a lowered model, not yet scheduled.

    Attributes:
        name: its global symbol in the module, unique there.
        func: the unscheduled `PrimFunc`; its buffers carry shapes and dtypes.
        workload: canonical text of `func` without its name: equal text is the same work. What the store hashes and
            compares.
        calls: how often one inference runs it.
        flops: floating-point operations of one call (a multiply-add counts two); of a convolution those of the direct
            algorithm.
        bytes: bytes of its arguments, read or written once.
        template: the template of `schedules/` that serves it, "meta_schedule" where none does.
        algorithm: what computes it where several algorithms could, like "winograd4"; else "".
        site: the convolution that those algorithms compute, in one word; else "".
        weights: positions of the arguments that are weights, which come from memory and not from a cache.
        nodes: names of the ONNX nodes it computes, as far as they are known.
    """

    name: str
    func: PrimFunc | None
    workload: str
    calls: int
    flops: float
    bytes: float
    template: str
    algorithm: str = ""
    site: str = ""
    weights: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


def site_kernel(site: str) -> Kernel:
    """Return what stands for a convolution itself, whichever algorithm computes it: the key of that decision's records.

    Their choice is `Choice("algorithm", {"name": ALGORITHM})`.
    """
    return Kernel(site, None, f"convolution {site}", 1, 0.0, 0.0, "algorithm")
