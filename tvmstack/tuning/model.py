"""The cost model: gradient-boosted trees over shapes and decisions, one for each template and shared by its kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tvmstack.core.kernel import Choice

__all__ = ["DECISIONS", "CostModel"]

DECISIONS = ("oh", "ow", "oc", "m", "n", "k", "rows", "order", "pad")
"""The names of decisions that the model knows, over all templates."""

_ENOUGH = 12
# A kernel's own measurements count for this many of other kernels'.
_OWN_WEIGHT = 4.0
# Retrained when the measurements have grown by this share.
_GROWTH = 0.1
_TREES: dict[str, Any] = {"max_depth": 5, "eta": 0.2, "nthread": 1, "verbosity": 0, "subsample": 0.9, "seed": 0}
_ROUNDS = 60
_BUFFER = re.compile(r"T\.(?:Buffer|sblock_alloc_buffer)\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_DIM = re.compile(r"\d+")
_BUFFERS, _DIMS = 3, 6


class CostModel:
    """Predicts the time of a choice relative to the other choices of its kernel.

    What is learnt is the logarithm of a choice's time over the best time of its kernel, so that measurements of other
    shapes, and of other devices' shipped records, say which decisions are good ones before a kernel's first trial.
    The method is AutoTVM's (Chen et al., "Learning to Optimize Tensor Programs", 2018).
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[str, np.ndarray, float]]] = {}
        self._models: dict[tuple[str, str], tuple[int, Any]] = {}
        self._shapes: dict[str, np.ndarray] = {}

    def learn(self, template: str, workload: str, times: Iterable[tuple[Choice, float]]) -> None:
        """Take in the seconds of choices of one kernel; those that failed are left out."""
        rows = self._rows.setdefault(template, [])
        for choice, seconds in times:
            if choice.template == template and choice.decisions.keys() <= set(DECISIONS) and math.isfinite(seconds):
                rows.append((workload, self._features(workload, choice), seconds))

    def rank(self, template: str, workload: str, choices: Sequence[Choice]) -> list[Choice]:
        """Return the choices, the most promising first; none where too little is known."""
        rows = self._rows.get(template, [])
        if len(rows) < _ENOUGH or not choices:
            return []
        import xgboost

        model = self._model(template, workload)
        wide = np.stack([self._features(workload, c) for c in choices])
        scores = model.predict(xgboost.DMatrix(wide))
        return [choices[i] for i in np.argsort(scores, kind="stable")]

    def _model(self, template: str, workload: str) -> Any:
        import xgboost

        rows = self._rows[template]
        trained, model = self._models.get((template, workload), (0, None))
        if model is not None and len(rows) < trained * (1 + _GROWTH) + 1:
            return model
        best: dict[str, float] = {}
        for name, _, seconds in rows:
            best[name] = min(seconds, best.get(name, math.inf))
        data = xgboost.DMatrix(
            np.stack([features for _, features, _ in rows]),
            label=np.array([math.log(seconds / best[name]) for name, _, seconds in rows]),
            weight=np.array([_OWN_WEIGHT if name == workload else 1.0 for name, _, _ in rows]),
        )
        model = xgboost.train(_TREES, data, num_boost_round=_ROUNDS)
        self._models[template, workload] = (len(rows), model)
        return model

    def _features(self, workload: str, choice: Choice) -> np.ndarray:
        """Return the shapes of the first buffers and of the result, the decisions, and the tile's size and shape."""
        if workload not in self._shapes:
            self._shapes[workload] = _shape_features(workload)
        values = np.array([float(choice.decisions.get(n, 0)) for n in DECISIONS], np.float32)
        rows = math.prod(int(choice.decisions[n]) for n in ("oh", "ow", "m") if n in choice.decisions)
        panels = math.prod(int(choice.decisions[n]) for n in ("oc", "n") if n in choice.decisions)
        derived = np.array([rows, panels, rows * panels, rows * panels + panels, rows / panels], np.float32)
        return np.concatenate([self._shapes[workload], values, derived])


def _shape_features(workload: str) -> np.ndarray:
    header, _, _ = workload.partition("):\n")
    shapes = [[int(d) for d in _DIM.findall(s.replace("int64", ""))] for s in _BUFFER.findall(header)]
    picked = [*shapes[:_BUFFERS], *shapes[-1:]]
    out = np.zeros((_BUFFERS + 1) * _DIMS, np.float32)
    for i, shape in enumerate(picked):
        for j, dim in enumerate(shape[:_DIMS]):
            out[i * _DIMS + j] = math.log2(dim + 1)
    return out
