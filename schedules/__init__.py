"""Templates: schedule functions; their default decisions give the untuned build, their decisions are the tuning space.

A template serves the kernels whose anchor block carries its name. Kernels without an anchor get `injective` or
`reduction`; only
what those cannot take is left to MetaSchedule's own sketches.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from typing import Any

from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.schedules import cpu, cuda
from tvmstack.schedules.cpu.blocks import Template, open_schedule

__all__ = ["VERSION", "apply", "candidates", "default_choice", "ladder", "space", "template_name"]

log = logging.getLogger(__name__)

# Templates of the CPU that serve any kernel.
_ANY = ("generic", "as_written", "meta_schedule")

VERSION = "2"
"""Raised when a template changes what a decision means; part of every record's key."""


def template_name(func: Any, device: Device | None = None) -> str:
    """Return the name of the template that serves a `PrimFunc`, on the CPU unless a device says otherwise."""
    return _template_for(func, device).name


def _template_for(func: Any, device: Device | None) -> Template:
    return cuda.template_for(func) if device is not None and device.sm else cpu.template_for(func)


def _templates(device: Device) -> dict[str, Template]:
    return cuda.TEMPLATES if device.sm else cpu.TEMPLATES


def ladder(func: Any, device: Device) -> tuple[str, ...]:
    """Return the templates that an untuned build tries, the kernel's own first, the one that takes anything last."""
    own = _template_for(func, device).name
    return tuple(dict.fromkeys((own, *(cuda.ANY if device.sm else _ANY[:2]))))


def space(func: Any, device: Device) -> dict[str, list[int]]:
    """Return the decisions of a kernel and their candidates; empty where there is nothing to tune."""
    return _template_for(func, device).space(open_schedule(func), device)


def candidates(func: Any, device: Device, limit: int = 20000) -> list[dict[str, int]]:
    """Return the decisions worth building: the whole space but for what cannot stay in the registers or fit the GPU."""
    work, template = open_schedule(func), _template_for(func, device)
    table = template.space(work, device)
    if not table:
        return []
    every = (dict(zip(table, values, strict=True)) for values in itertools.product(*table.values()))
    fits = getattr(template, "fits", _fits)
    return list(itertools.islice((d for d in every if fits(d, device)), limit))


def _fits(decisions: dict[str, int], device: Device) -> bool:
    tile = [v for k, v in decisions.items() if k in ("oh", "ow", "oc", "m", "n")]
    return 1 < math.prod(tile) <= device.vector_registers


@functools.lru_cache(maxsize=2048)
def default_choice(func: Any, device: Device) -> Choice:
    """Return the choice an untuned build uses: the template's, else a generic one, else the function as written."""
    for name in ladder(func, device):
        try:
            choice = Choice(name, _templates(device)[name].default(open_schedule(func), device))
            apply(func, choice, device)
        except TuningError as err:
            log.warning("%s: %s; trying the next", func.attrs["global_symbol"], err)
        else:
            return choice
    raise TuningError(f"kernel {func.attrs['global_symbol']} cannot be scheduled, not even as it is written")


def apply(func: Any, choice: Choice, device: Device) -> Any:
    """Return `func` scheduled by `choice`.

    Raises:
        TuningError: the choice names another template or a decision this kernel cannot take.
    """
    template = _named(choice, func, device)
    work = open_schedule(func)
    try:
        template.schedule(work, dict(choice.decisions), device)
    except (RuntimeError, ValueError, KeyError, IndexError) as err:
        reason = str(err).strip().splitlines()
        raise TuningError(
            f"schedule {choice.text} does not fit this kernel: {reason[-1] if reason else err!r}"
        ) from err
    made = work.finished if work.finished is not None else work.sch.mod["main"]
    return made.with_attr("global_symbol", str(func.attrs["global_symbol"]))


def _named(choice: Choice, func: Any, device: Device) -> Template:
    templates, any_kernel = _templates(device), cuda.ANY if device.sm else _ANY
    if choice.template in templates and choice.template in (*any_kernel, _template_for(func, device).name):
        return templates[choice.template]
    raise TuningError(
        f"schedule template {choice.template!r} does not serve this kernel ({template_name(func, device)})"
    )
