"""One measured choice, and its text form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.store.key import workload_digest

__all__ = ["OK", "Explanation", "Record", "record_from_line"]

OK = "ok"
_FIELDS = ("device", "target", "versions", "pipeline", "schedules", "protocol")


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
    median_s: float = float("inf")
    spread_s: float = 0.0
    is_default: bool = False
    is_final: bool = False
    when: float = 0.0
    source: str = "tuned"

    @property
    def digest(self) -> str:
        """The workload's digest."""
        return workload_digest(self.workload)

    def differs_in(self, fields: Mapping[str, str]) -> list[str]:
        """Return the names of the key's fields that differ from `fields`."""
        return [name for name in _FIELDS if getattr(self, name) != fields[name]]

    def to_line(self) -> str:
        """Return the record as a line of JSON that carries its own digest."""
        data = asdict(self)
        data["choice"] = self.choice.to_json()
        data["median_s"] = None if self.status != OK else self.median_s
        del data["source"]
        body = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "record": data}, sort_keys=True)


def record_from_line(line: str, source: str = "tuned") -> Record:
    """Rebuild a record from its line.

    Raises:
        TuningError: the line is not JSON, lacks a field or does not match its digest.
    """
    try:
        outer = json.loads(line)
        data = dict(outer["record"])
        body = json.dumps(data, sort_keys=True, separators=(",", ":"))
        if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
            raise TuningError("its digest does not match: the line was changed or damaged")
        data["choice"] = Choice.from_json(data["choice"])
        data["median_s"] = float("inf") if data["median_s"] is None else float(data["median_s"])
        known = {k: v for k, v in data.items() if k in Record.__dataclass_fields__}
        return Record(**{**known, "source": source})
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise TuningError(f"it is no record ({type(err).__name__}: {err})") from err


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
