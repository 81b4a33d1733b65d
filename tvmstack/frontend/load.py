"""`load_model`: one entry for every kind of source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir

from tvmstack.core.errors import UsageError
from tvmstack.core.model import Model
from tvmstack.frontend import torch_program
from tvmstack.frontend.freeze import freeze_inputs
from tvmstack.frontend.onnx_file import Loaded, read_bytes, read_path, read_proto
from tvmstack.frontend.shapes import fix_shapes
from tvmstack.frontend.validate import validate
from tvmstack.graph.values import spec_of

__all__ = ["load_model", "save_onnx"]


def load_model(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sample_inputs: Any = None,
    *,
    freeze: Mapping[str, Any] | None = None,
    allow_dynamic: bool = False,
) -> Model:
    """Read a model and fix its input shapes.

    Args:
        source: path of an ONNX file (or of a `.pt2` saved by torch.export), the bytes of one, an `onnx.ModelProto`, an
            `onnx_ir.Model`, a `torch.export.ExportedProgram`, or a `torch.nn.Module` together with `sample_inputs`.
        shapes: input name to dims, for inputs with dynamic dims.
        sample_inputs: for a `torch.nn.Module`: a tuple of positional or a mapping of keyword arguments.
        freeze: input name to a value; such an input becomes a constant of the model.
        allow_dynamic: keep dims that are not fixed, for looking at a model; compilation needs all of them.

    Raises:
        UsageError: a name, a shape or a value does not fit the model's inputs, or a dynamic dim is left.
        ModelError: the model cannot be read or is inconsistent.
        SetupError: the source needs torch, and torch is not usable.
    """
    loaded = _read(source, sample_inputs)
    changes = validate(loaded.graph, loaded.source)
    frozen = freeze_inputs(loaded.graph, freeze or {})
    changes += [f"froze input {name}" for name in frozen]
    changes += fix_shapes(loaded.graph, shapes or {}, loaded.source, allow_dynamic)
    graph = loaded.graph.graph
    return Model(
        loaded.graph,
        tuple(spec_of(v) for v in graph.inputs),
        tuple(spec_of(v) for v in graph.outputs),
        loaded.digest,
        loaded.source,
        tuple(changes),
        frozen,
    )


def save_onnx(model: Model, path: str | os.PathLike[str]) -> Path:
    """Write the model, at any stage before the partition, as an ONNX file; weights over 1 GB go beside it."""
    target = Path(path)
    weights = sum(v.const_value.nbytes for v in model.graph.graph.initializers.values() if v.const_value is not None)
    beside = f"{target.name}.data" if weights > 1 << 30 else None
    if beside is None:
        # The copy shares the weights' arrays; reading external ones into it leaves the model's own on disk.
        whole = onnx_ir.external_data.load_to_model(model.graph.clone())
        onnx_ir.save(whole, target)
    else:
        onnx_ir.save(model.graph, target, external_data=beside)
    return target


def _read(source: Any, sample_inputs: Any) -> Loaded:
    if torch_program.is_torch_object(source):
        return torch_program.from_torch(source, sample_inputs)
    if sample_inputs is not None:
        raise UsageError("sample_inputs go with a torch.nn.Module only")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return read_bytes(bytes(source))
    if isinstance(source, onnx.ModelProto):
        return read_proto(source)
    if isinstance(source, onnx_ir.Model):
        return read_proto(onnx_ir.to_proto(source))
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return torch_program.from_file(path) if path.suffix == ".pt2" else read_path(path)
    raise UsageError(
        f"cannot import an object of type {type(source).__name__}; accepted: a path, bytes, onnx.ModelProto, "
        "torch.export.ExportedProgram or torch.nn.Module with sample_inputs"
    )
