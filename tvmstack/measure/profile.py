"""Where an artifact's time goes, kernel by kernel, set against what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmstack.measure.peaks import Peaks

__all__ = ["KernelRow", "ProfileReport", "profile_rows"]

_REGION = "tvmstack.region."


@dataclass(frozen=True)
class KernelRow:
    """One kernel's part of an inference.

    Attributes:
        name: its symbol, or "region <digest>".
        owner: "tvm" or "onnxruntime".
        source: where its schedule came from ("tuned", "shipped", "default"); empty for a region.
        template: the template that scheduled it; empty for a region.
        seconds: time of all its calls in one inference.
        calls: how often it ran in one inference.
        share: its share of the time of all kernels.
        gflops: GFLOP/s it reached, 0 where it computes nothing that counts.
        gbytes: GB/s of its arguments, 0 where unknown.
        peak_share: the larger of its shares of the compute and of the memory peak; None without measured peaks.
        nodes: the ONNX nodes it computes, as far as known.
    """

    name: str
    owner: str
    source: str
    template: str
    seconds: float
    calls: int
    share: float
    gflops: float
    gbytes: float
    peak_share: float | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ProfileReport:
    """All kernels, the costliest first."""

    rows: tuple[KernelRow, ...]
    total_s: float
    peaks: Peaks | None

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "total_s": self.total_s,
            "peaks": self.peaks.to_json() if self.peaks else None,
            "kernels": [asdict(row) for row in self.rows],
        }


def profile_rows(session: Any, inputs: Mapping[str, np.ndarray], peaks: Peaks | None, repeats: int) -> ProfileReport:
    """Run a session `repeats` times with a clock round each kernel and join the times with what its manifest says."""
    times = session.profile(inputs, repeats)
    known = {k["name"]: k for k in session.manifest.kernels}
    total = sum(t.seconds for t in times)
    rows = [_row(t.name, t.seconds, t.calls, total, known.get(t.name, {}), peaks) for t in times]
    return ProfileReport(tuple(sorted(rows, key=lambda r: -r.seconds)), total, peaks)


def _row(
    name: str, seconds: float, calls: int, total: float, fact: Mapping[str, Any], peaks: Peaks | None
) -> KernelRow:
    region = name.startswith(_REGION)
    rate = calls / seconds / 1e9 if seconds > 0 else 0.0
    gflops, gbytes = fact.get("flops", 0.0) * rate, fact.get("bytes", 0.0) * rate
    return KernelRow(
        name="region " + name[len(_REGION) :] if region else name,
        owner="onnxruntime" if region else "tvm",
        source=fact.get("source", ""),
        template=fact.get("template", ""),
        seconds=seconds,
        calls=calls,
        share=seconds / total if total > 0 else 0.0,
        gflops=gflops,
        gbytes=gbytes,
        peak_share=max(gflops / peaks.gflops, gbytes / peaks.gbytes) if peaks and not region else None,
        nodes=tuple(fact.get("nodes", ())),
    )
