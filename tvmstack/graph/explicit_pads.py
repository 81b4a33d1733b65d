"""auto_pad, output_shape and ceil_mode become explicit pads, computed from static shapes as the specification says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import onnx_ir

from tvmstack.graph.values import attribute, present, static_shape

__all__ = ["name", "run"]

name = "explicit-pads"
_WINDOWS = ("Conv", "MaxPool", "AveragePool", "LpPool", "ConvInteger", "QLinearConv")
_WEIGHT_INPUT = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}


def run(model: onnx_ir.Model) -> list[str]:
    """Rewrite the nodes whose shapes are known; return a count for each operator."""
    counts: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _WINDOWS and _auto_pad(node) != "NOTSET":
            counts[node.op_type] += _window(node)
        elif node.op_type in ("MaxPool", "AveragePool") and attribute(node, "ceil_mode", 0):
            counts[node.op_type] += _ceil(node)
        elif node.op_type == "ConvTranspose" and (_auto_pad(node) != "NOTSET" or "output_shape" in node.attributes):
            counts[node.op_type] += _transposed(node)
    return [
        f"made the pads of {count} {op} node{'s' if count > 1 else ''} explicit"
        for op, count in counts.items()
        if count
    ]


def _window(node: onnx_ir.Node) -> bool:
    sizes = _spatial(node.inputs[0])
    kernel = _kernel(node)
    if sizes is None or kernel is None:
        return False
    strides, dilations = _ints(node, "strides", len(kernel)), _ints(node, "dilations", len(kernel))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mode = _auto_pad(node)
    if mode == "VALID":
        totals = [0] * len(kernel)
    else:
        totals = [max((math.ceil(n / s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, strides, extents, strict=True)]
    wanted = [
        math.ceil((n if mode != "VALID" else n - e + 1) / s) for n, s, e in zip(sizes, strides, extents, strict=True)
    ]
    given = [(n + t - e) // s + 1 for n, t, e, s in zip(sizes, totals, extents, strides, strict=True)]
    known = _spatial(node.outputs[0])
    if wanted != given or (known is not None and list(known) != wanted):
        return False
    node.attributes.pop("ceil_mode", None)
    _set_pads(node, totals, upper=mode != "SAME_LOWER")
    return True


def _ceil(node: onnx_ir.Node) -> bool:
    """Pad the end so that rounding down gives the same windows; a window that would start in the end's pads is none."""
    sizes, kernel = _spatial(node.inputs[0]), _kernel(node)
    if sizes is None or kernel is None:
        return False
    rank = len(kernel)
    strides, dilations, pads = (
        _ints(node, "strides", rank),
        _ints(node, "dilations", rank),
        _ints(node, "pads", 2 * rank, 0),
    )
    ends = []
    for n, k, s, d, begin, end in zip(sizes, kernel, strides, dilations, pads, pads[rank:], strict=False):
        extent = (k - 1) * d + 1
        count = -(-(n + begin + end - extent) // s) + 1
        count -= (count - 1) * s >= n + begin
        ends.append(max(end, (count - 1) * s + extent - n - begin))
    counted = node.op_type == "AveragePool" and attribute(node, "count_include_pad", 0)
    if any(e >= k for e, k in zip(ends, kernel, strict=True)) or (counted and ends != pads[rank:]):
        return False
    node.attributes.pop("ceil_mode")
    node.attributes["pads"] = onnx_ir.AttrInt64s("pads", pads[:rank] + ends)
    # The shape inferred with ceil_mode may count a window too many.
    for value in node.outputs:
        value.shape = None
    return True


def _transposed(node: onnx_ir.Node) -> bool:
    sizes = _spatial(node.inputs[0])
    kernel = _kernel(node)
    if sizes is None or kernel is None:
        return False
    rank = len(kernel)
    strides, dilations = _ints(node, "strides", rank), _ints(node, "dilations", rank)
    extra = _ints(node, "output_padding", rank, default=0)
    mode = _auto_pad(node)
    full = [
        s * (n - 1) + o + (k - 1) * d + 1
        for s, n, o, k, d in zip(strides, sizes, extra, kernel, dilations, strict=True)
    ]
    shape = attribute(node, "output_shape")
    if isinstance(shape, (list, tuple)):
        wanted = [int(d) for d in shape][-rank:]
    elif mode == "VALID":
        wanted = full
    else:
        wanted = [n * s for n, s in zip(sizes, strides, strict=True)]
    totals = [f - w for f, w in zip(full, wanted, strict=True)]
    known = _spatial(node.outputs[0])
    if any(t < 0 for t in totals) or (known is not None and list(known) != wanted):
        return False
    node.attributes.pop("output_shape", None)
    # The specification gives the odd row to the end for SAME_UPPER only, and to the beginning otherwise.
    _set_pads(node, totals, upper=mode == "SAME_UPPER")
    return True


def _set_pads(node: onnx_ir.Node, totals: Sequence[int], upper: bool) -> None:
    small = [t // 2 for t in totals]
    large = [t - t // 2 for t in totals]
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = onnx_ir.AttrInt64s("pads", small + large if upper else large + small)


def _auto_pad(node: onnx_ir.Node) -> str:
    return str(attribute(node, "auto_pad", "NOTSET"))


def _spatial(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    shape = static_shape(value)
    return None if shape is None else shape[2:]


def _kernel(node: onnx_ir.Node) -> list[int] | None:
    given = attribute(node, "kernel_shape")
    if isinstance(given, (list, tuple)):
        return [int(k) for k in given]
    weight = present(node, _WEIGHT_INPUT.get(node.op_type, 1))
    shape = _spatial(weight)
    return None if shape is None else list(shape)


def _ints(node: onnx_ir.Node, attr: str, rank: int, default: int = 1) -> list[int]:
    given = attribute(node, attr)
    return [int(v) for v in given] if isinstance(given, (list, tuple)) and given else [default] * rank
