"""NVIDIA's TensorRT: engines for one GPU architecture, through `tensorrt_rtx` or `tensorrt`, which share their API.

TensorRT for RTX builds for the architectures it knows without a GPU; plain TensorRT only for the GPU it finds.
Networks are strongly typed: precision is what the model says, as its dtypes, casts and Q/DQ nodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Samples, Support, Target
from tvmstack.backends.registry import target_named
from tvmstack.backends.vendor import is_importable, need_static, shortened
from tvmstack.core.errors import BackendError, UsageError, nearest
from tvmstack.core.packages import installed_version
from tvmstack.core.region import Region

__all__ = ["TensorRt", "chosen_module"]

# Those of tensorrt_rtx.ComputeCapability in 1.7; there is no sm90 and no sm100.
_RTX = ("sm86", "sm75", "sm80", "sm89", "sm120", "sm121")
_MODULES = ("tensorrt", "tensorrt_rtx")
_OPTIONS = ("profiles", "tf32")
_LICENCE = "NVIDIA SLA"
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


class TensorRt:
    """Compiles for `smNN`; see docs/reference/backends.md."""

    name = "tensorrt"
    in_process = False

    def probe(self) -> Capability:
        """Say which module is there; only a GPU of a known architecture runs what it builds."""
        gpus = _gpus()
        installed = [m for m in _MODULES if is_importable(m) and installed_version(m)]
        module = chosen_module(installed, bool(gpus))
        if not module:
            missing = "neither tensorrt_rtx nor tensorrt is installed"
            if installed:
                missing = "there is no GPU, and tensorrt builds only for one it finds"
            hint = "pip install 'tvmstack[tensorrt]'"
            return Capability("", False, False, missing=missing, hint=hint, licence=_LICENCE)
        runs = any(t.runs_here for t in self.targets())
        return Capability(f"{module} {installed_version(module)}", True, runs, licence=_LICENCE)

    def targets(self) -> Sequence[Target]:
        """Return the architectures; plain `tensorrt` knows only those of the GPUs here.

        A network may hold half precision, hence the tolerance; it was never checked on a GPU.
        """
        gpus = _gpus()
        module = chosen_module([m for m in _MODULES if is_importable(m) and installed_version(m)], bool(gpus))
        names = tuple(dict.fromkeys(gpus)) if module == "tensorrt" else _RTX
        return [Target(n, "gpu", runs_here=bool(module) and n in gpus, rtol=1e-2, atol=1e-3) for n in names]

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """Ask the parser which nodes it takes, and why it refuses others.

        Raises:
            BackendError: the library is missing, or cannot read the model at all.
        """
        import onnx

        target_named(self, target.name)
        build = _Build(self.probe())
        network = build.network()  # the parser does not keep it alive
        parser = build.parser(network)
        taken_whole = parser.supports_model_v2(model)
        nodes = [(n.name, n.op_type) for n in onnx.load_from_string(model).graph.node]
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        refused = {nodes[at][0]: _reason(e) for e in errors if (at := _place(e, nodes)) is not None}
        parts = [parser.get_subgraph_nodes(i) for i in range(parser.num_subgraphs)]
        taken = {nodes[index][0] for part in parts for index in part}
        if not taken_whole and not refused and len(taken) == len(nodes):
            raise BackendError(f"TensorRT's parser refuses the model: {build.complaints()}")
        left = NodeVerdict(Support.UNSUPPORTED, "TensorRT's parser leaves it out")
        ok = NodeVerdict(Support.SUPPORTED)
        return {
            name: NodeVerdict(Support.UNSUPPORTED, refused[name]) if name in refused else ok if name in taken else left
            for name, _ in nodes
        }

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """Return None: there is no figure without a GPU."""
        return None

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """Build a serialised engine.

        `options.extra` may hold "tf32" (false: products of float32 keep all their bits) and "profiles":
        {input: [min, opt, max]}, shapes for inputs with dynamic dims.

        Raises:
            UsageError: `options.extra` holds what is no option, or a profile does not fit its input.
            BackendError: a shape is dynamic and has no profile, or TensorRT refuses the region.
        """
        profiles = _profiles(region, options)
        if not profiles:
            need_static(region, self.name)
        target_named(self, target.name)
        build = _Build(self.probe())
        network = build.network()
        parser = build.parser(network)
        if not parser.parse(region.model):
            reasons = "; ".join(_reason(parser.get_error(i)) for i in range(parser.num_errors))
            raise BackendError(f"TensorRT refuses region {region.digest}: {reasons or build.complaints()}")
        _need_same_dtypes(region, network)
        engine = build.engine(network, target.name, options, profiles)
        if engine is None:
            raise BackendError(f"TensorRT builds no engine of {region.digest} for {target.name}: {build.complaints()}")
        versions = {build.module: installed_version(build.module)}
        log = shortened("\n".join(build.lines))
        return Blob(bytes(engine), self.name, target.name, self.name, region.inputs, region.outputs, versions, log=log)


def chosen_module(installed: Sequence[str], has_gpu: bool) -> str:
    """Return the module that builds: plain `tensorrt` where it has a GPU, else `tensorrt_rtx`; "" where neither can."""
    if "tensorrt" in installed and has_gpu:
        return "tensorrt"
    return "tensorrt_rtx" if "tensorrt_rtx" in installed else ""


class _Build:
    """The vendor's builder and what it says; for one call."""

    def __init__(self, ability: Capability) -> None:
        if not ability.can_compile:
            raise BackendError(f"tensorrt: {ability.missing}: {ability.hint}")
        self.module = ability.version.split()[0]
        self.vendor = importlib.import_module(self.module)
        self.lines: list[str] = []
        self.logger = _logger(self.vendor, self.lines)
        self.builder = self.vendor.Builder(self.logger)

    def network(self) -> Any:
        flags = getattr(self.vendor.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return self.builder.create_network(0 if flags is None else 1 << int(flags))

    def parser(self, network: Any) -> Any:
        return self.vendor.OnnxParser(network, self.logger)

    def engine(
        self, network: Any, target: str, options: Options, profiles: Mapping[str, Sequence[Sequence[int]]]
    ) -> Any:
        config = self.builder.create_builder_config()
        if options.threads:
            self.builder.max_threads = options.threads
        if not options.extra.get("tf32", False):
            config.clear_flag(self.vendor.BuilderFlag.TF32)
        if self.module == "tensorrt_rtx":
            config.num_compute_capabilities = 1
            config.set_compute_capability(getattr(self.vendor.ComputeCapability, target.upper()), 0)
        if profiles:
            profile = self.builder.create_optimization_profile()
            for name, (low, best, high) in profiles.items():
                profile.set_shape(name, tuple(low), tuple(best), tuple(high))
            config.add_optimization_profile(profile)
        return self.builder.build_serialized_network(network, config)

    def complaints(self) -> str:
        errors = [line for line in self.lines if "ERROR" in line.split(":", maxsplit=1)[0]]
        return " ".join(errors[-1].split()) if errors else "it gives no reason"


def _gpus() -> tuple[str, ...]:
    from tvmstack.runtime.engines.cuda import gpu_targets

    return gpu_targets()


def _logger(vendor: Any, lines: list[str]) -> Any:
    class Kept(vendor.ILogger):
        def __init__(self) -> None:
            vendor.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity.name in {"INTERNAL_ERROR", "ERROR", "WARNING"}:
                lines.append(f"{severity.name}: {text}")

    return Kept()


def _place(error: Any, nodes: Sequence[tuple[str, str]]) -> int | None:
    """Return the place of the refused node; in a body (If, Loop) the parser counts anew, and the name decides."""
    index = int(error.node())
    if 0 <= index < len(nodes) and nodes[index] == (error.node_name(), error.node_operator()):
        return index
    return next((i for i, (name, _) in enumerate(nodes) if name == error.node_name()), None)


def _reason(error: Any) -> str:
    words, kind = " ".join(str(error.desc()).split()), error.node_operator()
    if "Plugin not found" in words or words == "false":
        words = f"it takes no {kind} like this one" if words == "false" else f"it has no operator {kind}"
    return f"TensorRT's parser refuses {kind} {error.node_name()} ({error.code().name}): {words}"


def _need_same_dtypes(region: Region, network: Any) -> None:
    given = {t.name: t for t in (network.get_input(i) for i in range(network.num_inputs))}
    given |= {t.name: t for t in (network.get_output(i) for i in range(network.num_outputs))}
    for spec in (*region.inputs, *region.outputs):
        if spec.name not in given:
            raise BackendError(f"TensorRT's network of region {region.digest} has no tensor {spec.name}")
        dtype = _DTYPES.get(given[spec.name].dtype.name, given[spec.name].dtype.name)
        if dtype != spec.dtype:
            raise BackendError(f"TensorRT makes {spec.name} {dtype}, the model has it as {spec.dtype}")


def _profiles(region: Region, options: Options) -> dict[str, list[list[int]]]:
    for name in options.extra:
        if name not in _OPTIONS:
            raise UsageError(f"tensorrt has no option {name!r}; {nearest(name, _OPTIONS)}")
    shapes = {spec.name: spec.shape for spec in region.inputs}
    asked = dict(options.extra.get("profiles", {}))
    for name, profile in asked.items():
        if name not in shapes:
            raise UsageError(f"a profile is for {name!r}, which is no input; {nearest(name, shapes)}")
        if not _fits(profile, shapes[name]):
            shape = "x".join(str(d) for d in shapes[name])
            raise UsageError(
                f"the profile of {name} must be [min, opt, max], rising shapes that fit {shape}: {profile}"
            )
    dynamic = [spec.name for spec in region.inputs if not spec.is_static]
    if asked and (without := [name for name in dynamic if name not in asked]):
        raise UsageError(f"input {without[0]} has dynamic dims, but no profile")
    return asked


def _fits(profile: Any, shape: Sequence[int | str]) -> bool:
    if len(profile) != 3 or any(len(one) != len(shape) for one in profile):
        return False
    return all(
        0 <= low <= best <= high and (not isinstance(dim, int) or low == high == dim)
        for low, best, high, dim in zip(*profile, shape, strict=True)
    )
