"""Old operator sets are raised, so that later passes and the lowering meet one meaning of each operator."""

from __future__ import annotations

import logging

import onnx
import onnx_ir
from onnxscript.version_converter import ConvertVersionPass

from tvmstack.graph.values import opset_of, subgraphs_of

__all__ = ["name", "run"]

name = "raise-opset"
# The first with LayerNormalization; what onnx's converter knows up to here is old and well tried.
_TARGET = 17
_LOG = logging.getLogger(__name__)


def run(model: onnx_ir.Model) -> list[str]:
    """Convert to opset 17 if the model is older; keep it as it is where the converter cannot."""
    version = opset_of(model)
    if version >= _TARGET:
        return []
    if any(True for node in model.graph for _ in subgraphs_of(node)):
        # onnx's converter leaves the nodes of bodies as they are, which then mean something else.
        return _kept(version, "it has If, Loop or Scan bodies")
    if any(node.domain not in ("", "ai.onnx") for node in model.graph):
        return _kept(version, "it has operators of other domains")
    kept_names = [v.name for v in model.graph.outputs]
    quiet = logging.getLogger("onnxscript.version_converter")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        ConvertVersionPass(_TARGET, fallback=True)(model)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as err:
        return _kept(version, str(err).splitlines()[0])
    finally:
        quiet.setLevel(level)
    if opset_of(model) != _TARGET or [v.name for v in model.graph.outputs] != kept_names:
        return _kept(version, "onnx's converter cannot convert it")
    for number, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_converted_{number}"
    return [f"raised opset {version} to {_TARGET}"]


def _kept(version: int, reason: str) -> list[str]:
    _LOG.info("opset %d kept: %s", version, reason)
    return []
