"""What an artifact says of itself, readable without loading it. Knows only `core` and ELF sections."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tvmstack._version import VERSION
from tvmstack.artifact.elf import Section, read_sections
from tvmstack.core.device import Device
from tvmstack.core.errors import ArtifactError
from tvmstack.core.model import TensorSpec

__all__ = [
    "DEVICE",
    "MANIFEST",
    "PARTS",
    "REGIONS",
    "SCHEMA",
    "WEIGHTS",
    "Manifest",
    "installed_versions",
    "parts_in",
    "read_manifest",
    "read_with_sections",
    "region_row",
]

SCHEMA = 1
MANIFEST, WEIGHTS, REGIONS = ".tvmstack.manifest", ".tvmstack.weights", ".tvmstack.regions"
DEVICE = ".tvmstack.device"
# The parts that have a digest in the manifest, beside the library, and their sections.
PARTS = {"weights": WEIGHTS, "regions": REGIONS}


def parts_in(sections: Mapping[str, Section]) -> dict[str, str]:
    """Return the parts of an artifact and their sections: those that all have, and device code where it has some."""
    return {**PARTS, "device": DEVICE} if DEVICE in sections else dict(PARTS)


def installed_versions() -> dict[str, str]:
    """Return the versions an artifact depends on, as installed here; "" for what is missing."""
    found = {"tvmstack": VERSION}
    for key, package in (("tvm", "apache-tvm"), ("ffi", "apache-tvm-ffi"), ("onnxruntime", "onnxruntime")):
        try:
            found[key] = version(package)
        except PackageNotFoundError:
            found[key] = ""
    return found


@dataclass(frozen=True)
class Manifest:
    """The fields of the manifest; see docs/explanation for what each is good for.

    Attributes:
        schema: version of this layout.
        created: seconds since the epoch.
        versions: of tvmstack, tvm, ffi and onnxruntime at build time.
        device: what the code was built for (`Device.to_json`).
        inputs: what a caller feeds.
        outputs: what a caller gets.
        source: {"name", "digest"} of the model.
        changes: what repair changed.
        pipeline: {"text", "digest"}.
        plan: {"tvm_nodes", "regions"}; a row of "regions" says what a region holds and what runs it, see `region_row`.
        kernels: one row for each kernel: template, choice, where it came from, cost.
        memory: {"weights_bytes"} and the plan for intermediate results, `lower.memory.MemoryPlan`.
        threads: the default thread count.
        weights: {"dtype", "shape", "offset", "size"} of each weight in its section.
        regions: {"digest", "offset", "size"} of each region's model in its section.
        device_code: {"offset", "size"} of each module of GPU code in its section; empty for a CPU.
        library_size: bytes of the library that the file begins with.
        digests: of each part: "library", "weights", "regions"; see `artifact.digest`.
        verification: what the comparison with the original gave; empty when it was switched off.
        reference: inputs' seed and outputs' digests of the comparison.
    """

    device: Mapping[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: Mapping[str, Any]
    changes: tuple[str, ...]
    pipeline: Mapping[str, str]
    plan: Mapping[str, Any]
    kernels: tuple[Mapping[str, Any], ...]
    memory: Mapping[str, int]
    threads: int
    schema: int = SCHEMA
    created: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: tuple[Mapping[str, Any], ...] = ()
    regions: tuple[Mapping[str, Any], ...] = ()
    device_code: tuple[Mapping[str, Any], ...] = ()
    library_size: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)
    verification: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def describe(
        *,
        device: Device,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        source: Mapping[str, Any],
        changes: Sequence[str],
        pipeline: Mapping[str, str],
        plan: Mapping[str, Any],
        kernels: Sequence[Mapping[str, Any]],
        memory: Mapping[str, int],
        threads: int,
    ) -> Manifest:
        """Return the manifest of something about to be written, dated now, with the versions installed here."""
        return Manifest(
            device=device.to_json(),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            source=source,
            changes=tuple(changes),
            pipeline=pipeline,
            plan=plan,
            kernels=tuple(kernels),
            memory=memory,
            threads=threads,
            created=round(time.time(), 3),
            versions={**installed_versions(), "python": platform.python_version()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as plain data."""
        data = asdict(replace(self, inputs=(), outputs=()))
        if not self.device_code:
            del data["device_code"]
        data["inputs"] = [s.to_json() for s in self.inputs]
        data["outputs"] = [s.to_json() for s in self.outputs]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        """Rebuild a manifest from `to_json`; fields of a newer minor layout are dropped."""
        known = {k: v for k, v in data.items() if k in Manifest.__dataclass_fields__}
        for key in ("inputs", "outputs"):
            known[key] = tuple(TensorSpec.from_json(s) for s in data[key])
        for key in ("changes", "kernels", "weights", "regions", "device_code"):
            known[key] = tuple(known.get(key, ()))
        known["plan"] = {**data["plan"], "regions": [region_row(row) for row in data["plan"].get("regions", ())]}
        return Manifest(**known)

    def packed(self) -> bytes:
        """Return the bytes of the manifest's section: its digest, a newline, its JSON."""
        body = json.dumps(self.to_json(), sort_keys=True).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def region_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a region's row of the plan with every field: what an older tvmstack wrote is an ONNX model.

    "digest", "nodes", "reasons", "inputs", "outputs" say what the region is; "backend", "target", "engine", "versions"
    (package to the version that must be there, "" for any), "options", "engine_inputs" and "engine_outputs" (names in
    the order that the blob wants) say what runs it.
    """
    return {
        "backend": "onnxruntime",
        "target": "cpu",
        "engine": "onnxruntime",
        "versions": {"onnxruntime": ""},
        "options": {},
        "engine_inputs": [spec["name"] for spec in row.get("inputs", ())],
        "engine_outputs": [spec["name"] for spec in row.get("outputs", ())],
        **row,
    }


def read_manifest(path: str | Path) -> Manifest:
    """Read the manifest of an artifact without loading anything of it.

    Raises:
        ArtifactError: the file is missing, damaged, not an artifact, or of a newer layout.
    """
    return read_with_sections(Path(path))[0]


def read_with_sections(path: Path) -> tuple[Manifest, dict[str, Section]]:
    """Return the manifest and where the sections of the artifact are; see `read_manifest`."""
    sections = read_sections(path)
    if MANIFEST not in sections:
        raise ArtifactError(f"{path} was not made by tvmstack: it has no manifest")
    at = sections[MANIFEST]
    with path.open("rb") as file:
        file.seek(at.offset)
        digest, _, body = file.read(at.size).partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ArtifactError(f"{path} is damaged: its manifest does not match its digest. Copy or build it again")
    return _parsed(path, body), _complete(path, sections)


def _parsed(path: Path, body: bytes) -> Manifest:
    try:
        data = json.loads(body)
        schema = int(data["schema"])
        if schema > SCHEMA:
            raise ArtifactError(
                f"{path} has a manifest of schema {schema}, this tvmstack reads up to {SCHEMA}: upgrade tvmstack"
            )
        return Manifest.from_json(data)
    except (KeyError, TypeError, ValueError) as err:
        raise ArtifactError(
            f"{path} has a manifest that tvmstack {VERSION} cannot read ({err!r}): build it again"
        ) from err


def _complete(path: Path, sections: dict[str, Section]) -> dict[str, Section]:
    missing = [name for name in PARTS.values() if name not in sections]
    if missing:
        raise ArtifactError(f"{path} is damaged: it has no section {missing[0]}. Copy or build it again")
    return sections
