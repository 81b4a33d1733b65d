"""Several models tuned together: equal kernels once, and the budget by what each kernel is worth to all of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmstack.core.errors import TvmstackError, UsageError, nearest
from tvmstack.core.kernel import Kernel
from tvmstack.driver.algorithms import alternatives, recorded
from tvmstack.driver.boards import board_device, board_states, opened_boards, refuse_regions
from tvmstack.driver.result import seconds_from
from tvmstack.driver.steps import Progress, Shapes, device_of, open_records, prepare, require_tunable
from tvmstack.measure.machine import require_linker

if TYPE_CHECKING:
    from tvmstack.board.watch import Boards
    from tvmstack.core.device import Device

__all__ = ["is_fleet", "model_paths", "tune_fleet"]

_log = logging.getLogger("tvmstack.driver")


@dataclass(frozen=True)
class _Member:
    """What is kept of one model: the kernels it is built from and those of other algorithms, renamed; no weights."""

    name: str
    kernels: tuple[Kernel, ...]
    others: tuple[Kernel, ...]


@dataclass(frozen=True)
class _Wish:
    """What was asked for besides the models: dims and constants by input, nodes for onnxruntime."""

    shapes: Mapping[str, Sequence[int]]
    freeze: Mapping[str, Any]
    onnxruntime_nodes: tuple[str, ...]


def is_fleet(models: Sequence[str | Path]) -> bool:
    """Whether these words mean several models: more than one, or a folder."""
    return len(models) > 1 or any(Path(m).is_dir() for m in models)


def model_paths(models: Sequence[str | Path]) -> list[Path]:
    """Return the files that the words mean, each once: files as they are, of folders the .onnx files right in them.

    Raises:
        UsageError: a folder holds none.
    """
    found: dict[Path, Path] = {}
    for word in map(Path, models):
        files = sorted(f for f in word.glob("*.onnx") if f.is_file()) if word.is_dir() else [word]
        if not files:
            raise UsageError(f"there is no .onnx file in {word}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def tune_fleet(
    models: Sequence[str | Path],
    shapes: Shapes = None,
    device: str | Device | None = None,
    tune: float | str | None = None,
    trials: int | None = None,
    store: str | Path | None = None,
    onnxruntime_nodes: Collection[str] = (),
    progress: Progress = None,
    freeze: Mapping[str, Any] | None = None,
    winograd: bool = True,
    board: str | None = None,
) -> dict[str, Any]:
    """Measure schedules for the kernels of several models into the store; see `tvmstack.driver.tune`.

    A kernel that several models have is tuned once. What a trial may gain counts, summed over the models, as a part of
    each model's time, so that a small model is not starved by a large one. `shapes`, `freeze` and `onnxruntime_nodes`
    go to the models that have such an input or node. A model that cannot be tuned costs itself alone.

    Returns:
        What `tune` returns, and "fleet": a row a model with its path, name, kernels, error (or None) and exit code.

    Raises:
        UsageError: neither `tune` nor `trials` says how much, or no model has an input or a node that was named.
        TvmstackError: there is no model that can be tuned; of the class and with the text of the first one's error.
    """
    seconds = seconds_from(tune)
    if not seconds and not trials:
        raise UsageError("say how much to tune: a time (tune='5m') or a number of trials")
    paths = model_paths(models)
    wishes = _wishes(paths, _Wish(shapes or {}, freeze or {}, tuple(onnxruntime_nodes)))
    with opened_boards(board) as boards, open_records(store) as records:
        target = device_of(board_device(boards, device))
        require_tunable(target)
        require_linker(target.arch)
        pick = recorded(records, target, winograd)
        members: list[_Member] = []
        rows: list[dict[str, Any]] = []
        errors: list[TvmstackError] = []
        for path, name in zip(paths, _names(paths), strict=True):
            try:
                members.append(_member(path, name, wishes[path], target, pick, boards))
                rows.append(_row(path, members[-1]))
            except TvmstackError as err:
                _log.error("error: %s is left out: %s", path, err)
                errors.append(err)
                rows.append({"path": str(path), "name": name, "kernels": 0, "error": str(err), "exit": err.exit_code})
        if not members:
            raise type(errors[0])(f"none of these {len(paths)} models can be tuned; the first: {errors[0]}")
        data = _tune(members, target, records, seconds, trials, progress, boards)
    return {**data, "fleet": rows}


def _member(path: Path, name: str, wish: _Wish, device: Device, pick: Any, boards: Boards | None) -> _Member:
    """Return a model's kernels; its graph and weights are gone when this returns."""
    prepared = prepare(str(path), wish.shapes, device, wish.onnxruntime_nodes, wish.freeze, None, pick)
    refuse_regions(boards, prepared.plan)
    own, others = ([replace(k, name=f"{name}.{k.name}") for k in ks] for ks in _both(prepared))
    return _Member(name, tuple(own), tuple(others))


