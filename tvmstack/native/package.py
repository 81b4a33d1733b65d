"""The folder that runs an artifact on a machine without Python: all of it, or nothing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmstack._version import VERSION
from tvmstack.artifact.check import integrity
from tvmstack.artifact.manifest import Manifest, read_manifest
from tvmstack.core.errors import ArtifactError, SetupError, UsageError
from tvmstack.native.build import LIBRARY, SOURCES, TOOL, native_libraries, tvm_libraries

__all__ = ["PackageReport", "write_package"]

# What an engine's region needs at run time, by the names that files begin with, and which package has them where.
_VENDORS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime/capi", ("libonnxruntime.so",)),
    "openvino": (
        "openvino",
        "openvino/libs",
        ("libopenvino_c.so", "libopenvino.so", "libopenvino_", "libtbb.so", "libtbbmalloc.so", "libhwloc.so"),
    ),
}
# OpenVINO keeps a compiled model in its own format, which one of its readers reads; the others are left out.
_OPENVINO_READER = "_ir_frontend.so"
_OPENVINO_PLUGINS = {"cpu": "intel_cpu", "gpu": "intel_gpu", "npu": "intel_npu", "auto": "auto_plugin"}
_LICENCE_WORDS = ("license", "licence", "notice", "copying")


@dataclass(frozen=True)
class PackageReport:
    """What was put into a package.

    Attributes:
        folder: where it is.
        arch: the CPU it is for.
        files: (path inside, bytes, sha256) of each file but MANIFEST.txt.
        libraries_bytes: of tvmstack's and TVM's libraries together, without vendors'.
        notes: what must be there on the target besides, one sentence each.
    """

    folder: Path
    arch: str
    files: tuple[tuple[str, int, str], ...]
    libraries_bytes: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        rows = [{"path": path, "size": size, "sha256": digest} for path, size, digest in self.files]
        return {
            "folder": str(self.folder),
            "arch": self.arch,
            "libraries_bytes": self.libraries_bytes,
            "notes": list(self.notes),
            "files": rows,
        }


def write_package(
    artifact: Path,
    folder: Path,
    runtime: bool = True,
    vendor: bool = False,
    arch: str | None = None,
    cache: Path | None = None,
    flags: Sequence[str] = (),
) -> PackageReport:
    """Fill a new folder with an artifact and what runs it; for another CPU, with that CPU's libraries.

    Args:
        artifact: the `.so`.
        folder: must not be there yet, or be empty.
        runtime: whether libraries, headers, CMake files, examples and the `run` tool go with it.
        vendor: whether the installed vendor libraries of its regions go with it, with their licences.
        arch: the CPU that the caller believes it is for; the artifact's own where None.
        cache: where compiled libraries are kept; None for the user's cache.
        flags: more for the compiler.

    Raises:
        UsageError: the folder is in use, or `arch` is not the artifact's.
        ArtifactError: the artifact is damaged.
        SetupError: a compiler, a library or room on the disk is missing; nothing is left behind.
    """
    manifest = read_manifest(artifact)
    _require_whole(artifact)
    target = str(manifest.device["arch"])
    if arch not in (None, target):
        raise UsageError(f"{artifact} was built for {target}, not {arch}: compile it for a device of that kind")
    if vendor and not runtime:
        raise UsageError("vendor libraries go into a package with the runtime: add --with-runtime")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not empty: name another folder, or remove it")
    filling = _Filling(artifact, manifest, target)
    part = None
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.absolute().parent))
        report = filling.fill(part, native_libraries(target, cache, flags) if runtime else None, vendor)
        part.chmod(0o755)
        os.replace(part, folder)
    except OSError as err:
        raise SetupError(f"cannot write {folder}: {err.strerror or err}") from err
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
    return PackageReport(folder, *report)


def _require_whole(artifact: Path) -> None:
    for row in integrity(artifact):
        if not row.verdict:
            raise ArtifactError(f"{artifact} cannot be packaged: {row.verdict.reason}. {row.verdict.hint}")


@dataclass
class _Filling:
    artifact: Path
    manifest: Manifest
    arch: str
    notes: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def fill(
        self, root: Path, libraries: Path | None, vendor: bool
    ) -> tuple[str, tuple[tuple[str, int, str], ...], int, tuple[str, ...]]:
        """Put everything below `root`; return what `PackageReport` wants behind the folder."""
        shutil.copy2(self.artifact, root / self.artifact.name)
        size = 0
        if libraries is not None:
            size = self._add_runtime(root, libraries)
        else:
            self.notes.append(f"{LIBRARY} and TVM's two runtime libraries: tvmstack package --with-runtime adds them")
        self._add_vendors(root if vendor else None)
        files = tuple(
            (str(path.relative_to(root)), path.stat().st_size, _sha256(path))
            for path in sorted(root.rglob("*"))
            if path.is_file()
        )
        (root / "MANIFEST.txt").write_text(self._page(files))
        return self.arch, files, size, tuple(self.notes)

    def _add_runtime(self, root: Path, libraries: Path) -> int:
        for name in ("lib/cmake/tvmstack", "bin", "include/dlpack", "examples", "licenses"):
            (root / name).mkdir(parents=True)
        held = [libraries / LIBRARY, *tvm_libraries(self.arch)]
        for library in held:
            shutil.copy2(library, root / "lib" / library.name)
        shutil.copy2(libraries / TOOL, root / "bin" / TOOL)
        for header in (SOURCES / "include").iterdir():
            shutil.copy2(header, root / "include" / header.name)
        shutil.copy2(_dlpack_header(), root / "include" / "dlpack" / "dlpack.h")
        for example in (SOURCES / "examples").iterdir():
            shutil.copy2(example, root / "examples" / example.name)
        for file in (SOURCES / "cmake").iterdir():
            text = file.read_text().replace("@VERSION@", VERSION)
            (root / "lib" / "cmake" / "tvmstack" / file.name).write_text(text)
        for package in ("apache-tvm", "apache-tvm-ffi"):
            self._add_licences(root, package)
        self.lines.append(f"runtime: tvmstack {VERSION}, compiled for {self.arch}")
        return sum(library.stat().st_size for library in held)

    def _add_vendors(self, root: Path | None) -> None:
        regions = self.manifest.plan.get("regions", ())
        for engine in sorted({str(row.get("engine", "onnxruntime")) for row in regions}):
            rows = [row for row in regions if row.get("engine", "onnxruntime") == engine]
            wanted = next((v for row in rows if (v := dict(row.get("versions", {})).get(engine))), "")
            if root is not None and engine in _VENDORS:
                self._copy_vendor(root, engine, wanted, {str(row.get("target", "")) for row in rows})
            else:
                self.notes.append(_note(engine, wanted))

    def _copy_vendor(self, root: Path, engine: str, wanted: str, targets: set[str]) -> None:
        package, place, prefixes = _VENDORS[engine]
        if self.arch != platform.machine():
            raise SetupError(
                f"the installed {package} is for {platform.machine()}, the artifact for {self.arch}: leave "
                f"--with-vendor out and put {package}'s libraries for {self.arch} into lib/ yourself"
            )
        try:
            version = importlib.metadata.version(package)
            source = Path(str(importlib.metadata.distribution(package).locate_file(place)))
        except importlib.metadata.PackageNotFoundError as err:
            raise SetupError(f"--with-vendor needs {package}: pip install {package}") from err
        if engine == "openvino" and wanted not in ("", version):
            raise SetupError(f"a region was compiled by {package} {wanted}, installed is {version}: install {wanted}")
        files = [file for file in sorted(source.glob("*.so*")) if file.name.startswith(prefixes)]
        files = [file for file in files if engine != "openvino" or _openvino_needs(file.name, targets)]
        if not files:
            raise SetupError(f"{package} {version} has no {prefixes[0]} in {source}: install its PyPI wheel")
        for file in files:
            shutil.copy2(file, root / "lib" / file.name)
        names = self._add_licences(root, package)
        licences = f"licences: {', '.join(names)}" if names else "it names no licence file; see its project"
        self.lines.append(f"vendor: {package} {version}, {len(files)} libraries; {licences}")

    def _add_licences(self, root: Path, package: str) -> list[str]:
        """Copy a package's licence files below licenses/; return their names there."""
        names = []
        for entry in importlib.metadata.files(package) or ():
            path = Path(str(entry.locate()))
            if not any(word in path.name.lower() for word in _LICENCE_WORDS) or path.suffix in (".py", ".pyc", ".h"):
                continue
            if path.is_file():
                name = f"licenses/{package}/{path.name}"
                (root / name).parent.mkdir(exist_ok=True)
                shutil.copy2(path, root / name)
                names.append(name)
        return sorted(set(names))

    def _page(self, files: Sequence[tuple[str, int, str]]) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.manifest.versions.items()) if version)
        device = self.manifest.device
        lines = [
            f"tvmstack package of {self.artifact.name} for {self.arch}",
            "",
            f"model: {self.manifest.source.get('name', '?')}, digest {self.manifest.source.get('digest', '?')}",
            f"built with: {versions}",
            f"built for: {device['mcpu']} ({', '.join(device['features']) or 'no features'})",
            *self.lines,
        ]
        lines += ["", "must be there besides: libstdc++, libgcc_s, glibc", *(f"- {note}" for note in self.notes)]
        lines += ["", *(f"{digest}  {path}" for path, _, digest in files)]
        return "\n".join([*lines, ""])


def _note(engine: str, version: str) -> str:
    """Return what a region of this engine needs on the target."""
    if engine not in _VENDORS:
        return f"libtvmstack_engine_{engine}.so in lib/ or in a folder of $TVMSTACK_ENGINES, and what it needs"
    library, variable = _VENDORS[engine][2][0], f"$TVMSTACK_{engine.upper()}_LIBRARY"
    return f"{engine} {version} ({library}) in lib/, on the loader's path, or named by {variable}".replace("  ", " ")


def _openvino_needs(name: str, targets: set[str]) -> bool:
    if "_frontend.so" in name:
        return _OPENVINO_READER in name
    if "_plugin" not in name:
        return True
    wanted = {_OPENVINO_PLUGINS.get(target.partition(":")[0].lower() or "cpu", "") for target in targets}
    return "auto_plugin" in wanted or any(part and part in name for part in wanted)


def _dlpack_header() -> Path:
    from tvm_ffi import libinfo

    return Path(libinfo.find_dlpack_include_path()) / "dlpack" / "dlpack.h"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        state = hashlib.sha256()
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()
