"""`repair`: the passes in order, repeated until none changes anything."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from types import ModuleType
from typing import Protocol, cast

import onnx_ir

from tvmstack.core.errors import ModelError
from tvmstack.core.model import Model
from tvmstack.graph import (
    drop_sequence_lens,
    explicit_pads,
    fold_affine,
    fold_batch_norm,
    fold_constants,
    fold_pad,
    fold_shapes,
    fuse_gelu,
    fuse_layer_norm,
    fuse_lookup,
    hidden,
    infer_shapes,
    inline_functions,
    merge_equal,
    raise_opset,
    remove_no_ops,
    remove_unused,
    unroll_loops,
)
from tvmstack.graph.evaluate import is_accepted
from tvmstack.graph.values import spec_of

__all__ = ["PASSES", "Pass", "repair", "tidy"]

_LOG = logging.getLogger(__name__)
# Each round either shrinks the graph or makes a shape known; real models need two or three.
_ROUNDS = 12


class Pass(Protocol):
    """One rewriting of the graph, in place."""

    name: str

    def run(self, model: onnx_ir.Model) -> list[str]:
        """Rewrite the graph; return one line for each kind of change, nothing when there was nothing to do."""
        ...


def _passes(*modules: ModuleType) -> tuple[Pass, ...]:
    return tuple(cast("Pass", m) for m in modules)


_ONCE = _passes(inline_functions, raise_opset)
_REPEATED = _passes(
    infer_shapes,
    fold_shapes,
    fold_constants,
    unroll_loops,
    remove_no_ops,
    explicit_pads,
    drop_sequence_lens,
    fold_pad,
    fold_affine,
    fold_batch_norm,
    merge_equal,
    remove_unused,
)
# Fused forms come last: what folding leaves is simpler to recognise.
_FUSIONS = _passes(fuse_lookup, fuse_layer_norm, fuse_gelu, remove_unused)
PASSES: tuple[Pass, ...] = tuple(dict.fromkeys((*_ONCE, *_REPEATED, *_FUSIONS)))


def repair(model: Model) -> Model:
    """Return the model with shapes inferred, constants folded and exporter leftovers removed; same outputs.

    Raises:
        ModelError: an output's type cannot be known, or a pass met a graph it cannot handle.
    """
    pristine = model.graph.clone() if hidden.control_flow(model.graph) else None
    changes = _rewrite(model)
    left = [node.name or "" for node in hidden.control_flow(model.graph)]
    if pristine is not None and left and not is_accepted(model.graph):
        model = replace(model, graph=pristine)
        away = hidden.hide(pristine, left)
        changes = _rewrite(model)
        hidden.restore(pristine, away)
        changes.append(f"left {', '.join(left)} as written: its bodies contradict the fixed shapes")
    graph = model.graph.graph
    untyped = [v.name for v in graph.outputs if v.dtype is None]
    if untyped:
        raise ModelError(f"{model.source}: the type of output {untyped[0]} cannot be inferred")
    return Model(
        model.graph,
        tuple(spec_of(v) for v in graph.inputs),
        tuple(spec_of(v) for v in graph.outputs),
        model.digest,
        model.source,
        model.changes + tuple(changes),
        model.frozen_inputs,
    )


def tidy(model: Model) -> Model:
    """Return the model, changed in place, with shapes inferred and constants folded, and nothing fused."""
    _settle(model)
    return model


def _rewrite(model: Model) -> list[str]:
    infer_shapes.forget_declared(model.graph)
    return [*_run(_ONCE, model), *_settle(model), *_run(_FUSIONS, model)]


def _settle(model: Model) -> list[str]:
    changes: list[str] = []
    for _ in range(_ROUNDS):
        lines = _run(_REPEATED, model)
        changes += lines
        if not lines:
            break
    return changes


def _run(passes: tuple[Pass, ...], model: Model) -> list[str]:
    changes = []
    for one in passes:
        start = time.perf_counter()
        try:
            lines = one.run(model.graph)
        except Exception as err:
            raise ModelError(f"{model.source}: the pass {one.name} failed: {_root(err)}") from err
        _LOG.debug("%s: %d changes in %.2f s", one.name, len(lines), time.perf_counter() - start)
        for line in lines:
            _LOG.info("%s: %s", one.name, line)
        changes += lines
    return changes


def _root(err: BaseException) -> str:
    while err.__cause__ is not None:
        err = err.__cause__
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
