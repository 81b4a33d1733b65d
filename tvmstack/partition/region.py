"""Cutting a `Region` out of the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import onnx
import onnx_ir

from tvmstack.core.errors import ModelError
from tvmstack.core.model import Model
from tvmstack.core.region import Region
from tvmstack.graph.values import captured_values, spec_of, static_shape, subgraphs_of

__all__ = ["cut"]

_PROTOBUF_LIMIT = (1 << 31) - 1


def cut(
    model: Model, nodes: Sequence[onnx_ir.Node], reasons: Sequence[str], describe: bool = False
) -> tuple[Region, list[onnx_ir.Value], list[onnx_ir.Value]]:
    """Return the region that the nodes form, and the graph's values it reads and writes.

    With `describe` its model says types and shapes of inner values too, which vendors' tools decide by.

    Raises:
        ModelError: the region is over 2 GB.
    """
    inputs, weights, outputs = _border(model.graph.graph, nodes)
    inner = [v for n in nodes for v in n.outputs if v.name and v not in outputs] if describe else []
    data = _serialize(model, nodes, inputs, weights, outputs, inner)
    region = Region(
        hashlib.sha256(data).hexdigest()[:16],
        data,
        tuple(spec_of(v) for v in inputs),
        tuple(spec_of(v) for v in outputs),
        tuple(n.name or "" for n in nodes),
        tuple(dict.fromkeys(reasons)),
    )
    return region, inputs, outputs


def _border(
    graph: onnx_ir.Graph,
    nodes: Sequence[onnx_ir.Node],
) -> tuple[list[onnx_ir.Value], list[onnx_ir.Value], list[onnx_ir.Value]]:
    inside = set(nodes)
    made = {v for n in nodes for v in n.outputs}
    read: dict[onnx_ir.Value, None] = {}
    for node in nodes:
        read.update(dict.fromkeys(v for v in _reads(node) if v not in made))
    wanted = {v for n in graph if n not in inside for v in _reads(n)}
    inputs = [v for v in read if not v.is_initializer()]
    weights = [v for v in read if v.is_initializer()]
    outputs = [v for n in nodes for v in n.outputs if v.name and (v.is_graph_output() or v in wanted)]
    return inputs, weights, outputs


def _reads(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    return [v for v in (*node.inputs, *captured_values(node)) if v is not None and v.name != ""]


def _serialize(
    model: Model,
    nodes: Sequence[onnx_ir.Node],
    inputs: Sequence[onnx_ir.Value],
    weights: Sequence[onnx_ir.Value],
    outputs: Sequence[onnx_ir.Value],
    inner: Sequence[onnx_ir.Value],
) -> bytes:
    size = sum(w.const_value.nbytes for w in weights if w.const_value is not None)
    if size > _PROTOBUF_LIMIT:
        raise ModelError(
            f"{model.source}: the {len(nodes)} nodes from {nodes[0].name} on, which onnxruntime would run, hold "
            f"{size >> 20} MB of weights; a region can hold 2 GB at most"
        )
    proto = onnx.ModelProto(ir_version=min(model.graph.ir_version, 10), producer_name="tvmstack")
    used = {n.domain for n in nodes} | {n.domain for top in nodes for n in _inner(top)}
    for domain, version in sorted(model.graph.opset_imports.items()):
        if domain in used or domain in ("", "ai.onnx"):
            proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    proto.graph.name = "region"
    proto.graph.node.extend(onnx_ir.serde.serialize_node(n) for n in nodes)
    proto.graph.input.extend(onnx_ir.serde.serialize_value(v) for v in inputs)
    proto.graph.output.extend(onnx_ir.serde.serialize_value(v) for v in outputs)
    known = [v for v in inner if v.type is not None and static_shape(v) is not None]
    proto.graph.value_info.extend(onnx_ir.serde.serialize_value(v) for v in known)
    if any(True for node in nodes for _ in subgraphs_of(node)):
        del proto.graph.value_info[:]
        # a body that never runs may contradict the fixed shapes, and onnxruntime would refuse the region for it
        for info in (*proto.graph.input, *proto.graph.output):
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    for value in weights:
        assert value.const_value is not None
        proto.graph.initializer.append(_tensor(value))
    return bytes(proto.SerializeToString(deterministic=True))


def _tensor(value: onnx_ir.Value) -> onnx.TensorProto:
    """Return the weight with its data inside, also where the model keeps it in a file."""
    tensor = value.const_value
    assert tensor is not None
    if tensor.dtype == onnx_ir.DataType.STRING:
        return onnx_ir.serde.serialize_tensor(tensor)
    return onnx.TensorProto(
        name=value.name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()), raw_data=tensor.tobytes()
    )


def _inner(node: onnx_ir.Node) -> list[onnx_ir.Node]:
    return [n for body in subgraphs_of(node) for n in body.all_nodes()]
