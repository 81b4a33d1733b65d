"""A one-hot encoding times a matrix becomes a look-up of the matrix's rows, and what follows row by row its table.

JAX writes an embedding as `one_hot(x) @ W`. Each row of the product is one row of W, or zero where x is out of range;
functions of such a row, like bias and activation, are computed once for each row of the table, at compile time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from tvmstack.graph.evaluate import evaluate_node
from tvmstack.graph.values import add_initializer, constant, numpy_name, replace_value, size_of, static_shape

__all__ = ["name", "run"]

name = "fuse-lookup"
_UNARY = frozenset(["Abs", "Elu", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"])
_BINARY = frozenset(["Add", "Div", "Max", "Min", "Mul", "Sub"])
_TABLE_BYTES = 1 << 24


def run(model: onnx_ir.Model) -> list[str]:
    """Rewrite products and what follows them; return how many of both."""
    products = sum(_look_up(model.graph, node) for node in list(model.graph) if _is(node, "MatMul"))
    absorbed = sum(_absorb(model, node) for node in list(model.graph)) if products else 0
    lines = [f"turned {products} one-hot products into look-ups"] if products else []
    return lines + ([f"computed {absorbed} nodes in their tables"] if absorbed else [])


def _is(node: onnx_ir.Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and node.domain == ""


def _look_up(graph: onnx_ir.Graph, product: onnx_ir.Node) -> bool:
    x, matrix = _encoded(product.inputs[0]), constant(product.inputs[1])
    if x is None or matrix is None or matrix.ndim != 2 or matrix.nbytes > _TABLE_BYTES or not np.isfinite(matrix).all():
        return False
    value, classes = x
    shape, dtype = static_shape(value), numpy_name(value)
    if shape is None or classes != len(matrix):
        return False
    label = product.name or "lookup"
    zero, count = (
        add_initializer(graph, f"{label}_{n}", np.array(v, dtype)) for n, v in (("low", 0), ("out", classes))
    )
    flat = add_initializer(graph, f"{label}_shape", np.array(shape[:-1], np.int64))
    table = add_initializer(graph, f"{label}_table", np.vstack([matrix, np.zeros_like(matrix[:1])]))
    below, beyond = (
        onnx_ir.node("Less", [value, zero], name=f"{label}_below"),
        onnx_ir.node("Less", [value, count], name=f"{label}_within"),
    )
    low = onnx_ir.node("Where", [below.outputs[0], count, value], name=f"{label}_not_below")
    safe = onnx_ir.node("Where", [beyond.outputs[0], low.outputs[0], count], name=f"{label}_index")
    index = onnx_ir.node("Reshape", [safe.outputs[0], flat], name=f"{label}_flat")
    for node in (below, beyond, low, safe, index):
        made = node.outputs[0]
        is_truth, is_flat = node in (below, beyond), node is index
        made.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL) if is_truth else value.type
        made.shape = onnx_ir.Shape(shape[:-1] if is_flat else shape)
    return _in_place_of(graph, product, [below, beyond, low, safe, index], table, index.outputs[0])


def _in_place_of(
    graph: onnx_ir.Graph, old: onnx_ir.Node, before: list[onnx_ir.Node], table: onnx_ir.Value, index: onnx_ir.Value
) -> bool:
    """Put a Gather of `table` in the place of a node, behind the nodes that make its index."""
    gather = onnx_ir.node("Gather", [table, index], attributes={"axis": 0}, name=f"{old.name or 'node'}_rows")
    result, end = gather.outputs[0], old.outputs[0]
    result.name, result.type, result.shape = f"{end.name}_rows", end.type, end.shape
    for node in (*before, gather):
        for output in node.outputs:
            output.name = output.name or f"{node.name}_value"
    graph.insert_before(old, [*before, gather])
    if replace_value(end, result):
        return True
    for node in (gather, *reversed(before)):
        graph.remove(node, safe=True)
    return False


def _encoded(value: onnx_ir.Value | None) -> tuple[onnx_ir.Value, int] | None:
    """Return x and n of Cast(Equal(x, 0 .. n-1)), where x is a column of integers."""
    cast = None if value is None else value.producer()
    if cast is None or not _is(cast, "Cast") or value is None or value.dtype != onnx_ir.DataType.FLOAT:
        return None
    equal = cast.inputs[0].producer() if cast.inputs[0] is not None else None
    if equal is None or not _is(equal, "Equal"):
        return None
    for x, classes in (equal.inputs, equal.inputs[::-1]):
        numbers = constant(classes)
        if x is None or numbers is None or x.dtype not in (onnx_ir.DataType.INT32, onnx_ir.DataType.INT64):
            continue
        shape = static_shape(x)
        is_column = shape is not None and shape[-1:] == (1,) and len(shape) >= numbers.ndim
        counts_up = np.array_equal(numbers.reshape(-1), np.arange(numbers.size))
        if is_column and counts_up and numbers.shape[-1:] == (numbers.size,):
            return x, numbers.size
    return None


def _absorb(model: onnx_ir.Model, node: onnx_ir.Node) -> bool:
    """Compute a node on the rows of the table that its inputs are gathered from."""
    if node.domain != "" or node.op_type not in _UNARY | _BINARY or len(node.outputs) != 1:
        return False
    gathers = [v.producer() for v in node.inputs if v is not None and _is(v.producer(), "Gather")]
    shape = static_shape(node.outputs[0])
    if not gathers or gathers[0] is None or shape is None:
        return False
    index, table = gathers[0].inputs[1], constant(gathers[0].inputs[0])
    if table is None or table.ndim != 2 or len(table) > (size_of(index) or 0) + 1 or table.nbytes > _TABLE_BYTES:
        return False
    arrays = [_on_rows(value, index, table.shape, len(shape)) for value in node.inputs]
    if any(array is None for array in arrays):
        return False
    made = evaluate_node(node, arrays, model.graph.opset_imports)
    if made is None or made[0].shape != table.shape or index is None:
        return False
    rows = add_initializer(model.graph, f"{node.name or node.op_type}_table", made[0])
    return _in_place_of(model.graph, node, [], rows, index)


def _on_rows(
    value: onnx_ir.Value | None, index: onnx_ir.Value | None, table: tuple[int, ...], rank: int
) -> np.ndarray | None:
    """Return what stands for an input when the node is computed on the table's rows."""
    producer = None if value is None else value.producer()
    if producer is not None and _is(producer, "Gather"):
        rows = constant(producer.inputs[0])
        return rows if producer.inputs[1] is index and rows is not None and rows.shape == table else None
    array = constant(value)
    if array is None or array.ndim > rank or array.size not in (1, table[1]):
        return None
    if array.size > 1 and array.shape[-1] != table[1]:
        return None
    return array.reshape(-1) if array.size > 1 else array.reshape(())
