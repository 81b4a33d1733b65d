"""The protocol between tvmstack and a back end that takes regions of a model: a vendor's toolchain, or a stranger's.

A back end is a class without arguments, named in the entry-point group `tvmstack.backends`. It says what is installed
(`probe`), for what it can compile (`targets`), which nodes it takes (`query`), what a region costs (`estimate`), and
turns a region into a `Blob` (`compile`). The blob travels inside the artifact; the engine that its `runtime` names runs
it there, without the back end. Importing a back end's module never imports the vendor's library: that happens in a
worker process (`tvmstack.backends.worker`), unless the back end declares itself `in_process`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region

__all__ = ["Backend", "Blob", "Capability", "Cost", "NodeVerdict", "Options", "Support", "Target"]


class Support(Enum):
    """Who runs a node when a back end is given it."""

    SUPPORTED = "supported"
    VENDOR_CPU = "vendor_cpu"  # taken, but it would fall back to the vendor's code on the CPU
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class NodeVerdict:
    """A back end's answer for one node; `reason` says why it is not plainly SUPPORTED, `hint` what would help."""

    support: Support
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Capability:
    """What a back end can do on this machine.

    Attributes:
        version: the vendor library's version; "" where it is missing.
        can_compile: whether `compile` works here.
        can_run: whether a blob for at least one target runs on this machine's hardware.
        can_simulate: whether a blob's numbers can be checked here by the vendor's simulator or emulator.
        missing: what is missing, in words; "" where nothing is.
        hint: the command or step that gets it.
        licence: of the vendor library.
    """

    version: str
    can_compile: bool
    can_run: bool
    can_simulate: bool = False
    missing: str = ""
    hint: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Target:
    """Something a back end compiles for.

    Attributes:
        name: "cpu", "rk3588", "htp:v73", "sm89", "ethos-u55-128".
        kind: "cpu", "gpu" or "npu".
        runs_here: whether blobs for it run on this machine, so that they can be measured.
        rtol, atol: how far its results may be from the original model's, relative to the largest value, in float32 and
            in quantised models alike; wider for targets that compute in half precision.
    """

    name: str
    kind: str
    runs_here: bool
    rtol: float = 1e-3
    atol: float = 1e-4


@dataclass(frozen=True)
class Options:
    """What a caller wants of a compilation; None means "choose for me".

    Attributes:
        threads: CPU threads the region may use.
        seconds: a limit for the vendor's compiler.
        extra: the back end's own options, by name.
    """

    threads: int | None = None
    seconds: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Seconds one call of a region takes, without the copies at its border.

    `source` is "measured" (ran here) or "estimated" (the vendor's figure, or the back end's own model).
    """

    seconds: float
    source: str


@dataclass(frozen=True)
class Blob:
    """What travels in the artifact.

    Attributes:
        data: the bytes.
        backend: name of the back end that made it.
        target: name of the target.
        engine: name of the engine that runs it ("onnxruntime", "openvino", …: `tvmstack.runtime.engines` and the native
            runtime know the same names), or "" where it can only be deployed elsewhere.
        inputs: in the order and with the names that the engine feeds; dtypes and shapes as the region's.
        outputs: likewise.
        versions: what must be there at load, by package: {"openvino": "2026.4.1"}.
        options: what the engine is told at load; plain JSON data.
        log: what the vendor's compiler said, shortened.
    """

    data: bytes
    backend: str
    target: str
    engine: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""


Samples = Mapping[str, Sequence[np.ndarray]]


@runtime_checkable
class Backend(Protocol):
    """What every back end offers. Methods raise `core.errors.BackendError` with a sentence, never a vendor's exception.

    Attributes:
        name: as on the command line.
        in_process: whether the vendor's library is proved harmless inside our process. Where it is not, every method
            but `probe` and `targets` is called in a worker process.
    """

    name: str
    in_process: bool

    def probe(self) -> Capability:
        """Say what is installed and what it can do here, without importing anything slow or harmful."""
        ...

    def targets(self) -> Sequence[Target]:
        """Return what it can compile for; the first is the default."""
        ...

    def query(self, model: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        """Return for each node of an ONNX model, by name, whether the target takes it."""
        ...

    def estimate(self, region: Region, target: Target, options: Options) -> Cost | None:
        """Return the vendor's own estimate for a region that cannot run here; None where there is none."""
        ...

    def compile(self, region: Region, target: Target, options: Options, samples: Samples) -> Blob:
        """Turn a region into a blob; `samples` are input arrays by input name, for calibration."""
        ...
