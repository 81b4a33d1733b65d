"""Which nodes TVM takes and which run elsewhere: the `Plan`. This room knows nothing of how kernels are made."""

from tvmstack.partition.choose import TVM, Border, Costs, Segment, cheapest, settle
from tvmstack.partition.chunks import Chunk, chunks_of, in_running_order, positions
from tvmstack.partition.grouping import whole_regions
from tvmstack.partition.plan import FLOOR, Handed, Plan, make_plan
from tvmstack.partition.region import cut
from tvmstack.partition.verdicts import judge

__all__ = [
    "FLOOR",
    "TVM",
    "Border",
    "Chunk",
    "Costs",
    "Handed",
    "Plan",
    "Segment",
    "cheapest",
    "chunks_of",
    "cut",
    "in_running_order",
    "judge",
    "make_plan",
    "positions",
    "settle",
    "whole_regions",
]
