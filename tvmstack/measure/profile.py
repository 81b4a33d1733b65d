"""Where an artifact's time goes, kernel by kernel, set against what the machine can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmstack.measure.peaks import Peaks

__all__ = ["KernelRow", "ProfileReport", "profile_rows"]

_REGION = "tvmstack.region."
# Less than this share of the model's time is not worth a search.
_WORTH = 0.01
_UNTUNED = ("default",)


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
        bound: "compute" or "memory": which peak its operations per byte meet first; "" without measured peaks.
        roof_s: the least time its calls could take at these peaks; None without them, or where its work is unknown.
        peak_share: that time over what it took, its share of the roof; above 1 where its data stay in the caches.
        headroom: share of the whole model's time that tuning could win at most; 0 for what is tuned, fixed or a region.
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
    bound: str
    roof_s: float | None
    peak_share: float | None
    headroom: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ProfileReport:
    """All kernels, the costliest first.

    Attributes:
        rows: one for each kernel and region.
        total_s: the time of all kernels of one inference.
        run_s: the median of whole inferences without a clock in them, from arrays to arrays.
        peaks: what the machine can do.
    """

    rows: tuple[KernelRow, ...]
    total_s: float
    run_s: float
    peaks: Peaks | None

    @property
    def worth_tuning(self) -> tuple[KernelRow, ...]:
        """Kernels that tuning could win most on, the best first: their share x their distance from the roof."""
        found = [row for row in self.rows if row.headroom >= _WORTH]
        return tuple(sorted(found, key=lambda r: -r.headroom))

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "total_s": self.total_s,
            "run_s": self.run_s,
            "peaks": self.peaks.to_json() if self.peaks else None,
            "kernels": [asdict(row) for row in self.rows],
            "worth_tuning": [row.name for row in self.worth_tuning],
        }


def profile_rows(session: Any, inputs: Mapping[str, np.ndarray], peaks: Peaks | None, repeats: int) -> ProfileReport:
    """Run a session `repeats` times with a clock round each kernel and join the times with what its manifest says."""
    times = session.profile(inputs, repeats)
    whole = [_seconds(session, inputs) for _ in range(repeats)]
    known = {k["name"]: k for k in session.manifest.kernels}
    total = sum(t.seconds for t in times)
    rows = [_row(t.name, t.seconds, t.calls, total, known.get(t.name, {}), peaks) for t in times]
    return ProfileReport(tuple(sorted(rows, key=lambda r: -r.seconds)), total, statistics.median(whole), peaks)


def _seconds(session: Any, inputs: Mapping[str, np.ndarray]) -> float:
    start = time.perf_counter()
    session.run(inputs)
    return time.perf_counter() - start


def _row(
    name: str, seconds: float, calls: int, total: float, fact: Mapping[str, Any], peaks: Peaks | None
) -> KernelRow:
    region = name.startswith(_REGION)
    rate = calls / seconds / 1e9 if seconds > 0 else 0.0
    bound, roof = _roof(fact, calls, peaks)
    share = seconds / total if total > 0 else 0.0
    of_roof = roof / seconds if roof and seconds > 0 else None
    open_to_tuning = fact.get("source") in _UNTUNED and of_roof is not None
    return KernelRow(
        name="region " + name[len(_REGION) :] if region else name,
        owner="onnxruntime" if region else "tvm",
        source=fact.get("source", ""),
        template=fact.get("template", ""),
        seconds=seconds,
        calls=calls,
        share=share,
        gflops=fact.get("flops", 0.0) * rate,
        gbytes=fact.get("bytes", 0.0) * rate,
        bound=bound,
        roof_s=roof,
        peak_share=of_roof,
        headroom=share * max(0.0, 1.0 - (of_roof or 0.0)) if open_to_tuning else 0.0,
        nodes=tuple(fact.get("nodes", ())),
    )


def _roof(fact: Mapping[str, Any], calls: int, peaks: Peaks | None) -> tuple[str, float | None]:
    """Return what bounds a kernel and the least time of its calls, by the roofline model (Williams et al., 2009)."""
    if peaks is None or not (fact.get("flops") or fact.get("bytes")):
        return "", None
    compute = fact.get("flops", 0.0) * calls / peaks.gflops / 1e9
    memory = fact.get("bytes", 0.0) * calls / peaks.gbytes / 1e9
    return ("compute", compute) if compute >= memory else ("memory", memory)
