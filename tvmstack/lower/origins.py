"""Which ONNX nodes each kernel computes, carried from the importer through the passes without changing what they do.

Bindings are told apart by their variables' names, which are unique in `main` until operators are fused; what is known
of them travels as an attribute of `main`. A binding that a pass adds in front of another belongs to the same node.
Which bindings fusion joins is read from a copy of the module in which every call has a function of its own: in the
original, equal groups become one function and only the names of the first are left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir

from tvmstack._tvm import relax, relax_transform, tvm
from tvmstack.core.kernel import Kernel

__all__ = ["OriginBuilder", "binding_origins", "node_label", "nodes_of_kernels", "with_silent_nodes", "without_origins"]

_ATTRIBUTE = "tvmstack.origins"
# Kernels that only move numbers; emitted for another kind of node they bring its operands into the layout it wants.
_MOVES = ("reshape", "to_blocked", "from_blocked", "transpose")


class OriginBuilder(relax.BlockBuilder):
    """A builder that remembers for which node each binding was emitted.

    Attributes:
        node: the node being worked on.
    """

    def __init__(self, mod: Any = None) -> None:
        super().__init__(mod)
        self.node = ""
        self._origins: dict[str, str] = {}

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """Bind an expression, see `relax.BlockBuilder.emit`."""
        var = super().emit(expr, name_hint)
        self._origins[str(var.name)] = self.node
        return var

    def emit_output(self, output: Any, name_hint: str = "") -> Any:
        """Bind what a block gives, see `relax.BlockBuilder.emit_output`; passes may let it stand for what it names."""
        var = super().emit_output(output, name_hint)
        if isinstance(output, relax.Var):
            self._origins[str(var.name)] = self._origins.get(str(output.name), "")
        return var

    def noted(self, main: Any) -> Any:
        """Return the finished function with what was remembered."""
        return main.with_attr(_ATTRIBUTE, json.dumps(self._origins))


def node_label(node: onnx_ir.Node) -> str:
    """Return a node's name, or what tells one without a name apart."""
    return node.name or f"{node.op_type} of {next((v.name for v in node.outputs if v.name), '')}"


def binding_origins(main: Any) -> dict[Any, str]:
    """Return the node of each bound variable, "" where nothing is known."""
    noted = main.attrs.get(_ATTRIBUTE) if main.attrs else None
    known: Mapping[str, str] = json.loads(str(noted)) if noted else {}
    origins: dict[Any, str] = {}
    node = ""
    for binding in reversed(_bindings(main)):
        node = known.get(str(binding.var.name)) or node
        origins[binding.var] = node
    return origins


def without_origins(mod: Any) -> Any:
    """Return the module without the attribute, once it is of no more use."""
    mod = mod.clone()
    mod["main"] = mod["main"].without_attr(_ATTRIBUTE)
    return mod


def nodes_of_kernels(unfused: Any, fused: Any) -> dict[str, tuple[str, ...]]:
    """Return the nodes that each kernel of `fused` computes at any of its calls.

    Args:
        unfused: the module as `FuseOps` took it.
        fused: what `FuseOps` made of it.
    """
    copy, parts_of = _numbered(unfused)
    calls, numbered = _calls(fused), _calls(relax_transform.FuseOps()(copy))
    if [len(parts) for _, parts in calls] != [len(parts) for _, parts in numbered]:
        return {}
    computed = {node for node, kernel in parts_of.values() if not kernel.startswith(_MOVES)}
    found: dict[str, dict[str, None]] = {}
    for (name, _), (_, parts) in zip(calls, numbered, strict=True):
        own = [parts_of[part] for part in parts if parts_of[part][0]]
        # a node that is computed elsewhere is named here only where there is no other reason for this kernel
        nodes = [node for node, kernel in own if node not in computed or not kernel.startswith(_MOVES)]
        found.setdefault(name, {}).update(dict.fromkeys(nodes or [node for node, _ in own]))
    return {name: tuple(nodes) for name, nodes in found.items()}


def _numbered(mod: Any) -> tuple[Any, dict[str, tuple[str, str]]]:
    """Return a copy where each call of a kernel calls one of its own; of each of these the node and the kernel."""
    origins, copy = binding_origins(mod["main"]), mod.clone()
    parts: dict[str, tuple[str, str]] = {}
    blocks = []
    for block in mod["main"].body.blocks:
        bindings = []
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and _is_kernel_call(binding.value):
                old = binding.value.args[0]
                new = tvm.ir.GlobalVar(f"call_{len(parts)}")
                relax.expr._update_type(new, old.ty)
                copy[new] = mod[old]
                parts[new.name_hint] = (origins[binding.var], old.name_hint)
                call = binding.value
                value = tvm.ir.Call(call.op, [new, *call.args[1:]], call.attrs, call.ty_args, None, call.ty)
                binding = relax.VarBinding(binding.var, value)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    main = mod["main"]
    body = relax.SeqExpr(blocks, main.body.body)
    copy["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return copy, parts


def _calls(mod: Any) -> list[tuple[str, list[str]]]:
    """Return each call of a kernel in `main`, in order: its name, and the names of the kernels that it joins."""
    calls = []
    for binding in _bindings(mod["main"]):
        value = binding.value
        if _is_kernel_call(value):
            calls.append((value.args[0].name_hint, [value.args[0].name_hint]))
        elif isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            inner = [b.value for b in _bindings(mod[value.op])]
            calls.append((value.op.name_hint, [v.args[0].name_hint for v in inner if _is_kernel_call(v)]))
    return calls


def _bindings(func: Any) -> list[Any]:
    return [binding for block in func.body.blocks for binding in block.bindings]


def _is_kernel_call(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == "relax.call_tir"


def with_silent_nodes(graph: onnx_ir.Graph, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Add to kernels the nodes that left no call of their own because a kernel does their work as it reads.

    Such a node was drawn into the kernel of a node that reads its result: a transposition that a matrix product looks
    through, the softmax inside an attention. Of several kernels of the reader it is the one with the most work. Nodes
    of constants alone are computed while compiling, by no kernel.
    """
    found = {kernel.name: dict.fromkeys(kernel.nodes) for kernel in kernels}
    serving: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        for node in kernel.nodes:
            serving.setdefault(node, []).append(kernel)
    nodes = list(graph)
    for node in reversed(nodes):
        label = node_label(node)
        if label in serving or all(v is None or v.const_value is not None for v in node.inputs):
            continue
        readers = {node_label(use.node) for value in node.outputs for use in value.uses()}
        candidates = [serving[reader] for reader in sorted(readers) if serving.get(reader)]
        serving[label] = list({k.name: k for k in (max(some, key=lambda k: k.flops) for some in candidates)}.values())
        for kernel in serving[label]:
            found[kernel.name][label] = None
    order = {node_label(node): index for index, node in enumerate(nodes)}
    return tuple(
        replace(kernel, nodes=tuple(sorted(found[kernel.name], key=lambda n: order.get(n, -1)))) for kernel in kernels
    )
