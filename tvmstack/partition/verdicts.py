"""One verdict for each node: may TVM have it, and if not, why not and what would help."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir

from tvmstack.core.errors import UsageError, nearest
from tvmstack.core.model import Model
from tvmstack.core.verdict import Verdict
from tvmstack.graph.values import opset_of, static_shape, subgraphs_of

__all__ = ["judge"]


def judge(model: Model, force_onnxruntime: Collection[str] = ()) -> dict[str, Verdict]:
    """Return node name to verdict for the nodes of the main graph.

    Raises:
        UsageError: a name of `force_onnxruntime` is no node's.
    """
    names = {n.name or "" for n in model.graph.graph}
    for name in force_onnxruntime:
        if name not in names:
            raise UsageError(f"{model.source} has no node {name} after repair; {nearest(name, names)}")
    forced = set(force_onnxruntime)
    return {n.name or "": _forced() if n.name in forced else _verdict(n, model) for n in model.graph.graph}


def _forced() -> Verdict:
    return Verdict.no("given to onnxruntime on request")


def _verdict(node: onnx_ir.Node, model: Model) -> Verdict:
    # Imported late: the table of converters is large and nothing else here needs it.
    from tvmstack.lower.support import supported

    bodies = any(True for _ in subgraphs_of(node))
    if bodies:
        return Verdict.no("it has a body that runs or not, or again, as the data say", _body_hint(node))
    for value in (*node.inputs, *node.outputs):
        problem = None if value is None or value.name == "" else _unfit(value)
        if problem is not None:
            return problem
    return supported(node, opset_of(model.graph, node.domain))


def _body_hint(node: onnx_ir.Node) -> str:
    source = node.inputs[0] if node.inputs else None
    if node.op_type == "If" and source is not None:
        return f"freeze the input that decides {source.name} to have one branch compiled"
    return "a constant number of turns, at most 64, is unrolled"


def _unfit(value: onnx_ir.Value) -> Verdict | None:
    if value.type is not None and not isinstance(value.type, onnx_ir.TensorType):
        return Verdict.no(f"{value.name} is a {type(value.type).__name__.removesuffix('Type').lower()}, not a tensor")
    if value.dtype is None:
        return Verdict.no(f"the type of {value.name} is not known")
    if static_shape(value) is None:
        dims = "unknown" if value.shape is None else f"[{','.join(_dim(d) for d in value.shape)}]"
        return Verdict.no(
            f"the shape of {value.name} is {dims}: it depends on data or on an open dim",
            "fix all input dims with --shape",
        )
    return None


def _dim(dim: int | onnx_ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else (dim.value or "?")
