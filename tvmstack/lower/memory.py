"""The memory plan: one storage for all intermediate results, each at an offset of its own.

TVM's StaticPlanBlockMemory reuses whole storages, one tensor at a time: on the benchmark models it takes 1.1 to 2 times
what is alive at once. Placing tensors at offsets, the largest first, takes just that on nearly all of them. Kernels
must then accept tensors that do not begin where their storage does: see `byte_offset`.

Outputs keep storages of their own, because a caller may hold on to one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tvmstack._tvm import relax, tvm

__all__ = ["MemoryPlan", "Span", "place", "plan_memory"]

# Kernels are compiled for tensors that begin at a multiple of this many bytes.
_ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryPlan:
    """What one run needs beside its inputs and weights.

    Attributes:
        arena_bytes: the storage that all intermediate results share.
        live_bytes: the most that intermediate results take at any one moment; no plan for this order of kernels can do
            with less, unless kernels work in place.
        output_bytes: the outputs that kernels write, each in a storage that becomes the caller's.
        tensors: how many intermediate results lie in the arena.
        tensors_bytes: what they would take side by side.
        views: how many reshapes reuse the memory of the tensor they read.
    """

    arena_bytes: int = 0
    live_bytes: int = 0
    output_bytes: int = 0
    tensors: int = 0
    tensors_bytes: int = 0
    views: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the plan as plain data."""
        return asdict(self)


@dataclass
class Span:
    """A tensor while it may still be read: its bytes, the first and the last step that touches it."""

    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        """Whether both are needed at one moment."""
        return self.first <= other.last and other.first <= self.last


def place(spans: Sequence[Span]) -> list[int]:
    """Return an offset in bytes for each tensor, so that no two that are needed at one moment overlap.

    Greedy by size (Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference"), equal sizes
    once from the front and once from the back; the shorter of both.
    """
    aligned = [Span(_aligned(s.size), s.first, s.last) for s in spans]
    forward = sorted(range(len(aligned)), key=lambda i: (-aligned[i].size, aligned[i].first))
    backward = sorted(range(len(aligned)), key=lambda i: (-aligned[i].size, -aligned[i].last))
    plans = [_place_in_order(aligned, order) for order in (forward, backward)]
    return min(plans, key=lambda offsets: _extent(aligned, offsets))


def _place_in_order(spans: Sequence[Span], order: Iterable[int]) -> list[int]:
    """Put each tensor into the smallest gap that holds it between those already placed that it meets."""
    offsets: dict[int, int] = {}
    for index in order:
        taken = sorted((at, at + spans[i].size) for i, at in offsets.items() if spans[i].meets(spans[index]))
        best, best_gap, end = None, math.inf, 0
        for start, stop in taken:
            if spans[index].size <= start - end < best_gap:
                best, best_gap = end, start - end
            end = max(end, stop)
        offsets[index] = end if best is None else best
    return [offsets[i] for i in range(len(spans))]


def _extent(spans: Sequence[Span], offsets: Sequence[int]) -> int:
    return max((at + span.size for span, at in zip(spans, offsets, strict=True)), default=0)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def plan_memory(mod: Any) -> tuple[Any, MemoryPlan]:
    """Give the tensors that `main` allocates their places in one storage.

    Requires: kernels are called with their outputs as arguments (`CallTIRRewrite`), and no control flow.
    Leaves alone: outputs, and tensors whose shape is not known; `LowerAllocTensor` gives each a storage of its own.
    """
    main = mod["main"]
    walk = _Walk()
    for block in main.body.blocks:
        for binding in block.bindings:
            walk.step(binding)
    walk.escape(main.body.body)
    inner = [var for var in walk.spans if var not in walk.escaping]
    spans = [walk.spans[var] for var in inner]
    offsets = place(spans)
    size = _extent([Span(_aligned(s.size), s.first, s.last) for s in spans], offsets)
    plan = MemoryPlan(
        arena_bytes=size,
        live_bytes=_most_alive(spans),
        output_bytes=sum(span.size for var, span in walk.spans.items() if var in walk.escaping),
        tensors=len(spans),
        tensors_bytes=sum(span.size for span in spans),
        views=walk.views,
    )
    mod = mod.clone()
    mod["main"] = _rewritten(main, dict(zip(inner, offsets, strict=True)), size) if inner else main
    return mod, plan


def _most_alive(spans: Sequence[Span]) -> int:
    steps = range(max((s.last for s in spans), default=-1) + 1)
    return max((sum(s.size for s in spans if s.first <= step <= s.last) for step in steps), default=0)


@dataclass
class _Walk:
    """What is known after each binding: when each allocated tensor is touched, and which variables may stand for it."""

    spans: dict[Any, Span] = field(default_factory=dict)
    behind: dict[Any, Any] = field(default_factory=dict)
    escaping: set[Any] = field(default_factory=set)
    views: int = 0
    now: int = 0

    def step(self, binding: Any) -> None:
        value = binding.value
        self.now += 1
        if is_call(value, "relax.builtin.alloc_tensor"):
            size = _static_bytes(binding.var.ty)
            if size is not None:
                self.spans[binding.var] = Span(size, self.now, self.now)
                self.behind[binding.var] = frozenset([binding.var])
            return
        self.behind[binding.var] = self.stands_for(value)
        self.views += is_call(value, "relax.reshape") and bool(self.tensors(value))
        for var in self.tensors(value):
            self.spans[var].last = self.now

    def stands_for(self, expr: Any) -> Any:
        """Return the allocated tensors whose memory the value may be; a list of such sets for a tuple.

        A kernel gives back nothing; any other call may give back a view of what it was given.
        """
        if isinstance(expr, relax.Tuple):
            return [self.stands_for(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            whole = self.stands_for(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, list) else whole
        if isinstance(expr, relax.Var):
            return self.behind.get(expr, frozenset())
        if isinstance(expr, tvm.ir.Call):
            return frozenset().union(*(_flat(self.stands_for(arg)) for arg in expr.args))
        return frozenset()

    def tensors(self, expr: Any) -> frozenset[Any]:
        """Return the allocated tensors that an expression reads or writes."""
        return _flat(self.stands_for(expr))

    def escape(self, expr: Any) -> None:
        self.escaping |= self.tensors(expr)


def _flat(sets: Any) -> frozenset[Any]:
    return frozenset().union(*map(_flat, sets)) if isinstance(sets, list) else sets


def is_call(expr: Any, operator: str) -> bool:
    """Whether an expression is a call of this Relax operator."""
    return isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == operator


def _static_bytes(ty: Any) -> int | None:
    dims = list(ty.shape.values) if ty.ndim else []
    if not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
        return None
    return math.prod(int(d) for d in dims) * tvm.DataType(str(ty.dtype)).itemsize


def _rewritten(main: Any, offsets: dict[Any, int], size: int) -> Any:
    """Return the function with the storage allocated first and each planned tensor taken from it."""
    storage = relax.Var("arena", relax.AnyType())
    memory = relax.op.memory
    head = relax.VarBinding(storage, memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8"))
    blocks: list[Any] = []
    for block in main.body.blocks:
        bindings = [head] if not blocks else []
        for binding in block.bindings:
            if binding.var in offsets:
                shape, dtype = binding.value.args[0], binding.value.args[1]
                tensor = memory.alloc_tensor(storage, offsets[binding.var], shape, dtype)
                binding = relax.VarBinding(binding.var, tensor)
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
