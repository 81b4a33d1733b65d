"""A Pad with zeros goes into the convolution or average pooling behind it, where that is exact.

    Pad(x, [0,0,1,1,0,0,1,1]) -> Conv(pads=[0,0,0,0])   becomes   Conv(x, pads=[1,1,1,1])

A MaxPool takes only a Pad with -infinity.
"""

from __future__ import annotations

import math

import onnx_ir

from tvmstack.graph.values import attribute, constant, opset_of, present, scalar, static_shape

__all__ = ["name", "run"]

name = "fold-pad"
_FLOATS = (onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16, onnx_ir.DataType.DOUBLE)


def run(model: onnx_ir.Model) -> list[str]:
    """Fold; return how many."""
    count = 0
    for node in list(model.graph):
        if node.op_type == "Pad" and node.domain == "" and opset_of(model) >= 11:
            count += _fold(model.graph, node)
    return (
        [f"folded {count} Pad node{'s' if count > 1 else ''} into the convolution or pooling behind"] if count else []
    )


def _fold(graph: onnx_ir.Graph, pad: onnx_ir.Node) -> bool:
    value = pad.outputs[0]
    users = value.consumers()
    source = pad.inputs[0]
    pads = _spatial_pads(pad)
    if len(users) != 1 or value.is_graph_output() or pads is None or source is None or source.dtype not in _FLOATS:
        return False
    user = users[0]
    if (
        user.graph is not graph
        or user.domain != ""
        or user.inputs[0] is not value
        or not _takes(user, _fill(pad), len(pads))
    ):
        return False
    own = attribute(user, "pads", [0] * len(pads))
    assert isinstance(own, (list, tuple))
    user.attributes["pads"] = onnx_ir.AttrInt64s("pads", [a + b for a, b in zip(pads, own, strict=True)])
    if user.op_type == "AveragePool":
        user.attributes["count_include_pad"] = onnx_ir.AttrInt64("count_include_pad", 1)
    user.replace_input_with(0, source)
    graph.remove(pad, safe=True)
    return True


def _takes(user: onnx_ir.Node, fill: float | None, count: int) -> bool:
    """Whether the pads of the node behind mean the same as that Pad."""
    own = attribute(user, "pads", [0] * count)
    if attribute(user, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or not isinstance(own, (list, tuple)):
        return False
    if user.op_type == "Conv":
        return fill == 0
    plain = not attribute(user, "ceil_mode", 0)
    if user.op_type == "AveragePool":
        return fill == 0 and plain and not any(own)
    return user.op_type == "MaxPool" and fill == -math.inf and plain and not any(v.uses() for v in user.outputs[1:])


def _fill(pad: onnx_ir.Node) -> float | None:
    value = present(pad, 2)
    return 0.0 if value is None else scalar(value)


def _spatial_pads(pad: onnx_ir.Node) -> list[int] | None:
    """Return begins then ends of the spatial axes; None where the Pad does anything else."""
    shape, pads = static_shape(pad.inputs[0]), constant(present(pad, 1))
    if attribute(pad, "mode", "constant") != "constant" or shape is None or pads is None or len(shape) < 3:
        return None
    rank = len(shape)
    axes_input = present(pad, 3)
    axes = constant(axes_input)
    if axes_input is not None and axes is None:
        return None
    order = [int(a) % rank for a in axes] if axes is not None else list(range(rank))
    begins, ends = [0] * rank, [0] * rank
    for position, axis in enumerate(order):
        begins[axis], ends[axis] = int(pads[position]), int(pads[position + len(order)])
    if any(begins[:2]) or any(ends[:2]) or min(begins + ends) < 0:
        return None
    return begins[2:] + ends[2:]
