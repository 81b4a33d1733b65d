"""From the ONNX graph to one Relax function: our own loop over the nodes, one converter each.

Every node's result is compared with the shape and type that ONNX infers for it: a converter that disagrees with the
model's meaning is an error with the node's name, not a wrong number later.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir

from tvmstack._tvm import is_constant, relax
from tvmstack.core.errors import ModelError
from tvmstack.core.model import Model
from tvmstack.lower.converters import CONVERTERS
from tvmstack.lower.converters._context import Context, Expr, const, dtype_of
from tvmstack.lower.origins import OriginBuilder, node_label

__all__ = ["REGION_PREFIX", "LoweringError", "import_graph"]

log = logging.getLogger(__name__)

# A region is called by this name; the runtime registers a packed function under it.
REGION_PREFIX = "tvmstack.region."
_REGION_DOMAIN = "tvmstack"


class LoweringError(ModelError):
    """A node cannot be lowered; `node` is its name, so that a caller can hand it to another back end instead."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message)
        self.node = node


def import_graph(model: Model) -> Any:
    """Return the model as an `IRModule` whose `main` takes the model's inputs in order; weights are constants.

    Raises:
        LoweringError: a node has no converter, cannot be lowered with its attributes, or came out with another shape
            or type than ONNX infers; the message names the node.
        ModelError: an input has no fixed shape.
    """
    return _Importer(model).run()


class _Importer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = model.graph.graph
        self.opsets: dict[str, int] = dict(model.graph.opset_imports)
        self.builder = OriginBuilder()
        self.values: dict[onnx_ir.Value, Expr] = {}
        self.known: dict[onnx_ir.Value, np.ndarray | None] = {}
        self.names: set[str] = set()
        self.corrected: set[onnx_ir.Value] = set()

    def run(self) -> Any:
        params = [self._param(value) for value in self.graph.inputs if value.const_value is None]
        with self.builder.function("main", params):
            try:
                with self.builder.dataflow():
                    for node in self.graph:
                        self._node(node)
                    results = [self._value(value) for value in self.graph.outputs]
                    body = self.builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            except ModelError:
                self.builder._end_block()  # a block left open is reported on stderr when the builder goes
                raise
            self.builder.emit_func_output(body)
        module = self.builder.get()
        main = self.builder.noted(module["main"].with_attr("num_input", len(params)))
        module.update_func(module.get_global_var("main"), main)
        return module

    def _param(self, value: onnx_ir.Value) -> Expr:
        name = value.name or "input"
        shape = _static_shape(value)
        if shape is None or value.dtype is None:
            raise ModelError(
                f"cannot lower {self.model.source}: input {name} has no fixed shape. Give one with --shape."
            )
        var = relax.Var(self._fresh(name), relax.TensorType(shape, _dtype_name(value.dtype)))
        self.values[value] = var
        return var

    def _fresh(self, name: str) -> str:
        base = re.sub(r"\W", "_", name) or "value"
        base = base if base[0].isalpha() or base[0] == "_" else f"v_{base}"
        fresh, count = base, 1
        while fresh in self.names:
            fresh, count = f"{base}_{count}", count + 1
        self.names.add(fresh)
        return fresh

    def _value(self, value: onnx_ir.Value) -> Expr:
        if value not in self.values:
            array = self._constant(value)
            if array is None:
                raise ModelError(
                    f"cannot lower {self.model.source}: value {value.name} is used but nothing computes it"
                )
            self.values[value] = const(array)
        return self.values[value]

    def _constant(self, value: onnx_ir.Value) -> np.ndarray | None:
        if value not in self.known:
            producer = value.producer()
            if value.const_value is not None:
                self.known[value] = _plain_array(value.const_value)
            elif producer is not None and producer.op_type == "Constant" and producer.domain in ("", "ai.onnx"):
                self.known[value] = _constant_node(producer)
            else:
                self.known[value] = None
        return self.known[value]

    def _node(self, node: onnx_ir.Node) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.op_type == "Constant" and not domain:
            return
        label = _label(node)
        self.builder.node = node_label(node)
        try:
            results = self._convert(node, domain)
        except ModelError as error:
            raise LoweringError(f"cannot lower {label}: {error}", node.name or "") from error
        except Exception as error:  # the border to TVM: whatever it raises becomes a sentence that names the node
            text = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise LoweringError(f"cannot lower {label}: TVM refuses it ({text})", node.name or "") from error
        for value, result in zip(node.outputs, results, strict=False):
            self._keep(node, value, result)

    def _convert(self, node: onnx_ir.Node, domain: str) -> Sequence[Expr]:
        if domain == _REGION_DOMAIN and node.op_type == "Region":
            return self._region(node)
        converter = CONVERTERS.get((domain, node.op_type))
        if converter is None:
            raise ModelError(f"no converter for operator {node.op_type} of domain {domain or 'ai.onnx'}")
        inputs = [None if v is None or v.name == "" else self._value(v) for v in node.inputs]
        constants = [None if v is None or v.name == "" else self._constant(v) for v in node.inputs]
        opset = self.opsets.get(domain, self.opsets.get("ai.onnx", 1) if domain == "" else 1)
        result = converter(Context(self.builder, node, opset, inputs, constants))
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _region(self, node: onnx_ir.Node) -> Sequence[Expr]:
        types = [_relax_type(value) for value in node.outputs]
        args = [self._value(value) for value in node.inputs if value is not None]
        name = f"{REGION_PREFIX}{node.attributes['digest'].as_string()}"
        sinfo = types[0] if len(types) == 1 else relax.TupleType(types)
        call = self.builder.emit(relax.op.call_pure_packed(name, *args, ty_args=[sinfo]))
        return [call] if len(types) == 1 else [relax.TupleGetItem(call, i) for i in range(len(types))]

    def _keep(self, node: onnx_ir.Node, value: onnx_ir.Value, result: Expr) -> None:
        var = result if _is_leaf(result) else self.builder.emit(result, name_hint=self._fresh(value.name or "value"))
        if node.attributes.get("ceil_mode") is not None or any(v in self.corrected for v in node.inputs):
            self._correct(value, var)
        problem = _disagreement(value, var)
        if problem:
            raise LoweringError(f"cannot lower {_label(node)}: {problem}", node.name or "")
        self.values[value] = var
        if is_constant(var):
            self.known[value] = var.value.numpy()

    def _correct(self, value: onnx_ir.Value, result: Expr) -> None:
        """Trust our shape where ONNX's inference is wrong: it counts pool windows that start in the padding."""
        wanted, got = _static_shape(value), _shape_or_none(result)
        if got is not None and wanted is not None and wanted != got:
            log.info("shape of %s corrected from %s to %s", value.name, wanted, got)
            value.shape = onnx_ir.Shape(got)
            self.corrected.add(value)


