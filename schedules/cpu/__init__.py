"""CPU templates, by the name of the anchor block they serve."""

from __future__ import annotations

import functools
from typing import Any

from tvmstack.schedules.cpu.blocks import Template, anchor_of, is_schedulable, open_schedule
from tvmstack.schedules.cpu.conv2d import Conv2d, Depthwise
from tvmstack.schedules.cpu.general import AsWritten, Concat, Generic, Injective, Pool, Replay
from tvmstack.schedules.cpu.matmul import BatchMatmul, Dense
from tvmstack.schedules.cpu.rows import Attention, RowNorm, StridedSoftmax
from tvmstack.schedules.cpu.winograd import Winograd

__all__ = ["TEMPLATES", "template_for"]

_ANCHORED: tuple[Template, ...] = (
    Conv2d(),
    Depthwise(),
    Winograd(),
    Dense(),
    BatchMatmul(),
    Attention(),
    StridedSoftmax(),
    RowNorm("softmax_out"),
    RowNorm("norm_out"),
    Pool(),
    Concat(),
)
TEMPLATES: dict[str, Template] = {t.name: t for t in (*_ANCHORED, Injective(), Generic(), AsWritten(), Replay())}


@functools.lru_cache(maxsize=2048)
def template_for(func: Any) -> Template:
    """Return the template that serves a `PrimFunc`; remembered, since every question about a kernel begins with it."""
    if not is_schedulable(func):
        return TEMPLATES["as_written"]
    work = open_schedule(func)
    name = anchor_of(work.names, [t.name for t in _ANCHORED])
    if name is not None:
        return TEMPLATES[name]
    injective = all(
        int(v.iter_type) == 0 for block in work.blocks for v in work.sch.get(block).iter_vars
    ) and _is_chain(work)
    return TEMPLATES["injective" if injective else "generic"]


def _is_chain(work: Any) -> bool:
    """Whether every block but the last can be inlined: no nested blocks, no output written early."""
    sch = work.sch
    if not work.blocks:
        return False
    return all(len(sch.get_consumers(b)) > 0 for b in work.blocks[:-1]) and all(
        len(sch.get_loops(b)) == len(sch.get(b).iter_vars) for b in work.blocks
    )
