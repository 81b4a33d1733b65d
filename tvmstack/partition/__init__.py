"""Which nodes TVM takes and which run in onnxruntime: the `Plan`. This room knows nothing of how kernels are made."""

from tvmstack.partition.plan import Plan, Region, make_plan
from tvmstack.partition.verdicts import judge

__all__ = ["Plan", "Region", "judge", "make_plan"]
