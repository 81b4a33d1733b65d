"""The walk over the Relax function: a binding goes to its operator's handler, or is rebuilt on plain tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmstack._tvm import is_constant, relax, tvm
from tvmstack.core.device import Device
from tvmstack.lower import kernels
from tvmstack.lower.algorithms import Picker
from tvmstack.lower.origins import OriginBuilder, binding_origins

__all__ = ["HANDLERS", "Rewriter", "Value", "choose_layouts", "handles", "shape_of"]

Handler = Callable[["Rewriter", Any], "Value | None"]
HANDLERS: dict[str, Handler] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Register a handler for Relax operators; it may return None to leave a call to the plain path."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


def shape_of(expr: Any) -> tuple[int, ...] | None:
    """Return the static shape of a tensor expression, or None where it is unknown."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = getattr(ty.shape, "values", None)
    if dims is None or not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
        return None
    return tuple(int(d) for d in dims)


def dtype_of(expr: Any) -> str:
    """Return the dtype of a tensor expression."""
    return str(expr.ty.dtype)


@dataclass
class Value:
    """One tensor in up to four representations, or a tuple of tensors.

    Attributes:
        shape: the logical shape.
        plain: as the model has it.
        blocked: (N, ceil(C/b), H, W, b) of an NCHW tensor (an NCW tensor counts as N, C, 1, W). Where b does not
            divide C the last
            block is padded with channels that hold some finite number.
        rows: (product of the leading dims, last dim).
        heads_inside: (B, rows, H, width) of an attention's result of the shape (B, H, rows, width).
        fields: the values of a tuple.
    """

    shape: tuple[int, ...] | None = None
    plain: Any = None
    blocked: Any = None
    rows: Any = None
    heads_inside: Any = None
    fields: list[Value] = field(default_factory=list)

    @property
    def block(self) -> int:
        """The channel block of `blocked`."""
        shape = shape_of(self.blocked)
        assert shape is not None
        return shape[4]

    @property
    def is_padded(self) -> bool:
        """Whether `blocked` holds more channels than the tensor has."""
        return self.blocked is not None and self.nchw is not None and self.nchw[1] % self.block != 0

    @property
    def nchw(self) -> tuple[int, int, int, int] | None:
        """The logical shape as four dims, for a tensor of rank 3 or 4."""
        if self.shape is None or len(self.shape) not in (3, 4):
            return None
        if len(self.shape) == 3:
            return self.shape[0], self.shape[1], 1, self.shape[2]
        return self.shape[0], self.shape[1], self.shape[2], self.shape[3]


