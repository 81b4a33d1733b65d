"""Tuning: a budget spent on the kernels that repay it, by search over their templates' decisions. Knows no model."""

from tvmstack.tuning.proof import Outcome, replay
from tvmstack.tuning.report import Progress, TaskReport, TuningReport
from tvmstack.tuning.tune import tune

__all__ = ["Outcome", "Progress", "TaskReport", "TuningReport", "replay", "tune"]
