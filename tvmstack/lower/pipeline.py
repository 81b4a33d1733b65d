"""The one preparation that tuning and building share: a Relax module in, fused and unscheduled TIR kernels out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmstack._tvm import relax, relax_transform, tvm
from tvmstack.core.device import Device
from tvmstack.core.kernel import Kernel
from tvmstack.lower.algorithms import Picker, Site, estimate_algorithm, in_name
from tvmstack.lower.gpu import GPU_LEGALIZE
from tvmstack.lower.layout import choose_layouts
from tvmstack.lower.legalize import LEGALIZE
from tvmstack.lower.origins import nodes_of_kernels, without_origins
from tvmstack.schedules.cpu.blocks import open_schedule

__all__ = ["GPU_PIPELINE", "PIPELINE", "Lowered", "Pipeline", "lower_module", "pipeline_of", "workload_text"]

# Constants up to this size stay in the module; larger ones travel as weights, memory-mapped by the runtime.
_INLINE_BYTES = 256
_OPAQUE = 8


@dataclass(frozen=True)
class Pipeline:
    """The passes that prepare a module, as a value: logged, hashed into records, kept in the manifest."""

    steps: tuple[str, ...]

    @property
    def text(self) -> str:
        """The passes in order, one word each."""
        return " > ".join(self.steps)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change when the preparation does."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


PIPELINE = Pipeline(
    (
        "decompose-for-inference",
        "canonicalize",
        "choose-layouts@2",
        "dead-code",
        "legalize@1",
        "fold-constant",
        "common-subexpressions",
        "concat-apart",
        "annotate-patterns",
        "fuse-ops",
        "fuse-tir",
        "dead-code",
        "lift-weights",
    )
)


GPU_PIPELINE = Pipeline(
    (
        "decompose-for-inference",
        "canonicalize",
        "plain-layouts",
        "legalize-gpu@1",
        "fold-constant",
        "common-subexpressions",
        "concat-apart",
        "annotate-patterns",
        "fuse-ops",
        "fuse-tir",
        "dead-code",
        "lift-weights",
    )
)
"""For GPUs: tensors stay as the model has them, every heavy operator is a matrix product (`lower.gpu`)."""


def pipeline_of(device: Device) -> Pipeline:
    """Return the pipeline of the family a device belongs to."""
    return GPU_PIPELINE if device.sm else PIPELINE


@dataclass(frozen=True)
class Lowered:
    """A module ready for scheduling.

    Attributes:
        mod: Relax `main` that calls fused, unscheduled TIR functions; its parameters are the inputs, then the weights.
        weights: one array for each weight parameter, in order.
        kernels: the TIR functions, those that take most work first.
        pipeline: how the module was prepared.
        device: what it was prepared for.
    """

    mod: Any
    weights: tuple[np.ndarray, ...]
    kernels: tuple[Kernel, ...]
    pipeline: Pipeline
    device: Device


def lower_module(mod: Any, device: Device, pick: Picker = estimate_algorithm) -> Lowered:
    """Prepare an imported Relax module for `device`; `pick` decides the algorithms of its convolutions."""
    layouts = tvm.transform.module_pass(lambda m, _: choose_layouts(m, device, pick), opt_level=0, name="ChooseLayouts")
    passes: Sequence[Any] = (
        relax_transform.DecomposeOpsForInference(),
        relax_transform.CanonicalizeBindings(),
        *(() if device.sm else (layouts,)),
        relax_transform.DeadCodeElimination(["main"]),
        relax_transform.LegalizeOps(GPU_LEGALIZE if device.sm else LEGALIZE),
        relax_transform.FoldConstant(),
        relax_transform.EliminateCommonSubexpr(),
        tvm.transform.module_pass(lambda m, _: _keep_concat_apart(m), opt_level=0, name="KeepConcatApart"),
        relax_transform.AnnotateTIROpPattern(),
    )
    with tvm.target.Target(device.target()), tvm.transform.PassContext(opt_level=3):
        for step in passes:
            mod = step(mod)
        fused = relax_transform.FuseOps()(mod)
        nodes = nodes_of_kernels(mod, fused)
        mod = relax_transform.DeadCodeElimination(["main"])(relax_transform.FuseTIR()(without_origins(fused)))
    mod, weights = _lift_weights(mod)
    return Lowered(mod, weights, _kernels(mod, nodes, device), pipeline_of(device), device)


def _keep_concat_apart(mod: Any) -> Any:
    """Mark concatenations as opaque to fusion."""
    for gv, func in list(mod.functions.items()):
        if isinstance(func, tvm.tirx.PrimFunc) and gv.name_hint.startswith("concat"):
            mod[gv] = func.with_attr("op_pattern", _OPAQUE)
    return mod


def _lift_weights(mod: Any) -> tuple[Any, tuple[np.ndarray, ...]]:
    """Turn the large constants of `main` into parameters behind the inputs."""
    main = mod["main"]
    lifted: dict[Any, Any] = {}
    arrays: list[np.ndarray] = []

    @relax.expr_functor.mutator
    class Lift(relax.PyExprMutator):
        def visit_generic_const_(self, op: Any) -> Any:
            array = op.value.numpy()
            if array.nbytes <= _INLINE_BYTES:
                return op
            if op not in lifted:
                lifted[op] = relax.Var(f"weight_{len(arrays)}", op.ty)
                arrays.append(array)
            return lifted[op]

    body = Lift().visit_expr(main.body)
    params = [*main.params, *lifted.values()]
    func = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    mod = mod.clone()
    mod["main"] = func.with_attr("num_input", len(main.params))
    return mod, tuple(arrays)


def _kernels(mod: Any, nodes: Mapping[str, tuple[str, ...]], device: Device) -> tuple[Kernel, ...]:
    from tvmstack import schedules

    calls: dict[str, int] = {}
    weights: dict[str, tuple[int, ...]] = {}
    lifted = set(mod["main"].params[int(mod["main"].attrs["num_input"]) :])

    def count(expr: Any) -> None:
        if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == "relax.call_tir":
            name = expr.args[0].name_hint
            calls[name] = calls.get(name, 0) + 1
            weights[name] = tuple(i for i, arg in enumerate(expr.args[1].fields) if arg in lifted)

    relax.analysis.post_order_visit(mod["main"], count)
    found = []
    for gv, func in mod.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc):
            func = func.with_attr("global_symbol", gv.name_hint)
            algorithm, site = in_name(gv.name_hint)
            found.append(
                Kernel(
                    name=gv.name_hint,
                    func=func,
                    workload=workload_text(func),
                    calls=calls.get(gv.name_hint, 0),
                    flops=Site.parse(site).flops if site else _flops(func),
                    bytes=_bytes(func),
                    template=schedules.template_name(func, device),
                    algorithm=algorithm,
                    site=site,
                    weights=weights.get(gv.name_hint, ()),
                    nodes=nodes.get(gv.name_hint, ()),
                )
            )
    return tuple(sorted(found, key=lambda k: (-k.flops * k.calls, k.name)))


def workload_text(func: Any) -> str:
    """Return the text of a function without its name: equal text is the same work.

    Parameters are called by their position, since their names say where in a model the function stands.
    """
    text = str(func.without_attr("global_symbol").script(show_meta=True))
    start = text.index("def main(")
    header = text[start : text.index("):\n", start)]
    for index, name in enumerate(re.findall(r"(\w+): T\.(?:Buffer|handle)", header)):
        text = re.sub(rf"\b{re.escape(name)}\b", f"arg_{index}", text)
    return text


def _flops(func: Any) -> float:
    """Count two operations for each step of a reduction and one for each element of any other block."""
    work, total = open_schedule(func), 0.0
    for block in work.blocks:
        variables = work.sch.get(block).iter_vars
        steps = 1.0
        for var in variables:
            steps *= int(var.dom.extent)
        total += steps * (2.0 if any(int(v.iter_type) == 2 for v in variables) else 1.0)
    return total


def _bytes(func: Any) -> float:
    total = 0.0
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        if shape is None:
            continue
        size = 1.0
        for dim in getattr(shape, "values", shape):
            size *= int(dim)
        total += size * np.dtype(_numpy_name(str(param.ty.dtype))).itemsize
    return total


def _numpy_name(dtype: str) -> str:
    return {"bool": "uint8", "bfloat16": "uint16"}.get(dtype, dtype)