def _both(prepared: Any) -> Iterator[Sequence[Kernel]]:
    yield prepared.lowered.kernels
    yield alternatives(prepared)


def _row(path: Path, member: _Member) -> dict[str, Any]:
    return {"path": str(path), "name": member.name, "kernels": len(member.kernels), "error": None, "exit": 0}


def _tune(
    members: Sequence[_Member],
    device: Device,
    records: Any,
    seconds: float | None,
    trials: int | None,
    progress: Progress,
    boards: Boards | None,
) -> dict[str, Any]:
    from tvmstack.lower.pipeline import PIPELINE
    from tvmstack.tuning import tune

    kernels = [k for m in members for k in m.kernels]
    known = {k.workload for k in kernels}
    members = [replace(m, others=tuple(k for k in m.others if k.workload not in known)) for m in members]
    _log.info(
        "a fleet of %d models (%s): %d kernels, %d different",
        len(members),
        ", ".join(m.name for m in members),
        len(kernels),
        len(known),
    )
    report = tune(
        kernels,
        device,
        PIPELINE.digest,
        records,
        seconds=seconds,
        trials=trials,
        progress=progress,
        alternatives=[k for m in members for k in m.others],
        boards=boards,
        users=_users(members),
    )
    data: dict[str, Any] = {**report.to_json(), "boards": board_states(boards)}
    _log.info("tuned: %d trials in %.0f s", data["trials"], data["seconds"])
    return data


def _users(members: Sequence[_Member]) -> dict[str, dict[str, int]]:
    """Return by workload how often an inference of each model runs it."""
    users: dict[str, dict[str, int]] = {}
    for member in members:
        for kernel in (*member.kernels, *member.others):
            calls = users.setdefault(kernel.workload, {})
            calls[member.name] = calls.get(member.name, 0) + kernel.calls
    return users


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file, of letters that fit everywhere, no two the same."""
    names: list[str] = []
    for path in paths:
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", path.stem) or "model"
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}_{number}", number + 1
        names.append(name)
    return names


def _wishes(paths: Sequence[Path], wish: _Wish) -> dict[Path, _Wish]:
    """Give each model the part of the wish that it has inputs and nodes for.

    Raises:
        UsageError: no model has such an input or node.
    """
    if not (wish.shapes or wish.freeze or wish.onnxruntime_nodes):
        return dict.fromkeys(paths, wish)
    known = {path: _inputs_and_nodes(path) for path in paths}
    inputs = {name for names, _ in known.values() for name in names}
    nodes = {name for _, names in known.values() for name in names}
    for name in (*wish.shapes, *wish.freeze):
        if name not in inputs:
            raise UsageError(f"no model has an input {name}; {nearest(name, inputs)}")
    for name in wish.onnxruntime_nodes:
        if name not in nodes:
            raise UsageError(f"no model has a node {name}; {nearest(name, nodes)}")
    return {
        path: _Wish(
            {k: v for k, v in wish.shapes.items() if k in has},
            {k: v for k, v in wish.freeze.items() if k in has},
            tuple(n for n in wish.onnxruntime_nodes if n in these),
        )
        for path, (has, these) in known.items()
    }


def _inputs_and_nodes(path: Path) -> tuple[set[str], set[str]]:
    """Return the names of a file's inputs and nodes; none where it cannot be read, which importing it will tell."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (OSError, DecodeError) as err:
        _log.debug("%s cannot be read: %s", path, err)
        return set(), set()
    return {value.name for value in graph.input}, {node.name for node in graph.node}
