"""A BatchNormalization behind a Conv, ConvTranspose or Gemm goes into its weights.

    BatchNormalization(Conv(x, W, b), s, B, m, v)   becomes   Conv(x, W * k, (b - m) * k + B)
    with k = s / sqrt(v + epsilon)

Requires constant weights and statistics, and no other use of the convolution's result.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from tvmstack.graph.values import add_initializer, attribute, constant, present, replace_value

__all__ = ["name", "run", "scaled_weight"]

name = "fold-batch-norm"
_LISTED = 3


def run(model: onnx_ir.Model) -> list[str]:
    """Fold; return a line for each, or a count where there are many."""
    done = []
    for node in list(model.graph):
        if node.op_type == "BatchNormalization" and node.domain == "":
            owner = _fold(model.graph, node)
            if owner is not None:
                done.append(f"BatchNormalization {node.name} into {owner.op_type} {owner.name}")
    if len(done) <= _LISTED:
        return [f"folded {line}" for line in done]
    return [f"folded {len(done)} BatchNormalization nodes into the convolutions before them"]


def _fold(graph: onnx_ir.Graph, norm: onnx_ir.Node) -> onnx_ir.Node | None:
    value = norm.inputs[0]
    owner = None if value is None else value.producer()
    if owner is None or owner.graph is not graph or owner.op_type not in _CHANNELS or owner.domain != "":
        return None
    assert value is not None
    if len(value.uses()) != 1 or value.is_graph_output() or any(v.uses() for v in norm.outputs[1:]):
        return None
    if attribute(norm, "training_mode", 0) or not attribute(norm, "spatial", 1) or not _is_plain(owner):
        return None
    scaled = _scaled(owner, norm)
    if scaled is None:
        return None
    weight, bias = scaled
    if not replace_value(norm.outputs[0], value):
        return None
    base = owner.inputs[1]
    owner.replace_input_with(1, add_initializer(graph, f"{base.name if base else owner.name}_folded", weight))
    if len(owner.inputs) < 3:
        owner.resize_inputs(3)
    owner.replace_input_with(2, add_initializer(graph, f"{owner.name}_bias_folded", bias))
    graph.remove(norm, safe=True)
    return owner


def _is_plain(owner: onnx_ir.Node) -> bool:
    return owner.op_type != "Gemm" or (attribute(owner, "alpha", 1.0) == 1 and attribute(owner, "beta", 1.0) == 1)


def _scaled(owner: onnx_ir.Node, norm: onnx_ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    weight = constant(owner.inputs[1])
    given = present(owner, 2)
    bias = constant(given)
    statistics = [constant(present(norm, i)) for i in range(1, 5)]
    if (
        weight is None
        or weight.dtype.kind != "f"
        or (given is not None and bias is None)
        or any(s is None for s in statistics)
    ):
        return None
    scale, shift, mean, variance = (np.asarray(s, np.float64) for s in statistics)
    epsilon = attribute(norm, "epsilon", 1e-5)
    assert isinstance(epsilon, float)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
    start = np.zeros_like(mean) if bias is None else np.asarray(bias, np.float64)
    if start.ndim > 1 or start.size not in (1, mean.size):
        return None
    moved = (start - mean) * factor + shift
    layout = scaled_weight(owner, weight, factor)
    if not np.isfinite(moved).all() or not np.isfinite(factor).all():
        return None
    return layout.astype(weight.dtype), moved.astype(weight.dtype)


def scaled_weight(owner: onnx_ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the weight of a Conv, ConvTranspose or Gemm with each output channel times its factor, in float64."""
    return _CHANNELS[owner.op_type](owner, np.asarray(weight, np.float64), np.asarray(factor, np.float64))


def _conv(owner: onnx_ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return weight * factor.reshape([-1] + [1] * (weight.ndim - 1))


def _transposed(owner: onnx_ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    group = attribute(owner, "group", 1)
    assert isinstance(group, int)
    parts = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
    return np.asarray(parts * factor.reshape(group, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


def _gemm(owner: onnx_ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return weight * (factor[:, None] if attribute(owner, "transB", 0) else factor[None, :])


_CHANNELS = {"Conv": _conv, "ConvTranspose": _transposed, "Gemm": _gemm}
