"""The self-test of a board: reach, upload, run, noise, clock, heat; a verdict for each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tvmstack.board.watch import Boards
from tvmstack.core.errors import BoardError
from tvmstack.core.verdict import Verdict

__all__ = ["examine"]

# Beyond these a board's times are no use for choosing between schedules.
_NOISE, _DRIFT, _SLOWING = 0.10, 0.01, 0.10
_HOT_C = 85.0
_SLOW_UPLOAD = 1 << 20


def examine(boards: Boards, seconds: float = 2.0) -> dict[str, Any]:
    """Return {"board", "device", "rows", "ok"}: a row for each thing tested, with its figure and verdict.

    Reaching the board and its probe have succeeded by the time there are `Boards`; what fails later is a row, too.
    """
    rows = [
        _row("reach", f"{boards.seconds.get('connect', 0.0) * 1e3:.0f} ms to connect", Verdict.yes()),
        _row("versions", f"TVM {boards.facts.tvm}, tvm-ffi {boards.facts.ffi}", Verdict.yes()),
        _row("run", "code for its CPU gives the right values", Verdict.yes()),
    ]
    try:
        seen = boards.examine(seconds)
    except BoardError as err:
        rows.append(_row("examine", "", Verdict.no(str(err), "look at the board")))
    else:
        rows += [_upload(seen), _noise(seen["times"]), _clock(seen["drift"]), _heat(seen)]
    ok = all(row["ok"] for row in rows)
    return {"board": boards.facts.name, "device": boards.facts.device().to_json(), "rows": rows, "ok": ok}


def _row(name: str, figure: str, verdict: Verdict) -> dict[str, Any]:
    return {"name": name, "figure": figure, "ok": verdict.ok, "reason": verdict.reason, "hint": verdict.hint}


def _upload(seen: dict[str, Any]) -> dict[str, Any]:
    rate = float(seen["upload_bytes_per_s"])
    slow = Verdict.no("uploads are slow", "candidates of some 100 kB will wait for the line")
    return _row("upload", f"{rate / 1e6:.1f} MB/s", Verdict.yes() if rate > _SLOW_UPLOAD else slow)


def _noise(times: Sequence[float]) -> dict[str, Any]:
    low, median, high = statistics.quantiles(times, n=4)
    spread = (high - low) / median
    loud = Verdict.no(
        f"the same kernel's times spread by {spread:.0%}", "stop other programs there, fix the CPU's frequency"
    )
    return _row("noise", f"{median * 1e6:.0f} µs ± {spread / 2:.1%}", Verdict.yes() if spread < _NOISE else loud)


def _clock(drift: dict[str, float]) -> dict[str, Any]:
    share, unsure = drift["share"], drift["unsure"]
    figure = f"{share * 1e6:+.0f} ppm (± {unsure * 1e6:.0f}), wall clock {drift['offset_s']:+.2f} s"
    off = Verdict.no(
        f"its clock runs {share:+.1%} beside ours", "its times cannot be compared: look at its clock source"
    )
    return _row("clock", figure, Verdict.yes() if abs(share) - unsure < _DRIFT else off)


def _heat(seen: dict[str, Any]) -> dict[str, Any]:
    """Judge the heat by the sensor where there is one, and by whether the board slows down under load."""
    times = seen["times"]
    part = max(1, len(times) // 4)
    slowing = statistics.median(times[-part:]) / statistics.median(times[:part]) - 1.0
    after = seen["temperatures_c"][1]
    figure = f"{after:.0f} °C" if after is not None else "no sensor"
    figure += f", {slowing:+.1%} in time under load"
    if after is not None and after > _HOT_C:
        return _row("heat", figure, Verdict.no(f"it is at {after:.0f} °C", "cool it: hot boards slow themselves down"))
    if slowing > _SLOWING:
        return _row("heat", figure, Verdict.no("it slows down under load", "cool it, or give it a stronger supply"))
    return _row("heat", figure, Verdict.yes())
