"""A tuning run as one HTML page: a curve a kernel, what failed, how the boards were. It loads nothing from anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tvmstack.report.html import html_page
from tvmstack.report.words import count, duration

__all__ = ["tuning_html"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 420, 150, 64, 34, 12


def tuning_html(data: Mapping[str, Any], name: str) -> str:
    """Return the page for a run as plain data (what `driver.tune` returns) on the model or models called `name`."""
    tasks = sorted(data["tasks"], key=lambda task: -task["share"])
    parts = [
        f"<p>{escape(_summary(data))}</p>",
        _models(data.get("models", {})),
        _left_out(data.get("fleet", ())),
        f"<h2>Kernels</h2>{_kernels(tasks)}",
        f"<h2>Curves</h2>{_curves(tasks, data['seconds'])}",
        f"<h2>Failures</h2>{_counts(data['failures'], 'kind', 'No candidate failed.')}",
        f"<h2>Time</h2>{_counts({k: duration(v) for k, v in data['stages'].items()}, 'stage', 'Nothing was run.')}",
        _boards(data.get("boards", ())),
    ]
    return html_page(f"{name}: tuning", f"{name}: tuning", "".join(parts))


def _summary(data: Mapping[str, Any]) -> str:
    tasks = data["tasks"]
    tried = sum(1 for t in tasks if t["trials"])
    known, seeds = sum(t["known"] for t in tasks), sum(t["seeds"] for t in tasks)
    return (
        f"{count(data['trials'], 'trial')} in {duration(data['seconds'])} on {tried} of {count(len(tasks), 'kernel')} "
        f"that can be tuned; {count(known, 'store hit')} and {count(seeds, 'seed')} from other records."
    )


def _models(models: Mapping[str, Sequence[float]]) -> str:
    if not models:
        return ""
    rows = [(name, duration(start), duration(best), _gain(start, best)) for name, (start, best) in models.items()]
    return f"<h2>Models</h2>{_table(('model', 'kernels by default', 'by the best', 'gain'), rows)}"


def _left_out(fleet: Sequence[Mapping[str, Any]]) -> str:
    """Return the models that could not be tuned, and why."""
    return "".join(
        f'<p class="warn">{escape(row["path"])}: {escape(row["error"])}</p>' for row in fleet if row["error"]
    )


def _kernels(tasks: Sequence[Mapping[str, Any]]) -> str:
    heads = ("kernel", "share", "calls", "default", "best", "gain", "trials", "failed", "store hits", "seeds", "note")
    return _table(heads, [_kernel(task) for task in tasks]) if tasks else "<p>No kernel can be tuned.</p>"


def _kernel(task: Mapping[str, Any]) -> tuple[str, ...]:
    start, best = task["start_s"], task["best_s"]
    times = [duration(t) if t else "" for t in (start, best)]
    counts = [str(task[key]) for key in ("trials", "failed", "known", "seeds")]
    users = ", ".join(task["models"])
    note = "; ".join(words for words in (task["note"], users and f"in {users}") if words)
    return (task["name"], f"{task['share']:.1%}", str(task["calls"]), *times, _gain(start, best), *counts, note)


def _gain(start: float | None, best: float | None) -> str:
    return f"{start / best:.2f}x" if start and best else ""


def _curves(tasks: Sequence[Mapping[str, Any]], seconds: float) -> str:
    drawn = [task for task in tasks if task["trials"] and task["steps"]]
    if not drawn:
        return "<p>Nothing was measured in this run.</p>"
    return "".join(f"<h3>{escape(task['name'])}</h3>{_curve(task, seconds)}" for task in drawn)


def _curve(task: Mapping[str, Any], seconds: float) -> str:
    """Return one drawing: the best time of a kernel against trials on the left, against seconds on the right."""
    steps = task["steps"]
    by_trials = [(float(trials), best) for _, trials, best in steps]
    by_seconds = [(elapsed, best) for elapsed, _, best in steps]
    panels = _panel(by_trials, float(task["trials"]), "trials", 0) + _panel(by_seconds, seconds, "seconds", _WIDTH)
    label = escape(f"Best time of {task['name']} against trials and seconds", quote=True)
    return f'<svg viewBox="0 0 {2 * _WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{panels}</svg>'


def _panel(points: Sequence[tuple[float, float]], end: float, words: str, offset: int) -> str:
    """Return a staircase: a best time holds until the next."""
    left, right, floor = offset + _LEFT, offset + _WIDTH - _MARGIN, _HEIGHT - _BOTTOM
    width, top = max(end, points[-1][0]) or 1.0, max(best for _, best in points)

    def at(x: float, y: float) -> str:
        return f"{left + (right - left) * x / width:.1f},{floor - (floor - _MARGIN) * y / top:.1f}"

    corners = [at(*points[0])]
    for (_, before), (x, best) in itertools.pairwise(points):
        corners += [at(x, before), at(x, best)]
    corners.append(at(width, points[-1][1]))
    return (
        f'<line x1="{left}" x2="{right}" y1="{floor}" y2="{floor}" stroke="#e6eaef"/>'
        f'<line x1="{left}" x2="{left}" y1="{_MARGIN}" y2="{floor}" stroke="#e6eaef"/>'
        f'<polyline points="{" ".join(corners)}" fill="none" stroke="#2f7d4f" stroke-width="1.6"/>'
        f'<text x="{left - 6}" y="{_MARGIN + 4}" text-anchor="end">{duration(top)}</text>'
        f'<text x="{left - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{_HEIGHT - 16}" text-anchor="end">{width:.3g} {words}</text>'
    )


def _counts(rows: Mapping[str, Any], head: str, nothing: str) -> str:
    return _table((head, ""), [(kind, str(value)) for kind, value in rows.items()]) if rows else f"<p>{nothing}</p>"


def _boards(boards: Sequence[Mapping[str, Any]]) -> str:
    if not boards:
        return ""
    return f"<h2>Boards</h2>{_table(('class', 'board', 'health'), [(b['key'], b['name'], b['state']) for b in boards])}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    cells = ["".join(f'<td class="k">{escape(cell)}</td>' for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
