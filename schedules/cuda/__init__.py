"""GPU templates, by the structure of the kernels they serve, and the way down to what takes any kernel."""

from __future__ import annotations

import functools
import math
from typing import Any

from tvmstack.schedules.cpu.blocks import Template, Work, extent, is_schedulable, open_schedule
from tvmstack.schedules.cuda.blocks import is_reduction, split_loops
from tvmstack.schedules.cuda.gemm import Gemm
from tvmstack.schedules.cuda.general import Dlight, Elementwise, Outputs, Plain, Serial
from tvmstack.schedules.cuda.rows import Rows, row_axes

__all__ = ["ANY", "TEMPLATES", "template_for"]

TEMPLATES: dict[str, Template] = {
    t.name: t for t in (Gemm(), Rows(), Outputs(), Elementwise(), Dlight(), Plain(), Serial())
}
# From the best to what always works: the steps after a kernel's own template.
ANY = ("dlight", "plain", "serial")
# Sums of fewer numbers than this are done by one thread.
_SHARED_SUM = 48


@functools.lru_cache(maxsize=2048)
def template_for(func: Any) -> Template:
    """Return the template that serves a `PrimFunc`."""
    if not is_schedulable(func):
        return TEMPLATES["serial"]
    work = open_schedule(func)
    if not work.blocks or not _is_flat(work):
        return TEMPLATES["dlight"]
    if "gemm" in work.names:
        return TEMPLATES["gemm"]
    sums = [b for b in work.blocks if is_reduction(work, b)]
    if not sums:
        return TEMPLATES["elementwise"]
    steps = max(math.prod(extent(work.sch, x) for x in split_loops(work, b)[1]) for b in sums)
    is_shared = (steps >= _SHARED_SUM or len(sums) > 1) and row_axes(work) is not None
    return TEMPLATES["rows" if is_shared else "outputs"]


def _is_flat(work: Work) -> bool:
    """Whether each block stands in loops of its own and every block but the last is read by another."""
    sch = work.sch
    return all(len(sch.get_consumers(b)) > 0 for b in work.blocks[:-1]) and all(
        len(sch.get_loops(b)) == len(sch.get(b).iter_vars) for b in work.blocks
    )
