"""torch programs, through torch's own ONNX exporter. torch is optional and only imported for a source that needs it."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir

from tvmstack.core.errors import ModelError, SetupError, UsageError
from tvmstack.frontend.onnx_file import Loaded

__all__ = ["from_file", "from_torch", "is_torch_object"]

_LOG = logging.getLogger(__name__)


def is_torch_object(source: Any) -> bool:
    """Whether the source is an exported program or a module of torch's; found without importing torch."""
    names = {(c.__module__.split(".")[0], c.__name__) for c in type(source).__mro__}
    return bool(names & {("torch", "Module"), ("torch", "ExportedProgram")})


def from_file(path: Path) -> Loaded:
    """Load a program that torch.export.save wrote."""
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    torch = _import_torch()
    try:
        program = torch.export.load(str(path))
    except Exception as err:
        raise ModelError(f"cannot load {path} as a torch.export program: {_line(err)}") from err
    return _export(torch, program, (), {}, path.name)


def from_torch(source: Any, sample_inputs: Any = None) -> Loaded:
    """Export a torch.export program, or a module with the inputs to trace it with."""
    torch = _import_torch()
    if isinstance(source, torch.export.ExportedProgram):
        return _export(torch, source, (), {}, "torch.export program")
    if sample_inputs is None:
        raise UsageError(
            "a torch.nn.Module needs sample_inputs: a tuple of positional or a mapping of keyword arguments"
        )
    keywords = dict(sample_inputs) if isinstance(sample_inputs, Mapping) else {}
    arguments = () if keywords else sample_inputs if isinstance(sample_inputs, tuple) else (sample_inputs,)
    was_training = source.training
    source.eval()
    try:
        return _export(torch, source, arguments, keywords, type(source).__name__)
    finally:
        source.train(was_training)


def _export(torch: Any, program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Loaded:
    try:
        exported = torch.onnx.export(program, args, kwargs=kwargs, dynamo=True, verbose=False, optimize=True)
    except ImportError as err:
        raise SetupError(f"torch's ONNX exporter needs {err.name}: pip install 'tvmstack[torch]'") from err
    except Exception as err:
        raise ModelError(f"torch cannot export {name} to ONNX: {_line(err)}") from err
    model = exported.model
    _LOG.info("exported %s to ONNX opset %s", name, model.graph.opset_imports.get(""))
    return Loaded(model, name, _digest(model))


def _digest(model: onnx_ir.Model) -> str:
    """Digest the graph's text and its weights one by one: together they may be larger than a protobuf can be."""
    digest = hashlib.sha256()
    for node in model.graph.all_nodes():
        attributes = sorted(str(a) for a in node.attributes.values())
        digest.update(f"{node.op_identifier()}{[v and v.name for v in node.inputs]}{attributes}".encode())
    for name, value in model.graph.initializers.items():
        digest.update(name.encode())
        if value.const_value is not None:
            digest.update(value.const_value.tobytes())
    return digest.hexdigest()


def _import_torch() -> Any:
    try:
        torch = importlib.import_module("torch")
        for part in ("torch.export", "torch.onnx"):
            importlib.import_module(part)
    except ImportError as err:
        raise SetupError("this source needs torch, which is not installed: pip install 'tvmstack[torch]'") from err
    return torch


def _line(err: BaseException) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
