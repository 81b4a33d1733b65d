"""A product or a sum with a constant for each channel, or one for all, goes into the convolution before it.

    Add(Mul(Conv(x, W, b), k), c)   becomes   Conv(x, W * k, b * k + c)

Requires constant weights and no other use of the convolution's result.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from tvmstack.graph.fold_batch_norm import scaled_weight
from tvmstack.graph.values import add_initializer, attribute, constant, present, replace_value

__all__ = ["name", "run"]

name = "fold-affine"


def run(model: onnx_ir.Model) -> list[str]:
    """Fold; return how many."""
    count = 0
    for node in list(model.graph):
        if node.op_type in ("Add", "Mul") and node.domain == "":
            count += any(_fold(model.graph, node, side) for side in (0, 1))
    return [f"folded {count} products and sums with constants into the convolutions before them"] if count else []


def _fold(graph: onnx_ir.Graph, node: onnx_ir.Node, side: int) -> bool:
    """Fold where input `side` is the convolution's result and the other one the constant."""
    value = node.inputs[side]
    owner = None if value is None else value.producer()
    if value is None or owner is None or owner.graph is not graph or owner.op_type not in ("Conv", "ConvTranspose"):
        return False
    if owner.domain != "" or len(value.uses()) != 1 or value.is_graph_output():
        return False
    changed = _changed(owner, node, node.inputs[1 - side])
    if changed is None or not replace_value(node.outputs[0], value):
        return False
    weight, bias = changed
    if weight is not None:
        owner.replace_input_with(1, add_initializer(graph, f"{owner.name}_weight_folded", weight))
    if len(owner.inputs) < 3:
        owner.resize_inputs(3)
    owner.replace_input_with(2, add_initializer(graph, f"{owner.name}_bias_folded", bias))
    graph.remove(node, safe=True)
    return True


def _changed(
    owner: onnx_ir.Node, node: onnx_ir.Node, operand: onnx_ir.Value | None
) -> tuple[np.ndarray | None, np.ndarray] | None:
    """Return the new weight (None where it stays) and bias; None where the constant does not fit the channels."""
    weight, given = constant(owner.inputs[1]), present(owner, 2)
    bias, number = constant(given), constant(operand)
    if weight is None or weight.dtype.kind != "f" or number is None or (given is not None and bias is None):
        return None
    group = attribute(owner, "group", 1)
    assert isinstance(group, int)
    channels = weight.shape[0] if owner.op_type == "Conv" else weight.shape[1] * group
    factor = _per_channel(number, channels, weight.ndim)
    if factor is None or not np.isfinite(factor).all():
        return None
    start = np.zeros(channels) if bias is None else np.asarray(bias, np.float64)
    if node.op_type == "Add":
        return None, (start + factor).astype(weight.dtype)
    return scaled_weight(owner, weight, factor).astype(weight.dtype), (start * factor).astype(weight.dtype)


def _per_channel(number: np.ndarray, channels: int, rank: int) -> np.ndarray | None:
    """Return one number for each channel, where the constant says no more than that."""
    if number.size == 1 and number.ndim <= rank:
        return np.full(channels, number.reshape(()), np.float64)
    fits = number.ndim <= rank and (1,) * (rank - number.ndim) + number.shape == (1, channels) + (1,) * (rank - 2)
    return number.reshape(-1).astype(np.float64) if fits else None
