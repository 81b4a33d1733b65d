"""Which nodes TVM takes and which run in onnxruntime: the `Plan`. This room knows nothing of how kernels are made."""

from tvmstack.partition.plan import Plan, make_plan
from tvmstack.partition.verdicts import judge

__all__ = ["Plan", "judge", "make_plan"]
