"""Which tensor of a model is the first that comes out wrong: the model is cut shorter and shorter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["cut_at", "first_difference", "inner_tensors", "with_outputs"]

T = TypeVar("T")


def inner_tensors(model: onnx_ir.Model) -> list[tuple[str, str]]:
    """Return (tensor, the node that makes it), in an order the model can run in; only tensors of known static shape."""
    made = [(value, node) for node in model.graph for value in node.outputs if value.name and _is_static(value)]
    return [(value.name, node.name or node.op_type) for value, node in made]


def _is_static(value: onnx_ir.Value) -> bool:
    return value.dtype is not None and value.shape is not None and value.shape.is_static()


def cut_at(model: onnx_ir.Model, tensor: str) -> onnx_ir.Model:
    """Return a copy of the model that ends at `tensor`; inputs stay, nodes that no longer matter go."""
    return with_outputs(model, [tensor])


def with_outputs(model: onnx_ir.Model, tensors: Collection[str]) -> onnx_ir.Model:
    """Return a copy of the model that gives inner tensors, and these only; nodes that no longer matter go."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in tensors)
    RemoveUnusedNodesPass()(copy)
    return copy


def first_difference(items: Sequence[T], differs: Callable[[T], bool]) -> T:
    """Return the first item that differs, in about log2(n) trials.

    The last item is known to differ. A difference usually spreads to what follows; where it does not, what comes back
    still differs while its predecessor does not.
    """
    low, high = 0, len(items) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(items[middle]) else (middle + 1, high)
    return items[high]
