"""A constant sequence_lens that says "all of it" is dropped from RNN, GRU and LSTM."""

from __future__ import annotations

import onnx_ir

from tvmstack.graph.values import attribute, constant, present, static_shape

__all__ = ["name", "run"]

name = "drop-sequence-lens"


def run(model: onnx_ir.Model) -> list[str]:
    """Drop it where every length is the whole sequence; return how many nodes changed."""
    count = 0
    for node in model.graph.all_nodes():
        if node.op_type in ("RNN", "GRU", "LSTM") and node.domain in ("", "ai.onnx"):
            lengths, shape = constant(present(node, 4)), static_shape(node.inputs[0])
            if lengths is None or shape is None:
                continue
            steps = shape[1] if attribute(node, "layout", 0) else shape[0]
            if bool((lengths == steps).all()):
                node.replace_input_with(4, None)
                count += 1
    return [f"dropped {count} full-length sequence_lens"] if count else []
