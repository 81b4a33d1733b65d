"""Back ends by name. Nothing is imported before a back end is asked for; a stranger's package adds one.

In its pyproject.toml:

    [project.entry-points."tvmstack.backends"]
    toy_npu = "toy_npu.backend:ToyNpu"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmstack.backends.base import Backend, Target
from tvmstack.backends.worker import hosted
from tvmstack.core.errors import SetupError, TvmstackError, UsageError, nearest
from tvmstack.core.plugins import Plugin, Plugins

__all__ = [
    "GROUP",
    "Chosen",
    "all_backends",
    "available",
    "backend_facts",
    "backend_named",
    "backend_names",
    "choose",
    "open_backend",
    "owner_of",
    "target_named",
]

GROUP = "tvmstack.backends"
_PLUGINS = Plugins(
    "back end",
    GROUP,
    {
        "onnxruntime": "tvmstack.backends.onnxruntime:OnnxRuntime",
        "openvino": "tvmstack.backends.openvino:OpenVino",
        "qnn": "tvmstack.backends.qnn:QnnBackend",
        "tensorrt": "tvmstack.backends.tensorrt:TensorRt",
    },
)


@dataclass(frozen=True)
class Chosen:
    """What "NAME[:TARGET]" means."""

    backend: Backend
    target: Target


def backend_names() -> tuple[str, ...]:
    """Return the names of all back ends, ours first; nothing is imported."""
    return _PLUGINS.names()


def owner_of(name: str) -> Plugin:
    """Return which package brings a back end.

    Raises:
        UsageError, SetupError: there is none of that name, or two packages claim it.
    """
    return _PLUGINS.find(name)


def backend_named(name: str) -> Backend:
    """Return a back end as it is; `worker.hosted` keeps its vendor's code out of this process.

    Raises:
        UsageError: there is none of that name.
        SetupError: it cannot be loaded, or is no back end.
    """
    return _made(name, _PLUGINS.load(name))


def all_backends() -> dict[str, Backend]:
    """Return every back end that loads; one that does not is one warning and left out."""
    made = {}
    for name, maker in _PLUGINS.load_all().items():
        try:
            made[name] = _made(name, maker)
        except TvmstackError as err:
            _PLUGINS.warn(str(err))
    return made


def _made(name: str, maker: object) -> Backend:
    plugin = _PLUGINS.find(name)
    where = f"back end {name!r} of package {plugin.owner} ({plugin.place})"
    if not callable(maker):
        raise SetupError(f"{where} is no class")
    try:
        backend = maker()
    except Exception as err:  # the border to a stranger's class, which may raise anything
        words = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise SetupError(f"{where} cannot be made: {words}") from err
    if not isinstance(backend, Backend):
        lacks = [a for a in ("name", "in_process", *_METHODS) if not hasattr(backend, a)]
        raise SetupError(f"{where} lacks {', '.join(lacks)}: see tvmstack.backends.base.Backend")
    if backend.name != name:
        raise SetupError(f"{where} calls itself {backend.name!r}: both names must be the same")
    return backend


_METHODS = ("probe", "targets", "query", "estimate", "compile")


def choose(text: str) -> Chosen:
    """Return the back end and the target that "NAME" or "NAME:TARGET" names; a target may hold colons itself.

    Raises:
        UsageError: there is no such back end, or it has no such target.
        SetupError: the back end cannot be loaded.
    """
    name, colon, target = text.strip().partition(":")
    if not name or (colon and not target):
        raise UsageError(f"{text!r} names no back end: write NAME or NAME:TARGET; known: {', '.join(backend_names())}")
    backend = backend_named(name)
    return Chosen(backend, target_named(backend, target))


def target_named(backend: Backend, name: str = "") -> Target:
    """Return a back end's target; the first where no name is given.

    Raises:
        UsageError: it has no such target. Vendors' compilers take wrong names without a word, so nobody else checks.
        SetupError: it has no target at all.
    """
    targets: Sequence[Target] = backend.targets()
    if not targets:
        raise SetupError(f"back end {backend.name} has no target")
    if not name:
        return targets[0]
    for target in targets:
        if target.name == name:
            return target
    hint = nearest(name, [t.name for t in targets])
    raise UsageError(f"back end {backend.name} has no target {name!r}; {hint}")


def open_backend(text: str) -> tuple[Backend, Target]:
    """Return the back end and target that "NAME[:TARGET]" means, ready to compile; its vendor's code stays outside.

    Raises:
        UsageError: there is no such back end or target.
        SetupError: it cannot compile here; the message says what is missing and how to get it.
    """
    chosen = choose(text)
    ability = chosen.backend.probe()
    if not ability.can_compile:
        missing = ability.missing or "it cannot compile on this machine"
        raise SetupError(f"back end {chosen.backend.name}: {missing}" + (f": {ability.hint}" if ability.hint else ""))
    return hosted(chosen.backend), chosen.target


def available() -> list[str]:
    """Return "NAME:TARGET" of everything that compiles here and runs on this machine, the floor first."""
    found = []
    for name, backend in all_backends().items():
        try:
            if backend.probe().can_compile:
                found += [f"{name}:{target.name}" for target in backend.targets() if target.runs_here]
        except Exception as err:  # noqa: BLE001  (a stranger's probe may raise anything; it breaks nothing else)
            _PLUGINS.warn(f"back end {name} cannot say what it can do: {err}")
    return found


def backend_facts() -> list[dict[str, Any]]:
    """Return for each back end what is installed, what is missing, its targets and licence, as plain data."""
    rows = []
    for name, backend in all_backends().items():
        try:
            rows.append(_facts(name, backend))
        except Exception as err:  # noqa: BLE001  (a stranger's probe may raise anything; it breaks nothing else)
            _PLUGINS.warn(f"back end {name} cannot say what it can do: {err}")
    return rows


def _facts(name: str, backend: Backend) -> dict[str, Any]:
    ability = backend.probe()
    return {
        "name": name,
        "package": owner_of(name).owner,
        "version": ability.version,
        "can_compile": ability.can_compile,
        "can_run": ability.can_run,
        "can_simulate": ability.can_simulate,
        "missing": ability.missing,
        "hint": ability.hint if ability.missing else "",
        "licence": ability.licence,
        "targets": [{"name": t.name, "kind": t.kind, "runs_here": t.runs_here} for t in backend.targets()],
    }