class Rewriter:
    """State of one walk: the new function under construction and what stands for each variable of the old one."""

    def __init__(self, mod: Any, device: Device, pick: Picker) -> None:
        rest = {gv: f for gv, f in mod.functions.items() if gv.name_hint != "main"}
        self.bb = OriginBuilder(tvm.IRModule(rest))
        self.device, self.pick = device, pick
        self.lanes = device.vector_bits // 32
        self.values: dict[Any, Value] = {}
        self.producers: dict[Any, Any] = {}
        self.uses: dict[Any, int] = {}
        self.shaped: dict[Any, Any] = {}

    # --- expressions of the old function -> values

    def value(self, expr: Any) -> Value:
        """Return the value of an argument of the old function."""
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return Value(fields=[self.value(f) for f in expr.fields])
        return Value(shape=shape_of(expr) if isinstance(expr.ty, relax.TensorType) else None, plain=expr)

    def producer(self, expr: Any) -> Any:
        """Return the call that made a variable of the old function, or None."""
        return self.producers.get(expr) if isinstance(expr, relax.Var) else None

    def array(self, expr: Any) -> np.ndarray | None:
        """Return the data of a constant argument, looking through the value of a variable bound to one."""
        plain = self.value(expr).plain if isinstance(expr, relax.Var) else expr
        return plain.value.numpy() if plain is not None and is_constant(plain) else None

    # --- representations

    def plain(self, value: Value) -> Any:
        """Return the plain form, made once."""
        if value.fields:
            return relax.Tuple([self.plain(f) for f in value.fields])
        if value.plain is None:
            value.plain = self._to_plain(value)
        return value.plain

    def _to_plain(self, value: Value) -> Any:
        assert value.shape is not None
        if value.rows is not None:
            return self.reshape(value.rows, value.shape)
        if value.heads_inside is not None:
            return self.emit(relax.op.permute_dims(value.heads_inside, [0, 2, 1, 3]))
        _, c, h, w = value.nchw or (0, 0, 0, 0)
        if h * w == 1 and not value.is_padded:
            return self.reshape(value.blocked, value.shape)
        plain = self.te(kernels.from_blocked, value.blocked, c)
        return plain if len(value.shape) == 4 else self.reshape(plain, value.shape)

    def blocked(self, value: Value, block: int | None = None) -> Any:
        """Return the NCHWc form with the block asked for (by default what there is, or the best one), made once."""
        if value.blocked is not None and (block is None or value.block == block):
            return value.blocked
        assert value.nchw is not None
        n, c, h, w = value.nchw
        size = block or self.best_block(c)
        if h * w == 1 and c % size == 0:
            made = self.reshape(self.plain(value), (n, c // size, 1, 1, size))
        else:
            plain = self.plain(value)
            four = plain if value.shape == value.nchw else self.reshape(plain, value.nchw)
            made = self.te(kernels.to_blocked, four, size)
        if value.blocked is None:
            value.blocked = made
        return made

    def rows(self, value: Value) -> Any:
        """Return the two-dimensional form, made once."""
        assert value.shape
        if value.rows is None:
            value.rows = self.reshape(self.plain(value), (math.prod(value.shape[:-1]), value.shape[-1]))
        return value.rows

    def best_block(self, channels: int) -> int:
        """Return the block for that many channels: a whole vector, or a power of two for fewer than half of one.

        Vectors of other widths make LLVM keep the accumulators in memory (24 lanes: 3 GFLOP/s where 16 lanes reach
        138).
        """
        if channels > self.lanes // 2:
            return self.lanes
        return 1 << (channels - 1).bit_length()

    def group_block(self, per_group: int) -> int:
        """Return the largest block of up to one vector that divides the channels of a group."""
        return max(b for b in (1, 2, 4, 8, 16) if b <= self.lanes and per_group % b == 0)

    # --- emitting

    def emit(self, expr: Any) -> Any:
        """Bind an expression in the new function."""
        return self.bb.emit(expr)

    def te(self, compute: Callable[..., Any], *args: Any, name: Any = None, **kwargs: Any) -> Any:
        """Bind a call of a tensor-expression kernel, called `name` or as the function that makes it."""
        return self.bb.emit_te(compute, *args, primfunc_name_hint=name or compute.__name__, **kwargs)

    def reshape(self, expr: Any, shape: tuple[int, ...]) -> Any:
        """Bind a reshape, one for several in a row, at compile time for a constant, not at all if nothing changes."""
        expr = self.shaped.get(expr, expr) if isinstance(expr, relax.Var) else expr
        if shape_of(expr) == tuple(shape):
            return expr
        if is_constant(expr):
            return relax.const(expr.value.numpy().reshape(shape))
        made = self.emit(relax.op.reshape(expr, shape))
        self.shaped[made] = expr
        return made

    def rebuild(self, call: Any, args: list[Any]) -> Any:
        """Bind `call` with other arguments; its result type is inferred anew."""
        return self.emit(tvm.ir.Call(call.op, args, call.attrs, call.ty_args))


def choose_layouts(mod: Any, device: Device, pick: Picker) -> Any:
    """Return the module with representations chosen and heavy operators turned into the kernels of `kernels`.

    `pick` decides the algorithm of each convolution that several can compute.
    """
    from tvmstack.lower.layout import elementwise, matmul, spatial  # noqa: F401  (they register their handlers)

    rewriter = Rewriter(mod, device, pick)
    main = mod["main"]
    _count_uses(rewriter, main)
    origins = binding_origins(main)
    params = [relax.Var(p.name, p.ty) for p in main.params]
    for old, new in zip(main.params, params, strict=True):
        rewriter.values[old] = Value(shape=shape_of(old), plain=new)
    with rewriter.bb.function("main", params, attrs=dict(main.attrs) if main.attrs else None):
        with rewriter.bb.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    rewriter.bb.node = origins[binding.var]
                    _rewrite_binding(rewriter, binding)
            result = rewriter.bb.emit_output(rewriter.plain(rewriter.value(main.body.body)))
        rewriter.bb.emit_func_output(result)
    mod = rewriter.bb.get()
    mod["main"] = rewriter.bb.noted(mod["main"])
    return mod


def _count_uses(rewriter: Rewriter, main: Any) -> None:
    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.ir.Call | relax.Tuple):
            for arg in expr.args if isinstance(expr, tvm.ir.Call) else expr.fields:
                visit(arg)
        elif isinstance(expr, relax.TupleGetItem):
            visit(expr.tuple_value)
        elif isinstance(expr, relax.Var):
            rewriter.uses[expr] = rewriter.uses.get(expr, 0) + 1

    for block in main.body.blocks:
        for binding in block.bindings:
            visit(binding.value)
    visit(main.body.body)


def _rewrite_binding(rewriter: Rewriter, binding: Any) -> None:
    expr = binding.value
    rewriter.producers[binding.var] = expr
    rewriter.values[binding.var] = _rewrite(rewriter, expr)


def _rewrite(rewriter: Rewriter, expr: Any) -> Value:
    if isinstance(expr, relax.TupleGetItem):
        source = rewriter.value(expr.tuple_value)
        if source.fields:
            return source.fields[expr.index]
        item = rewriter.emit(relax.TupleGetItem(rewriter.plain(source), expr.index))
        return Value(shape=shape_of(item) if isinstance(item.ty, relax.TensorType) else None, plain=item)
    if not isinstance(expr, tvm.ir.Call):
        return rewriter.value(expr)
    handler = HANDLERS.get(expr.op.name) if isinstance(expr.op, tvm.ir.Op) else None
    done = handler(rewriter, expr) if handler else None
    if done is not None:
        return done
    made = rewriter.rebuild(expr, [_plain_argument(rewriter, a) for a in expr.args])
    return Value(shape=shape_of(made) if isinstance(made.ty, relax.TensorType) else None, plain=made)


def _plain_argument(rewriter: Rewriter, arg: Any) -> Any:
    if isinstance(arg, relax.Var | relax.Tuple):
        return rewriter.plain(rewriter.value(arg))
    return arg
