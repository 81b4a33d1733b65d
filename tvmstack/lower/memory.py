"""The memory plan: one storage for all intermediate results, each at an offset of its own.

TVM's StaticPlanBlockMemory reuses whole storages, one tensor at a time: on the benchmark models it takes 1.1 to 2 times
what is alive at once. Placing tensors at offsets, the largest first, takes just that on nearly all of them. Kernels
must then accept tensors that do not begin where their storage does: see `byte_offset`.

A concatenation whose parts lie one behind the other in its result costs nothing: the parts are placed there, their
kernels write them there, and the copy is dropped.

Outputs keep storages of their own, because a caller may hold on to one of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tvmstack._tvm import relax, tvm

__all__ = ["MemoryPlan", "Span", "place", "plan_memory"]

# Kernels are compiled for tensors that begin at a multiple of this many bytes.
_ALIGNMENT = 64
_TRIES = 40


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
        joined: how many concatenations are written in place by those who make their parts.
    """

    arena_bytes: int = 0
    live_bytes: int = 0
    output_bytes: int = 0
    tensors: int = 0
    tensors_bytes: int = 0
    views: int = 0
    joined: int = 0

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
    once from the front and once from the back; and, since a long life matters too, by size times life. While the
    shortest plan takes more than what is alive at once, sizes are disturbed a little and the greedy one tried again.
    """
    aligned = [Span(_aligned(s.size), s.first, s.last) for s in spans]
    bound, rng = _most_alive(aligned), random.Random(0)

    def keys() -> Iterator[Callable[[Span], Any]]:
        yield lambda s: (-s.size, s.first)
        yield lambda s: (-s.size, -s.last)
        yield lambda s: -s.size * (s.last - s.first + 1)
        for _ in range(_TRIES):
            yield lambda s: -s.size * rng.uniform(0.5, 1.0)

    best, extent = [0] * len(aligned), math.inf
    for key in keys() if aligned else ():
        order = sorted(range(len(aligned)), key=lambda i: key(aligned[i]))
        offsets = _place_in_order(aligned, order)
        if _extent(aligned, offsets) < extent:
            best, extent = offsets, _extent(aligned, offsets)
        if extent <= bound:
            break
    return best


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
    joins = _joins(mod, walk)
    within = _within(joins)
    inner = [var for var in walk.spans if var not in walk.escaping and var not in within]
    spans = [walk.spans[var] for var in inner]
    places = dict(zip(inner, place(spans), strict=True))
    size = _extent([Span(_aligned(s.size), s.first, s.last) for s in spans], list(places.values()))
    places.update({var: places[whole] + at for var, (whole, at) in within.items()})
    plan = MemoryPlan(
        arena_bytes=size,
        live_bytes=_most_alive(spans),
        output_bytes=sum(span.size for var, span in walk.spans.items() if var in walk.escaping),
        tensors=len(spans),
        tensors_bytes=sum(span.size for span in spans),
        views=walk.views,
        joined=len(joins),
    )
    mod = mod.clone()
    mod["main"] = _rewritten(main, places, size, {join.binding for join in joins}) if inner else main
    return mod, plan


@dataclass(frozen=True)
class _Join:
    """A concatenation that can be written in place: its binding, its result, its parts and their offsets in it."""

    binding: Any
    whole: Any
    parts: tuple[tuple[Any, int], ...]


def _joins(mod: Any, walk: _Walk) -> list[_Join]:
    """Find the concatenations whose parts can be placed in their result, and widen the results' spans to the parts'."""
    found: list[_Join] = []
    taken: set[Any] = set()
    for binding, sets in walk.calls:
        if not binding.value.op.name_hint.startswith("concat") or any(len(s) != 1 for s in sets):
            continue
        *parts, whole = [next(iter(s)) for s in sets]
        spans = [walk.spans[v] for v in parts]
        sizes = [_static_bytes(arg.ty) for arg in binding.value.args[:-1]]
        if len({*parts}) < len(parts) or taken & {*parts, whole} or walk.escaping & {*parts, whole}:
            continue
        is_whole = all(size == span.size for size, span in zip(sizes, spans, strict=True))
        is_aligned = all(span.size % _ALIGNMENT == 0 for span in spans[:-1])
        if not (is_whole and is_aligned and _is_in_order(binding.value.args)):
            continue
        offsets = [sum(s.size for s in spans[:i]) for i in range(len(parts))]
        taken |= {*parts}
        target = walk.spans[whole]
        target.first, target.last = min(s.first for s in spans), max(target.last, *(s.last for s in spans))
        found.append(_Join(binding.var, whole, tuple(zip(parts, offsets, strict=True))))
    return found


def _is_in_order(args: Sequence[Any]) -> bool:
    """Whether the parts lie one behind the other in the result: nothing is outside the axis they are joined along."""
    part, whole = ([int(d) for d in arg.ty.shape.values] for arg in (args[0], args[-1]))
    axis = next((i for i, (a, b) in enumerate(zip(part, whole, strict=True)) if a != b), None)
    return axis is not None and math.prod(whole[:axis]) == 1


def _within(joins: Sequence[_Join]) -> dict[Any, tuple[Any, int]]:
    """Return for each part the outermost result it lies in, and where: results may be parts of others."""
    direct = {part: (join.whole, at) for join in joins for part, at in join.parts}
    found = {}
    for part in direct:
        whole, at = direct[part]
        while whole in direct:
            whole, more = direct[whole]
            at += more
        found[part] = (whole, at)
    return found


def _most_alive(spans: Sequence[Span]) -> int:
    steps = range(max((s.last for s in spans), default=-1) + 1)
    return max((sum(s.size for s in spans if s.first <= step <= s.last) for step in steps), default=0)


@dataclass
class _Walk:
    """What is known after each binding: when each allocated tensor is touched, and which variables may stand for it."""

    spans: dict[Any, Span] = field(default_factory=dict)
    behind: dict[Any, Any] = field(default_factory=dict)
    escaping: set[Any] = field(default_factory=set)
    calls: list[tuple[Any, list[frozenset[Any]]]] = field(default_factory=list)
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
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            self.calls.append((binding, [self.tensors(arg) for arg in value.args]))
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


def _rewritten(main: Any, offsets: dict[Any, int], size: int, dropped: Collection[Any]) -> Any:
    """Return the function with the storage allocated first, each planned tensor taken from it, and bindings dropped."""
    storage = relax.Var("arena", relax.AnyType())
    memory = relax.op.memory
    head = relax.VarBinding(storage, memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8"))
    blocks: list[Any] = []
    for block in main.body.blocks:
        bindings = [head] if not blocks else []
        for binding in block.bindings:
            if binding.var in dropped:
                continue
            if binding.var in offsets:
                shape, dtype = binding.value.args[0], binding.value.args[1]
                tensor = memory.alloc_tensor(storage, offsets[binding.var], shape, dtype)
                binding = relax.VarBinding(binding.var, tensor)
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
