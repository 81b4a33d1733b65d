"""Small questions about an ONNX graph's values that passes and the partition share."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir

from tvmstack.core.errors import ModelError
from tvmstack.core.model import TensorSpec

__all__ = [
    "add_initializer",
    "attribute",
    "captured_values",
    "constant",
    "is_defined",
    "numpy_name",
    "opset_of",
    "present",
    "replace_value",
    "scalar",
    "size_of",
    "spec_of",
    "static_shape",
    "subgraphs_of",
]


def static_shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape when every dim is a number, else None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def size_of(value: onnx_ir.Value | None) -> int | None:
    """Return the number of elements, None where it is unknown."""
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)


def constant(value: onnx_ir.Value | None, limit: int | None = None) -> np.ndarray | None:
    """Return the array of a value known at compile time; None where it is not, or has over `limit` elements."""
    if value is None:
        return None
    tensor = value.const_value if value.is_initializer() else _constant_node_tensor(value)
    if tensor is None or (limit is not None and tensor.size > limit):
        return None
    return np.asarray(tensor.numpy())


def _constant_node_tensor(value: onnx_ir.Value) -> onnx_ir.TensorProtocol | None:
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain not in ("", "ai.onnx"):
        return None
    return onnx_ir.convenience.get_const_tensor(value)


def scalar(value: onnx_ir.Value | None) -> float | None:
    """Return the one number that a constant holds, None where it is not a constant of one element."""
    array = constant(value, limit=1)
    return None if array is None or array.size != 1 or array.dtype.kind not in "fiub" else float(array.reshape(-1)[0])


def present(node: onnx_ir.Node, index: int) -> onnx_ir.Value | None:
    """Return an input, None where it is absent or the empty placeholder."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.name == "" else value


def attribute(node: onnx_ir.Node, name: str, default: object = None) -> object:
    """Return an attribute's value or the default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def opset_of(model: onnx_ir.Model, domain: str = "") -> int:
    """Return the operator set version the model imports for a domain, 1 where it names none."""
    return int(model.graph.opset_imports.get(domain, model.graph.opset_imports.get("ai.onnx", 1) if not domain else 1))


def subgraphs_of(node: onnx_ir.Node) -> Iterator[onnx_ir.Graph]:
    """Yield the bodies that a node holds as attributes."""
    for attr in node.attributes.values():
        if attr.type == onnx_ir.AttributeType.GRAPH:
            yield attr.as_graph()
        elif attr.type == onnx_ir.AttributeType.GRAPHS:
            yield from attr.as_graphs()


def captured_values(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Return the values of outer scopes that a node's bodies use, each once."""
    found: dict[onnx_ir.Value, None] = {}
    for body in subgraphs_of(node):
        local: set[onnx_ir.Value] = set(body.inputs) | set(body.initializers.values())
        used: list[onnx_ir.Value] = []
        for inner in body:
            local.update(inner.outputs)
            used += [v for v in inner.inputs if v is not None and v.name != ""]
            used += captured_values(inner)
        found.update(dict.fromkeys(v for v in (*used, *body.outputs) if v not in local))
    return list(found)


def is_defined(value: onnx_ir.Value) -> bool:
    """Whether something gives the value: a node, an input or an initializer."""
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def add_initializer(graph: onnx_ir.Graph, name: str, array: np.ndarray) -> onnx_ir.Value:
    """Add a constant under a name like `name` that nothing in the graph has yet."""
    taken = (
        {v.name for v in graph.inputs}
        | set(graph.initializers)
        | {v.name for n in graph.all_nodes() for v in n.outputs}
    )
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    tensor = onnx_ir.tensor(array, name=unique)
    value = onnx_ir.Value(
        name=unique, shape=onnx_ir.Shape(array.shape), type=onnx_ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def replace_value(old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
    """Make every user of `old` use `new`; False, with nothing changed, where a model output's name would be lost.

    Where `old` is an output of its graph the name moves to `new`, if a node of the same graph makes it and it is not an
    output itself.
    """
    if old.is_graph_output():
        movable = new.producer() is not None and not new.is_graph_output() and new.graph is old.graph
        if not movable:
            return False
        name = old.name
        old.name = f"{name}__replaced"
        new.name = name
    if new.shape is None:
        new.shape = old.shape
    if new.type is None:
        new.type = old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return True


def numpy_name(value: onnx_ir.Value) -> str:
    """Return the numpy name of a tensor value's element type."""
    if value.dtype is None or not isinstance(value.type, onnx_ir.TensorType):
        kind = "unknown" if value.type is None else type(value.type).__name__
        raise ModelError(f"{value.name} is not a tensor of a known type ({kind})")
    return str(value.dtype.numpy().name)


def spec_of(value: onnx_ir.Value) -> TensorSpec:
    """Return name, dtype and shape; a dim without a number or a name is called "?"."""
    if value.shape is None:
        return TensorSpec(value.name or "", numpy_name(value), ("?",))
    dims = tuple(d if isinstance(d, int) else (d.value or "?") for d in value.shape)
    return TensorSpec(value.name or "", numpy_name(value), dims)
