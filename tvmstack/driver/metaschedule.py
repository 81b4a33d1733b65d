"""MetaSchedule's own databases, read line by line: two JSON files, workloads and tuning records.

TVM's loader gives up at one bad line, and a broken workload can crash the process that loads it. Here workloads are
loaded in a child process, and whatever is wrong with a line costs that line's records only.
"""

from __future__ import annotations

import base64
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.store import Record, Store, Taken
from tvmstack.store.record import OK, check_choice

__all__ = ["PROTOCOL", "RECORDS", "WORKLOADS", "import_metaschedule"]

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
PROTOCOL = "metaschedule"
"""Another way of measuring than ours: such records start a search, and are never used unmeasured."""

# MetaSchedule writes 1e10 seconds for a trial that failed.
_FAILED_S = 1e9
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Workload:
    """A kernel as our own pipeline would name it; `error` says why there is none."""

    text: str = ""
    template: str = ""
    error: str = ""


def import_metaschedule(store: Store, folder: Path) -> Taken:
    """Take the records of a MetaSchedule database into a store.

    The database says nothing of the device, the versions and the pipeline, so those fields are "unknown" and no build
    uses such a record as it stands. A kernel of the same structure gets it as a start of its search.

    Args:
        store: where they go.
        folder: where `database_workload.json` and `database_tuning_record.json` are.

    Raises:
        TuningError: one of the two files cannot be read, or the store cannot be written.
    """
    refused: list[str] = []
    read, new = store.take(_read(folder, refused))
    return Taken(read, new, refused)


def _read(folder: Path, refused: list[str]) -> Iterator[Record]:
    """Yield the records, and note in `refused` why a line gave none."""
    lines, workloads = _lines(folder / RECORDS), _workloads(_lines(folder / WORKLOADS))
    when = (folder / RECORDS).stat().st_mtime
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _record(line, workloads, when)
        except TuningError as err:
            refused.append(f"{RECORDS} line {number}: {err}")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as err:
        raise TuningError(f"cannot read {path}: {err.strerror}; MetaSchedule's database is two files") from err


def _record(line: str, workloads: Sequence[_Workload], when: float) -> Record:
    try:
        index, (trace, seconds, target, _) = json.loads(line)
        times = [float(t) for t in seconds or ()]
        if not isinstance(index, int) or not 0 <= index < len(workloads):
            raise TuningError(f"it names workload {index}, and {WORKLOADS} has {len(workloads)}")
        plain = {k: target[k] for k in ("kind", "mcpu", "num-cores") if k in target}
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise TuningError(f"it is no record of MetaSchedule's ({type(err).__name__})") from err
    work = workloads[index]
    if work.error:
        raise TuningError(f"its workload, line {index + 1} of {WORKLOADS}, cannot be read: {work.error}")
    if not times or not all(0 < t < _FAILED_S for t in times):
        raise TuningError("it failed when it was measured")
    choice = Choice("meta_schedule", {"trace": trace})
    check_choice(choice)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (0.0, 0.0, 0.0)
    return Record(
        work.text,
        work.template,
        choice,
        device=_UNKNOWN,
        target=json.dumps(plain, sort_keys=True),
        versions=_UNKNOWN,
        pipeline=_UNKNOWN,
        schedules=_UNKNOWN,
        protocol=PROTOCOL,
        status=OK,
        median_s=statistics.median(times),
        spread_s=max(0.0, high - low),
        when=math.floor(when),
        proven=False,
    )


def _workloads(lines: Sequence[str]) -> list[_Workload]:
    """Load the workloads in a child process; one that kills it is left out, and a new child goes on behind it."""
    found: list[_Workload] = []
    while len(found) < len(lines):
        done, words = _answers(lines[len(found) :])
        found += done
        if len(found) < len(lines):
            found.append(_Workload(error=words))
    return found


def _answers(lines: Sequence[str]) -> tuple[list[_Workload], str]:
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)}
    done = subprocess.run(
        [sys.executable, "-m", "tvmstack.driver.metaschedule"],
        input="".join(line + "\n" for line in lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        env=env,
    )
    answers = [_Workload(**json.loads(line)) for line in done.stdout.splitlines()]
    return answers, f"loading it ended the process (exit code {done.returncode})"


def _load(line: str) -> dict[str, Any]:
    """Return the kernel of a workload line: [hash, base64 of a length in 8 bytes and the module as JSON]."""
    from tvmstack import schedules
    from tvmstack._tvm import tvm
    from tvmstack.lower.pipeline import workload_text

    _, packed = json.loads(line)
    module = tvm.ir.load_json(base64.b64decode(packed, validate=True)[8:].decode())
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    if len(functions) != 1:
        raise ValueError(f"it holds {len(functions)} kernels, not one")
    return {"text": workload_text(functions[0]), "template": schedules.template_name(functions[0])}


def _main() -> None:
    """Answer each workload line with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = _load(line)
        except Exception as err:  # noqa: BLE001  (the border of the process: any failure of a line is an answer)
            answer = {"error": (str(err).strip() or type(err).__name__).splitlines()[-1][:200]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main()
