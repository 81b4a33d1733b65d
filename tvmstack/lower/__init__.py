"""ONNX to scheduled TIR to a shared library. Knows nothing of tuning or of the store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmstack.core.device import Device
    from tvmstack.core.model import Model
    from tvmstack.lower.algorithms import Picker
    from tvmstack.lower.pipeline import Lowered

__all__ = ["lower"]


def lower(model: Model, device: Device, pick: Picker | None = None) -> Lowered:
    """Lower a planned model (static shapes, regions as `Region` nodes) to unscheduled kernels for `device`.

    `pick` decides the algorithm of each convolution that several can compute; None goes by estimate.

    Raises:
        ModelError: a node cannot be lowered; the message names it.
    """
    from tvmstack.lower.algorithms import estimate_algorithm
    from tvmstack.lower.importer import import_graph
    from tvmstack.lower.origins import with_silent_nodes
    from tvmstack.lower.pipeline import lower_module

    lowered = lower_module(import_graph(model), device, pick or estimate_algorithm)
    return replace(lowered, kernels=with_silent_nodes(model.graph.graph, lowered.kernels))
