"""The algorithm of each convolution: what the store says of it, and the kernels of those not built now, for tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmstack.core.kernel import Kernel, site_kernel

if TYPE_CHECKING:
    from tvmstack.core.device import Device
    from tvmstack.driver.steps import Prepared
    from tvmstack.lower.algorithms import Picker, Site

__all__ = ["alternatives", "recorded", "settled"]

# An algorithm that is estimated to take this many times as long as the best is not tried.
_HOPELESS = 2.0


def recorded(records: Any, device: Device, winograd: bool) -> Picker:
    """Return what picks an algorithm: the fastest on record, else the estimate; only direct ones without `winograd`."""
    from tvmstack.lower.algorithms import ALGORITHMS, estimate_algorithm, only_direct
    from tvmstack.lower.pipeline import PIPELINE
    from tvmstack.store import KeyContext

    if not winograd or device.sm:
        return only_direct
    context = KeyContext.current(device, PIPELINE.digest)

    def pick(site: Site) -> str:
        record = records.best(site_kernel(site.text), context)
        name = str(record.choice.decisions.get("name")) if record else ""
        return name if name in ALGORITHMS else estimate_algorithm(site)

    return pick


def alternatives(prepared: Prepared) -> tuple[Kernel, ...]:
    """Return the kernels of the algorithms not chosen, those that cannot win left out."""
    from tvmstack.lower import lower
    from tvmstack.lower.algorithms import ALGORITHMS, only_direct

    if prepared.pick is only_direct:
        return ()
    chosen = {k.site: k.algorithm for k in prepared.lowered.kernels if k.site}
    known = {k.workload for k in prepared.lowered.kernels}
    found: dict[str, Kernel] = {}
    for step in range(1, len(ALGORITHMS) if chosen else 1):

        def other(site: Site, step: int = step) -> str:
            now = chosen.get(site.text, ALGORITHMS[0])
            return ALGORITHMS[(ALGORITHMS.index(now) + step) % len(ALGORITHMS)]

        def worth(site: Site, other: Picker = other) -> str:
            name = other(site)
            best = min(site.seconds(a) for a in ALGORITHMS)
            return name if site.seconds(name) < _HOPELESS * best else chosen.get(site.text, name)

        for kernel in lower(prepared.plan.model, prepared.device, worth).kernels:
            if kernel.site and kernel.workload not in known:
                found.setdefault(kernel.workload, kernel)
    return tuple(found.values())


def settled(prepared: Prepared) -> Prepared:
    """Return the model lowered anew where the store now prefers other algorithms."""
    from tvmstack.lower import lower
    from tvmstack.lower.algorithms import Site

    kernels: Sequence[Kernel] = prepared.lowered.kernels
    if all(prepared.pick(Site.parse(k.site)) == k.algorithm for k in kernels if k.site):
        return prepared
    return replace(prepared, lowered=lower(prepared.plan.model, prepared.device, prepared.pick))