def _shape_or_none(result: Expr) -> tuple[int, ...] | None:
    shape = result.ty.shape
    if shape is None:
        return None
    return tuple(int(d) for d in shape.values) if result.ty.ndim else ()


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, relax.Var) or is_constant(expr)


def _disagreement(value: onnx_ir.Value, result: Expr) -> str:
    """Say how the lowered value differs from what ONNX says of it, empty where it does not."""
    wanted, shape = _static_shape(value), _shape_or_none(result)
    if wanted is not None and shape != wanted:
        return f"{value.name} came out as shape {shape}, the model says {wanted}"
    if value.dtype is not None and dtype_of(result) != _dtype_name(value.dtype):
        return f"{value.name} came out as {dtype_of(result)}, the model says {_dtype_name(value.dtype)}"
    return ""


def _relax_type(value: onnx_ir.Value) -> Any:
    if value.dtype is None:
        raise ModelError(f"region output {value.name} has no known type")
    shape = _static_shape(value)
    if shape is not None:
        return relax.TensorType(shape, _dtype_name(value.dtype))
    return relax.TensorType(None, _dtype_name(value.dtype), ndim=-1 if value.shape is None else len(value.shape))


def _static_shape(value: onnx_ir.Value) -> tuple[int, ...] | None:
    if value.shape is None:
        return None
    dims = [d for d in value.shape if isinstance(d, int)]
    return tuple(dims) if len(dims) == len(value.shape) else None


def _dtype_name(dtype: onnx_ir.DataType) -> str:
    return str(dtype.numpy().name)


def _plain_array(tensor: Any) -> np.ndarray:
    """Return the tensor as numpy; 4-bit integers become 8-bit ones, which hold the same values."""
    array = np.asarray(tensor.numpy())
    widths = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8}
    return array.astype(widths[array.dtype.name]) if array.dtype.name in widths else array


def _constant_node(node: onnx_ir.Node) -> np.ndarray | None:
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in node.attributes:
            return np.asarray(node.attributes[name].value, dtype)
    tensor = node.attributes.get("value")
    return None if tensor is None else _plain_array(tensor.value)


def _label(node: onnx_ir.Node) -> str:
    output = next((v.name for v in node.outputs if v.name), "")
    return f"node {node.name} ({node.op_type})" if node.name else f"the {node.op_type} that computes {output}"
