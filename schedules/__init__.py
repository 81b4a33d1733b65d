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
from tvmstack.schedules.cpu import TEMPLATES, template_for
from tvmstack.schedules.cpu.blocks import Template, open_schedule

__all__ = ["VERSION", "apply", "candidates", "default_choice", "space", "template_name"]

log = logging.getLogger(__name__)

# Templates that serve any kernel.
_ANY = ("generic", "as_written", "meta_schedule")

VERSION = "2"
"""Raised when a template changes what a decision means; part of every record's key."""


def template_name(func: Any) -> str:
    """Return the name of the template that serves a `PrimFunc`."""
    return template_for(func).name


def space(func: Any, device: Device) -> dict[str, list[int]]:
    """Return the decisions of a kernel and their candidates; empty where there is nothing to tune."""
    return template_for(func).space(open_schedule(func), device)


def candidates(func: Any, device: Device, limit: int = 20000) -> list[dict[str, int]]:
    """Return the decisions worth building: the whole space but for tiles that cannot stay in the registers."""
    work, template = open_schedule(func), template_for(func)
    table = template.space(work, device)
    if not table:
        return []
    every = (dict(zip(table, values, strict=True)) for values in itertools.product(*table.values()))
    return list(itertools.islice((d for d in every if _fits(d, device)), limit))


def _fits(decisions: dict[str, int], device: Device) -> bool:
    tile = [v for k, v in decisions.items() if k in ("oh", "ow", "oc", "m", "n")]
    return 1 < math.prod(tile) <= device.vector_registers


@functools.lru_cache(maxsize=2048)
def default_choice(func: Any, device: Device) -> Choice:
    """Return the choice an untuned build uses: the template's, else a generic one, else the function as written."""
    template = template_for(func)
    for name in (template.name, "generic", "as_written"):
        choice = Choice(name, TEMPLATES[name].default(open_schedule(func), device))
        try:
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
    template = _named(choice, func)
    work = open_schedule(func)
    try:
        template.schedule(work, dict(choice.decisions), device)
    except (RuntimeError, ValueError, KeyError, IndexError) as err:
        reason = str(err).strip().splitlines()
        raise TuningError(
            f"schedule {choice.text} does not fit this kernel: {reason[-1] if reason else err!r}"
        ) from err
    return work.sch.mod["main"].with_attr("global_symbol", str(func.attrs["global_symbol"]))


def _named(choice: Choice, func: Any) -> Template:
    if choice.template in TEMPLATES and choice.template in (*_ANY, template_for(func).name):
        return TEMPLATES[choice.template]
    raise TuningError(f"schedule template {choice.template!r} does not serve this kernel ({template_name(func)})")
