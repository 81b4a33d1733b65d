"""One measured choice, its text form, and what a record from elsewhere may contain."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.store.key import FIELDS, workload_digest

__all__ = ["OK", "Explanation", "Record", "check_choice", "record_from_line", "seal"]

OK = "ok"
_SEALED = (
    "workload",
    "context",
    "template",
    "choice",
    "status",
    "median_s",
    "spread_s",
    "is_default",
    "is_final",
    "when",
)
# What is not of the measurement but of the store that holds it.
_LOCAL = ("source", "proven", "quarantine")
_TRACE = "meta_schedule"
_LONGEST_CHOICE = 1 << 20
_LONGEST_NAME = 100
# What MetaSchedule's CPU rules and post-processors write. An instruction that takes code, a file or another program's
# data (a pragma that imports LLVM text is one) must not come in with a record.
_INSTRUCTIONS = frozenset(
    {
        "AddUnitLoop",
        "Annotate",
        "Bind",
        "Blockize",
        "CacheRead",
        "CacheWrite",
        "ComputeAt",
        "ComputeInline",
        "DecomposePadding",
        "DecomposeReduction",
        "EnterPostproc",
        "Fuse",
        "GetChildBlocks",
        "GetConsumers",
        "GetLoops",
        "GetOutputBlocks",
        "GetProducers",
        "GetSBlock",
        "LoopPartition",
        "Merge",
        "PadEinsum",
        "Parallel",
        "RFactor",
        "ReindexCacheRead",
        "ReindexCacheWrite",
        "Reorder",
        "ReorderBlockIterVar",
        "ReverseComputeAt",
        "ReverseComputeInline",
        "SampleCategorical",
        "SampleComputeLocation",
        "SamplePartitionedTile",
        "SamplePerfectTile",
        "SetScope",
        "Split",
        "StorageAlign",
        "Tensorize",
        "Unannotate",
        "Unroll",
        "Vectorize",
    }
)
_ANNOTATIONS = ("meta_schedule.", "pragma_auto_unroll_max_step", "pragma_unroll_explicit", "software_pipeline_")


@dataclass(frozen=True)
class Record:
    """A choice under its key, and what measuring it gave.

    Attributes:
        workload: text of the kernel.
        template: the template that served it.
        choice: how it was scheduled.
        device, target, versions, pipeline, schedules, protocol: the key's fields.
        status: "ok", or why the choice failed.
        median_s: median seconds of a call; infinite where it failed.
        spread_s: interquartile range of the calls.
        is_default: whether this is the untuned build's choice.
        is_final: whether it was measured again, in turns with the default, at the end of a search.
        when: seconds since the epoch.
        source: "tuned" for the store's own, "shipped" for those of `tuning_logs/`.
        proven: whether it ran here, by measuring or by replay; one that came from elsewhere is not.
        quarantine: why it must not be used, empty where it may.
    """

    workload: str
    template: str
    choice: Choice
    device: str
    target: str
    versions: str
    pipeline: str
    schedules: str
    protocol: str
    status: str = OK
    median_s: float = math.inf
    spread_s: float = 0.0
    is_default: bool = False
    is_final: bool = False
    when: float = 0.0
    source: str = "tuned"
    proven: bool = True
    quarantine: str = ""

    @property
    def digest(self) -> str:
        """The workload's digest."""
        return workload_digest(self.workload)

    @property
    def fields(self) -> dict[str, str]:
        """The key's fields by name."""
        return {name: getattr(self, name) for name in FIELDS}

    def differs_in(self, fields: Mapping[str, str]) -> list[str]:
        """Return the names of the key's fields that differ from `fields`."""
        return [name for name in FIELDS if getattr(self, name) != fields[name]]

    def to_line(self) -> str:
        """Return the record as a line of JSON that carries its own digest."""
        data = {k: v for k, v in vars(self).items() if k not in _LOCAL}
        data["choice"] = self.choice.to_json()
        data["median_s"] = None if self.status != OK else self.median_s
        return json.dumps({"sha256": _body_digest(data), "record": data}, sort_keys=True)


def seal(row: Mapping[str, Any]) -> str:
    """Return sixteen hex digits over a row's measurement, by which a flipped bit inside it is found."""
    body = json.dumps([row[name] for name in _SEALED], separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def record_from_line(line: str, source: str = "tuned") -> Record:
    """Rebuild a record from its line; one that is not shipped with tvmstack counts as not proven.

    Raises:
        TuningError: the line is not JSON, lacks a field, does not match its digest, or holds what no record may.
    """
    try:
        outer = json.loads(line)
        data = dict(outer["record"])
        if _body_digest(data) != outer["sha256"]:
            raise TuningError("its digest does not match: the line was changed or damaged")
        data["choice"] = Choice.from_json(data["choice"])
        data["median_s"] = math.inf if data["median_s"] is None else float(data["median_s"])
        known = {k: v for k, v in data.items() if k in Record.__dataclass_fields__ and k not in _LOCAL}
        record = Record(**known, source=source, proven=source == "shipped")
        _check_fields(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
        raise TuningError(f"it is no record ({type(err).__name__}: {err})") from err
    check_choice(record.choice)
    return record


def _body_digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_fields(record: Record) -> None:
    """Refuse values that would upset a database or a comparison of times."""
    for name in ("workload", "template", "status", *FIELDS):
        value = getattr(record, name)
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"{name} must be text")
        value.encode()
    for name in ("is_default", "is_final"):
        if not isinstance(getattr(record, name), bool):
            raise TypeError(f"{name} must be true or false")
    if record.status == OK and not 0 < record.median_s < math.inf:
        raise ValueError(f"median_s must be a positive number, not {record.median_s}")
    if not (0 <= record.spread_s < math.inf and 0 <= record.when < math.inf):
        raise ValueError("spread_s and when must be positive numbers")


def check_choice(choice: Choice) -> None:
    """Refuse a choice that is more than numbers and names for a template, or plain instructions of MetaSchedule's.

    Raises:
        TuningError: it holds an instruction, an annotation or a value that has no place in a record.
    """
    if not isinstance(choice.template, str) or len(choice.text) > _LONGEST_CHOICE or "\\u0000" in choice.text:
        raise TuningError("its choice is no choice")
    if choice.template != _TRACE:
        odd = [name for name, value in choice.decisions.items() if not _is_plain(value)]
        if odd:
            raise TuningError(f"its decision {odd[0]!r} is no number and no name")
        return
    try:
        instructions, _ = choice.decisions["trace"]
        for kind, _, attributes, _ in instructions:
            if kind not in _INSTRUCTIONS:
                raise TuningError(f"its trace has an instruction that records may not carry: {str(kind)[:40]}")
            if kind == "Annotate" and not str(attributes[0]).startswith(_ANNOTATIONS):
                raise TuningError(f"its trace sets {str(attributes[0])[:40]!r}, which records may not carry")
    except (ValueError, TypeError, KeyError, IndexError) as err:
        raise TuningError(f"its trace is no trace ({type(err).__name__})") from err


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_NAME
    return isinstance(value, (int, float)) and math.isfinite(value)


@dataclass(frozen=True)
class Explanation:
    """Why a look-up gives what it gives.

    Attributes:
        record: the record that matches, or None.
        nearest: the record that is closest where none matches, or None.
        differs: the names of the fields that differ in it.
        reason: the whole in words.
    """

    record: Record | None
    nearest: Record | None
    differs: tuple[str, ...]
    reason: str
