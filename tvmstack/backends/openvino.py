"""Intel's OpenVINO: CPU here; GPU, NPU and AUTO where their drivers are.

Tried with OpenVINO 2026.4 on x86-64. Operators: what `query_model` says, node by node. Dtypes: float32 is computed in
float32, whatever the CPU could do faster; float16 and bfloat16 only where the caller asks, by the option
`INFERENCE_PRECISION_HINT`. Shapes: static ones. Licence: Apache-2.0. Runs in this process. GPU, NPU and AUTO were never
run.

The blob is what `export_model` writes: compiled, so that loading it compiles nothing, and bound to one release and one
instruction set, which OpenVINO checks itself; the artifact is bound to its CPU's features anyway. The hints are not in
the blob: the engine sets them again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Samples, Support, Target
from tvmstack.core.errors import BackendError, UsageError, nearest
from tvmstack.core.packages import installed_version
from tvmstack.core.region import Region

__all__ = ["OpenVino"]

_PACKAGE = "openvino"
_HINT = "pip install 'tvmstack[openvino]'"
_OPTIONS = ("INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT", "EXECUTION_MODE_HINT", "ENABLE_HYPER_THREADING")


class OpenVino:
    """The back end "openvino"."""

    name = "openvino"
    in_process = True

    def probe(self) -> Capability:
        """Say which release is installed."""
        version = installed_version(_PACKAGE).split("-", maxsplit=1)[0]
        missing = "" if version else "openvino is not installed"
        return Capability(version, bool(version), bool(version), False, missing, _HINT, "Apache-2.0")

    def targets(self) -> Sequence[Target]:
        """Return all of them; which have a device here is known only to the library, which is asked late."""
        here = bool(installed_version(_PACKAGE))
        return (
            Target("cpu", "cpu", here),
            Target("gpu", "gpu", False, 1e-2, 1e-2),
            Target("npu", "npu", False, 1e-2, 1e-2),
            Target("auto", "cpu", False, 1e-2, 1e-2),
        )

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """Return for each node whether the device takes it.

        Raises:
            BackendError: OpenVINO is missing, has no such device, or cannot read the model at all.
        """
        import onnx

        proto = onnx.load_from_string(model)
        nodes = [(n.name, n.op_type, list(n.output)) for n in proto.graph.node]
        unknown = _cut_unknown(proto, model)
        core, read = _read(proto.SerializeToString() if unknown else model, target)
        try:
            taken = set(core.query_model(read, _device(target), {}))
        except RuntimeError as err:
            raise BackendError(f"openvino cannot say what {target.name} takes: {_last(err)}") from err
        refused = {op.get_friendly_name(): op for op in read.get_ops() if op.get_friendly_name() not in taken}
        return {
            name: unknown.get(name) or _verdict(name, kind, outputs, refused, target) for name, kind, outputs in nodes
        }

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """Return None: OpenVINO has no figures of its own."""
        return None

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """Compile a region for a device and export it.

        Raises:
            UsageError: `options.extra` holds what is no option.
            BackendError: OpenVINO refuses the region, or would compute in another precision than asked for.
        """
        asked = _asked(options)
        core, read = _read(region.model, target)
        _fix_shapes(read, region)
        properties: dict[str, Any] = {**_DEFAULTS, **asked}
        if target.name == "cpu" and options.threads:
            properties["INFERENCE_NUM_THREADS"] = options.threads
        try:
            compiled = core.compile_model(read, _device(target), properties)
            _require_precision(compiled, properties["INFERENCE_PRECISION_HINT"], target)
            stream = io.BytesIO()
            compiled.export_model(stream)
        except RuntimeError as err:
            raise BackendError(f"openvino refuses region {region.digest} for {target.name}: {_last(err)}") from err
        kept = {**_DEFAULTS, **asked}
        versions = {_PACKAGE: self.probe().version}
        return Blob(stream.getvalue(), self.name, target.name, self.name, region.inputs, region.outputs, versions, kept)


_DEFAULTS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def _asked(options: Options) -> dict[str, str]:
    for name in options.extra:
        if name not in _OPTIONS:
            raise UsageError(f"openvino has no option {name!r} here; {nearest(name, _OPTIONS)}")
    return {name: str(value) for name, value in options.extra.items()}


def _device(target: Target) -> str:
    return target.name.upper()


def _read(model: bytes, target: Target) -> tuple[Any, Any]:
    """Return OpenVINO's core and the model as it reads it."""
    try:
        import openvino
    except ImportError as err:
        raise BackendError(f"openvino is not installed: {_HINT}") from err
    core = openvino.Core()
    here = core.available_devices
    if target.name != "auto" and not any(d.split(".")[0] == _device(target) for d in here):
        raise BackendError(f"openvino finds no {target.name} on this machine; it has: {', '.join(here).lower()}")
    try:
        return core, core.read_model(io.BytesIO(model))
    except RuntimeError as err:
        raise BackendError(f"openvino cannot read the model: {_last(err)}") from err


def _cut_unknown(proto: Any, model: bytes) -> dict[str, NodeVerdict]:
    """Take the nodes whose operators OpenVINO cannot read out of a model; what they made becomes inputs of it."""
    try:
        import openvino

        openvino.Core().read_model(io.BytesIO(model))
    except ImportError:
        return {}
    except RuntimeError as err:
        words = str(err)
    else:
        return {}
    graph, found = proto.graph, {}
    types = {v.name: v for v in (*graph.value_info, *graph.output)}
    for node in list(graph.node):
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if re.search(rf"(?<![\w.]){re.escape(operator)}(?![\w.])", words):
            found[node.name] = NodeVerdict(Support.UNSUPPORTED, f"openvino does not know the operator {operator}")
            graph.input.extend(types[name] for name in node.output if name in types)
            graph.node.remove(node)
    return found


def _fix_shapes(read: Any, region: Region) -> None:
    """Give a region whose model leaves dims open the shapes that its inputs have in the graph."""
    if not read.is_dynamic():
        return
    open_dims = [spec.name for spec in region.inputs if not spec.is_static]
    if open_dims:
        raise BackendError(
            f"openvino is given static shapes only; region {region.digest} has open dims: {open_dims[0]}"
        )
    read.reshape({spec.name: list(spec.shape) for spec in region.inputs})
    if read.is_dynamic():
        raise BackendError(f"region {region.digest} has shapes that depend on data")


def _require_precision(compiled: Any, wanted: str, target: Target) -> None:
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if target.name == "cpu" and used != wanted:
        raise BackendError(f"openvino would compute in {used}, not in {wanted}")


def _verdict(name: str, kind: str, outputs: Sequence[str], refused: Mapping[str, Any], target: Target) -> NodeVerdict:
    """Return SUPPORTED unless an operation that OpenVINO made of this node is refused.

    OpenVINO calls an operation after the node, or after the tensor it makes; a node may become several.
    """
    own = {name, *outputs} - {""}
    guilty = next((op for label, op in refused.items() if label in own or _made_of(label, own)), None)
    if guilty is None:
        return NodeVerdict(Support.SUPPORTED)
    words = f"{target.name} has no {guilty.get_type_name()} of {guilty.get_output_element_type(0).get_type_name()}"
    return NodeVerdict(Support.UNSUPPORTED, f"{kind}: {words}")


def _made_of(label: str, own: set[str]) -> bool:
    return any(label.startswith((f"{word}/", f"{word}:")) for word in own)


def _last(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[-1] if lines else type(err).__name__
