"""Nodes that a back end refuses, written out in simpler ones where it takes all of these and the numbers stay."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvmstack.core.errors import ModelError
from tvmstack.driver.takers import Taker

if TYPE_CHECKING:
    from tvmstack.core.model import Model

__all__ = ["written_out"]

_log = logging.getLogger("tvmstack.driver")

# Other order of the same float32 sums, as a share of the largest value.
_TOLERANCE = 1e-4


def written_out(model: Model, taker: Taker, feeds: Mapping[str, np.ndarray]) -> Model:
    """Return the model with those operators written out that let the back end take more nodes.

    Args:
        model: repaired.
        taker: the back end.
        feeds: inputs on which the outputs before and after are compared.
    """
    from tvmstack.graph.decompose import decompose, has_simpler_form
    from tvmstack.graph.values import opset_of

    refused = _refused(model, taker)
    opset = opset_of(model.graph)
    kinds = {n.op_type for n in model.graph.graph if n.name in refused and has_simpler_form(n, opset)}
    helping = [kind for kind in sorted(kinds) if _helps(model, kind, taker, refused)]
    if not helping:
        return model
    simple = decompose(model, helping)
    if not _same(model, simple, feeds):
        _log.warning("%s: written out, %s give other numbers, and stay as they are", taker.owner, ", ".join(helping))
        return model
    _log.info("written out for %s: %s", taker.owner, ", ".join(helping))
    return simple


def _refused(model: Model, taker: Taker) -> set[str]:
    import onnx_ir

    answers = taker.verdicts(onnx_ir.to_proto(model.graph).SerializeToString())
    return {name for name, verdict in answers.items() if verdict.support.value != "supported"}


def _helps(model: Model, kind: str, taker: Taker, refused: Collection[str]) -> bool:
    """Whether nothing new is refused once the operator is written out."""
    from tvmstack.graph.decompose import decompose

    try:
        return _refused(decompose(model, [kind]), taker) < set(refused)
    except (ModelError, ValueError) as err:
        _log.info("%s cannot be written out: %s", kind, err)
        return False


def _same(before: Model, after: Model, feeds: Mapping[str, np.ndarray]) -> bool:
    import onnx_ir

    from tvmstack.measure.oracle import Oracle

    expected = Oracle(onnx_ir.to_proto(before.graph)).run(feeds)
    got = Oracle(onnx_ir.to_proto(after.graph)).run(feeds)
    return all(_close(got[name], value) for name, value in expected.items())


def _close(got: np.ndarray, expected: np.ndarray) -> bool:
    if got.dtype.kind not in "f":
        return np.array_equal(got, expected)
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)) or 1.0
    return bool(np.allclose(got, expected, rtol=0, atol=_TOLERANCE * scale, equal_nan=True))
