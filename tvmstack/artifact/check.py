"""Does an artifact fit this machine? One row for each promise; nothing of it is executed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack.artifact.digest import SEAL_SIZE, parts_of, seal_of, span_digest
from tvmstack.artifact.elf import HEADER_SIZE, Section
from tvmstack.artifact.manifest import MANIFEST, Manifest, installed_versions, parts_in, read_with_sections
from tvmstack.core.device import Device, detect_device
from tvmstack.core.errors import ArtifactError, SetupError, TvmstackError
from tvmstack.core.packages import installed_version, same_release
from tvmstack.core.verdict import Verdict

__all__ = ["CheckRow", "check", "integrity", "require"]


@dataclass(frozen=True)
class CheckRow:
    """One thing that must hold, and whether it does."""

    name: str
    verdict: Verdict
    error: type[TvmstackError] = ArtifactError

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {"name": self.name, "ok": self.verdict.ok, "reason": self.verdict.reason, "hint": self.verdict.hint}


def check(path: Path, digests: bool = True) -> list[CheckRow]:
    """Return one row for each promise of the artifact `path`, digests of the parts included unless left out.

    Raises:
        ArtifactError: the file is no artifact or its manifest is damaged.
    """
    return _rows(path, digests, *read_with_sections(path))


def integrity(path: Path) -> list[CheckRow]:
    """Return the rows about digests alone: whether the file is whole, on whatever machine.

    Raises:
        ArtifactError: the file is no artifact or its manifest is damaged.
    """
    return _digest_rows(path, *read_with_sections(path))


def require(path: Path, digests: bool = True) -> tuple[Manifest, dict[str, Section]]:
    """Return the manifest and the sections of an artifact that keeps all its promises here.

    Raises:
        ArtifactError, SetupError: the first promise that is broken.
    """
    manifest, sections = read_with_sections(path)
    for row in _rows(path, digests, manifest, sections):
        if not row.verdict:
            hint = f". {row.verdict.hint}" if row.verdict.hint else ""
            raise row.error(f"{path} cannot be loaded: {row.verdict.reason}{hint}")
    return manifest, sections


def _rows(path: Path, digests: bool, manifest: Manifest, sections: dict[str, Section]) -> list[CheckRow]:
    rows = [CheckRow("format", Verdict.yes())]
    if digests:
        rows += _digest_rows(path, manifest, sections)
    gpu = [_gpu_row(manifest)] if manifest.device.get("sm") else []
    return [*rows, _cpu_row(manifest), *gpu, *_version_rows(manifest), *_region_rows(manifest)]


def _digest_rows(path: Path, manifest: Manifest, sections: dict[str, Section]) -> list[CheckRow]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as image,
    ):
        parts = parts_of(manifest.library_size, sections, parts_in(sections))
        end = len(image) - SEAL_SIZE
        whole = all(HEADER_SIZE <= part.offset <= part.end <= end for part in parts.values())
        same = {name: whole and span_digest(image, part) == manifest.digests[name] for name, part in parts.items()}
        held = [*parts.values(), sections[MANIFEST]]
        same["frame"] = whole and seal_of(image, held, end) == bytes(image[end:])
    return [CheckRow(f"{name} digest", _damage(name, ok)) for name, ok in same.items()]


def _damage(name: str, ok: bool) -> Verdict:
    if ok:
        return Verdict.yes()
    return Verdict.no(f"its {name} is damaged (another digest)", "Copy or build it again")


def _cpu_row(manifest: Manifest) -> CheckRow:
    built, here = Device.from_json(manifest.device), detect_device()
    if built.arch != here.arch:
        return CheckRow("cpu", Verdict.no(f"it was built for {built.arch}, this machine is {here.arch}"))
    missing = [f for f in built.features if f not in here.features]
    if missing:
        words = f"it was built for {built.mcpu} and needs CPU features that this machine lacks: {', '.join(missing)}"
        return CheckRow("cpu", Verdict.no(words, f"Compile it with --device cpu:{here.mcpu}"))
    return CheckRow("cpu", Verdict.yes())


def _gpu_row(manifest: Manifest) -> CheckRow:
    """Say whether this machine has a driver, and that this version of the runtime builds for GPUs but runs nothing."""
    sm = manifest.device["sm"]
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        words = f"it was built for a GPU ({sm}), and this machine has no NVIDIA driver (libcuda.so.1)"
        return CheckRow("gpu", Verdict.no(words, "Use a machine with such a GPU and its driver"), SetupError)
    words = f"it was built for a GPU ({sm}), and this version of tvmstack can build such programs but not run them"
    return CheckRow("gpu", Verdict.no(words, "Compile it for the CPU to run it"), SetupError)


def _version_rows(manifest: Manifest) -> list[CheckRow]:
    here = installed_versions()
    words: dict[str, tuple[str, Callable[[str], str]]] = {
        "tvm": ("apache-tvm", lambda v: ".".join(v.split(".")[:2])),
        "ffi": ("apache-tvm-ffi", lambda v: ".".join(v.split(".")[:2])),
    }
    rows = []
    for key, (package, abi) in words.items():
        built = str(manifest.versions.get(key, ""))
        same = bool(here[key]) and abi(built) == abi(here[key])
        installed = here[key] or "none"
        reason = f"it was built with {package} {built or '?'}, installed is {installed}"
        verdict = Verdict.no(reason, f"Install {package}=={built}" if built else "Build it again")
        rows.append(CheckRow(f"{key} ABI", Verdict.yes() if same else verdict))
    return rows


def _region_rows(manifest: Manifest) -> list[CheckRow]:
    """Return one row for each package that regions need: present, and of the version that their blobs want."""
    wanted: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in manifest.plan["regions"]:
        for package, version in row["versions"].items():
            wanted.setdefault((str(package), str(version)), []).append(row)
    return [
        CheckRow(package, _package(package, version, rows), SetupError) for (package, version), rows in wanted.items()
    ]


def _package(package: str, version: str, rows: Sequence[Mapping[str, Any]]) -> Verdict:
    here = installed_version(package)
    if here and (not version or same_release(version, here)):
        return Verdict.yes()
    if not version:
        return Verdict.no(
            f"{len(rows)} region(s) of it run in {package}, which is not installed", f"pip install {package}"
        )
    who = ", ".join(sorted({f"{row['backend']}:{row['target']}" for row in rows}))
    words = (
        f"{len(rows)} region(s) of it are blobs of {who}, which want {package} {version}; installed is {here or 'none'}"
    )
    return Verdict.no(words, f"pip install {package}=={version}, or compile the model again")
