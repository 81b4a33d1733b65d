"""Qualcomm's Hexagon Tensor Processor: context binaries made by onnxruntime's QNN execution provider.

The provider comes as a plug-in (`onnxruntime-qnn`). It compiles a region into one context binary for one HTP
architecture; on an x86-64 machine the same library emulates the chip, floats in fp32 where the chip computes in fp16.
How near the emulator's integers come to a chip's was never tried. A node that the provider does not take would run on
the CPU without a word: here that is an error.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Samples, Support, Target
from tvmstack.backends.registry import target_named
from tvmstack.backends.vendor import (
    captured,
    is_importable,
    need_static,
    shortened,
)
from tvmstack.core.errors import BackendError
from tvmstack.core.packages import installed_version
from tvmstack.core.region import Region

__all__ = ["QnnBackend"]

_PROVIDER = "QNNExecutionProvider"
# A wrong architecture is accepted by the vendor's library without a word and compiled for another one.
_ARCHITECTURES = (73, 68, 69, 75, 79, 81)
_REFUSAL = re.compile(r"Node name: (?P<name>.*?) Node index: \d+\s+REASON : (?P<reason>[^\n]+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class QnnBackend:
    """Compiles for `htp:vNN`; see docs/reference/backends.md."""

    name = "qnn"
    in_process = False

    def probe(self) -> Capability:
        """Say whether the provider is installed; on x86-64 its emulator runs what it compiled."""
        version, licence = (
            installed_version("onnxruntime-qnn"),
            "MIT, with Qualcomm's AI stack licence for its libraries",
        )
        if not version or not is_importable("onnxruntime_qnn"):
            hint = "pip install 'tvmstack[qnn]'"
            return Capability("", False, False, missing="onnxruntime-qnn is not installed", hint=hint, licence=licence)
        emulates = platform.machine() == "x86_64" and platform.system() == "Linux"
        return Capability(version, can_compile=True, can_run=False, can_simulate=emulates, licence=licence)

    def targets(self) -> Sequence[Target]:
        """Return the architectures of the HTP; v73 is that of Snapdragon 8 Gen 2 and its kin.

        The tolerance is wide: of 23 operators of a quantised MobileNetV2 of random weights, each alone in the emulator
        of v73, 15 came within one quantum of onnxruntime, six within two, and two convolutions were off by four and
        five, each in under 4% of its values; the whole network was off by nine, 7% of its largest value.
        """
        return [Target(f"htp:v{a}", "npu", runs_here=False, rtol=0.1, atol=1e-3) for a in _ARCHITECTURES]

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """Ask the provider which nodes it takes; its reasons are in its log."""
        import onnx

        options = _session_options(_architecture(self, target))
        options.log_severity_level = 0
        options.graph_optimization_level = _onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        with captured() as said:
            session = _open(model, options)
            owners = _owners(session)
        reasons = {m["name"]: m["reason"].strip() for m in _REFUSAL.finditer(_COLOUR.sub("", said.text))}
        names = [n.name for n in onnx.load_from_string(model).graph.node]
        return {name: _verdict(name, owners, reasons) for name in names}

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """Return None: the vendor gives no estimate, and the emulator's time says nothing of the chip's."""
        return None

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """Turn a region into one context binary, wrapped in an ONNX model of one EPContext node.

        Raises:
            BackendError: a shape is dynamic, the provider refuses a node, or it fails.
        """
        need_static(region, self.name)
        architecture = _architecture(self, target)
        config = _session_options(architecture)
        config.log_severity_level = 2
        with tempfile.TemporaryDirectory(prefix="tvmstack-qnn-") as folder:
            path = Path(folder) / "context.onnx"
            entries = {
                "session.disable_cpu_ep_fallback": "1",
                "ep.context_enable": "1",
                "ep.context_embed_mode": "1",
                "ep.context_file_path": str(path),
            }
            for key, value in entries.items():
                config.add_session_config_entry(key, value)
            with captured() as said:
                _open(region.model, config)
            if not path.exists():
                raise BackendError(f"qnn made no context binary for {target.name}: {shortened(said.text)}")
            data = path.read_bytes()
        _need_one_context(data, target.name)
        versions = {p: installed_version(p) for p in ("onnxruntime-qnn", "onnxruntime")}
        told = {"architecture": architecture}
        log = shortened(_COLOUR.sub("", said.text))
        return Blob(data, self.name, target.name, "qnn", region.inputs, region.outputs, versions, told, log)


def _architecture(backend: QnnBackend, target: Target) -> str:
    return target_named(backend, target.name).name.removeprefix("htp:v")


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as err:
        raise BackendError("qnn needs onnxruntime: pip install 'tvmstack[qnn]'") from err
    return onnxruntime


def _session_options(architecture: str) -> Any:
    from tvmstack.runtime.engines.qnn import session_options

    return session_options(architecture)


def _open(model: bytes, options: Any) -> Any:
    try:
        return _onnxruntime().InferenceSession(model, options)
    except Exception as err:  # the border to onnxruntime, whose errors share no class
        words = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise BackendError(f"the QNN provider refuses the region: {words}") from err


def _owners(session: Any) -> dict[str, str]:
    subgraphs = session.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in subgraphs for node in part.get_nodes()}


def _verdict(name: str, owners: Mapping[str, str], reasons: Mapping[str, str]) -> NodeVerdict:
    """A node that neither list knows was rewritten into NHWC and taken under another name."""
    if name not in reasons and owners.get(name, _PROVIDER) == _PROVIDER:
        return NodeVerdict(Support.SUPPORTED)
    return NodeVerdict(Support.UNSUPPORTED, reasons.get(name, "the QNN provider leaves it to the CPU"))


def _need_one_context(data: bytes, target: str) -> None:
    import onnx

    kinds = list(_kinds(onnx.load_from_string(data).graph))
    if kinds != ["EPContext"]:
        raise BackendError(f"qnn did not make one context for {target}, but {', '.join(kinds)}")


def _kinds(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield str(node.op_type)
