"""A region: a piece of the graph as an ONNX model of its own, which another back end runs inside the artifact."""

from __future__ import annotations

from dataclasses import dataclass

from tvmstack.core.model import TensorSpec

__all__ = ["Region"]


@dataclass(frozen=True)
class Region:
    """What a back end runs in one call.

    Attributes:
        digest: the first 16 hex digits of the model's sha256; its name in the program.
        model: a whole ONNX model, weights inside; inputs and outputs are named as in the graph.
        inputs: what it is fed.
        outputs: what it gives.
        nodes: names of the graph's nodes it holds.
        reasons: why these are not TVM's, each reason once.
    """

    digest: str
    model: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[str, ...]
    reasons: tuple[str, ...]
