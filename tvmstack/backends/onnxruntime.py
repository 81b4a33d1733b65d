"""onnxruntime on the CPU: the floor. It takes what nobody else does; the blob is the region's ONNX model itself.

Tried with onnxruntime 1.32. Operators, dtypes and dynamic shapes: all that its CPU provider has. Licence: MIT. Runs in
this process. The model travels unoptimised: what its optimiser writes is bound to one release and one CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Samples, Support, Target
from tvmstack.core.errors import BackendError
from tvmstack.core.packages import installed_version
from tvmstack.core.region import Region

__all__ = ["OnnxRuntime"]

_PACKAGE = "onnxruntime"


class OnnxRuntime:
    """The back end "onnxruntime"."""

    name = "onnxruntime"
    in_process = True

    def probe(self) -> Capability:
        """Say which release is installed."""
        version = installed_version(_PACKAGE)
        missing = "" if version else "onnxruntime is not installed"
        return Capability(version, bool(version), bool(version), False, missing, "pip install onnxruntime", "MIT")

    def targets(self) -> Sequence[Target]:
        """Return the CPU."""
        return (Target("cpu", "cpu", runs_here=bool(installed_version(_PACKAGE))),)

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """Return for each node whether onnxruntime has a kernel for it, each tried in a model of its own.

        Where the whole model opens, every node is taken.
        """
        import onnx

        proto = onnx.load_from_string(model)
        names = [node.name for node in proto.graph.node]
        refused = _refusal(model)
        if not refused:
            return {name: NodeVerdict(Support.SUPPORTED) for name in names}
        unknown = {(domain, kind) for domain, kind in re.findall(r"([\w.]+):(\w+)\(-?\d+\)", refused)}
        guilty = _named_in(refused, names) or {n.name for n in proto.graph.node if (n.domain, n.op_type) in unknown}
        if not guilty:
            raise BackendError(f"onnxruntime refuses the model and names no node: {refused}")
        taken = NodeVerdict(Support.SUPPORTED)
        return {n: NodeVerdict(Support.UNSUPPORTED, refused) if n in guilty else taken for n in names}

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """Return None: where it can compile it can be measured."""
        return None

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """Return the model itself, once onnxruntime has opened it.

        Raises:
            BackendError: it refuses the region.
        """
        refused = _refusal(region.model)
        if refused:
            raise BackendError(f"onnxruntime refuses region {region.digest}: {refused}")
        versions = {_PACKAGE: ""}
        return Blob(region.model, self.name, target.name, self.name, region.inputs, region.outputs, versions)


def _named_in(words: str, names: Sequence[str]) -> set[str]:
    """Return the nodes that an error names; a name inside a longer one does not count."""
    return {n for n in names if n and re.search(rf"(?<![\w./]){re.escape(n)}(?![\w/])", words)}


def _refusal(model: bytes) -> str:
    try:
        import onnxruntime
    except ImportError as err:
        raise BackendError("onnxruntime is not installed: pip install onnxruntime") from err
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as err:  # noqa: BLE001  (the border to onnxruntime, whose errors share no class)
        return (str(err).strip() or type(err).__name__).splitlines()[0]
    return ""
