"""What a converter sees of one ONNX node, and the few helpers that every family needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir

from tvmstack._tvm import relax, tvm
from tvmstack.core.errors import ModelError

__all__ = [
    "Context",
    "Converter",
    "Expr",
    "broadcast_shape",
    "cast",
    "const",
    "dtype_of",
    "element_type",
    "is_float",
    "scalar",
    "shape_of",
    "widened",
]

Expr: TypeAlias = Any  # a tvm.relax expression; TVM ships no types

_WIDE_ENOUGH = ("float32", "float64")


@dataclass
class Context:
    """One node while it is converted.

    Attributes:
        builder: the `relax.BlockBuilder` that collects bindings.
        node: the ONNX node.
        opset: version of the operator set that the node belongs to.
        inputs: Relax expressions, None for an optional input left out.
        constants: numpy values of the inputs that are known now, None for the others.
    """

    builder: Any
    node: onnx_ir.Node
    opset: int
    inputs: Sequence[Expr | None]
    constants: Sequence[np.ndarray | None]

    def has(self, index: int) -> bool:
        """Whether the optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Expr:
        """Return an input that the operator cannot do without."""
        if not self.has(index):
            raise ModelError(f"input {index} is missing")
        return self.inputs[index]

    def optional(self, index: int) -> Expr | None:
        """Return an input, None where it was left out."""
        return self.inputs[index] if self.has(index) else None

    def constant(self, index: int) -> np.ndarray | None:
        """Return the value of an input that is known now, None where it is left out or computed."""
        return self.constants[index] if index < len(self.constants) else None

    def ints(self, index: int) -> list[int]:
        """Return the value of an input that must be a known list of integers."""
        value = self.constant(index)
        if value is None:
            raise ModelError(f"input {index} must be a constant")
        return [int(v) for v in np.asarray(value).reshape(-1)]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value, `default` where it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the static shape of an input."""
        return shape_of(self.input(index))

    def dtype(self, index: int = 0) -> str:
        """Return the element type of an input as numpy spells it."""
        return dtype_of(self.input(index))

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an axis attribute as a number from 0 on."""
        return int(self.attr(name, default)) % max(rank, 1)

    def out_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Return the shape ONNX inferred for an output, None where it is unknown."""
        shape = self.node.outputs[index].shape
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return tuple(int(d) for d in shape if isinstance(d, int))

    def wants(self, index: int) -> bool:
        """Whether somebody reads this output, or may."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index].name)

    def emit(self, expr: Expr) -> Expr:
        """Bind an expression and return its variable."""
        return self.builder.emit(expr)

    def te(self, func: Callable[..., Any], *args: Any, name: str, attrs: dict[str, Any] | None = None) -> Expr:
        """Bind a call of a kernel written in TE; tensors among `args` become its parameters."""
        return self.builder.emit_te(func, *args, primfunc_name_hint=name, primfunc_attrs=attrs)


Converter: TypeAlias = Callable[[Context], Expr | Sequence[Expr]]


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Return the static shape of a Relax tensor."""
    return tuple(int(d) for d in expr.ty.shape.values) if expr.ty.ndim else ()


def dtype_of(expr: Expr) -> str:
    """Return the element type of a Relax tensor as numpy spells it."""
    return str(expr.ty.dtype.dtype)


def element_type(value: Any) -> str:
    """Return the type of a scalar expression inside a kernel; calls, loads and variables all carry it in `ty`."""
    return str(value.ty.dtype)


def is_float(dtype: str) -> bool:
    """Whether the element type is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def const(value: Any, dtype: str | None = None) -> Expr:
    """Return an array as a Relax constant."""
    array = np.ascontiguousarray(np.asarray(value, dtype=dtype))
    return relax.const(tvm.runtime.tensor(array.reshape(np.shape(value))), str(array.dtype))


def scalar(value: float, dtype: str) -> Expr:
    """Return a rank 0 constant, which TVM writes into kernels as an immediate."""
    return relax.const(value, dtype)


def cast(expr: Expr, dtype: str) -> Expr:
    """Return the tensor in another element type, itself where nothing changes."""
    return expr if dtype_of(expr) == dtype else relax.op.astype(expr, dtype)


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that numpy's broadcasting gives."""
    return np.broadcast_shapes(*(tuple(s) for s in shapes))


def widened(ctx: Context, func: Callable[..., Expr], *args: Expr) -> Expr:
    """Apply `func` in float32 where the operands are narrower, and return to their type.

    Half-precision sums and transcendental functions lose what onnxruntime, which computes them in float32, keeps.
    """
    dtype = dtype_of(args[0])
    if dtype in _WIDE_ENOUGH or not is_float(dtype):
        return func(*args)
    wide = [ctx.emit(cast(a, "float32")) for a in args]
    return cast(ctx.emit(func(*wide)), dtype)
