"""Put library, weights, regions and manifest into one file: all of it or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmstack.artifact.elf import append_sections
from tvmstack.artifact.manifest import MANIFEST, REGIONS, WEIGHTS, Manifest, read_with_sections
from tvmstack.core.errors import SetupError

__all__ = ["rewrite_manifest", "write_artifact"]

_ALIGN = 64
_HEADER = 64


def write_artifact(
    path: Path,
    library: Path,
    weights: Sequence[np.ndarray],
    regions: Sequence[tuple[str, bytes]],
    manifest: Manifest,
) -> Manifest:
    """Write the artifact `path` and return its manifest completed with the parts' places and digests.

    Raises:
        SetupError: the file cannot be written; nothing is left behind.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        shutil.copyfile(library, part)
        with part.open("r+b") as file:
            weight_rows, region_rows = _places(weights), _region_places(regions)
            digests = {
                "library": _digest_file(library),
                "library_size": str(library.stat().st_size),
                "weights": _digest(_weight_chunks(weights)),
                "regions": _digest(_region_chunks(regions)),
            }
            full = replace(manifest, weights=weight_rows, regions=region_rows, digests=digests)
            append_sections(
                file,
                [
                    (WEIGHTS, _weight_chunks(weights)),
                    (REGIONS, _region_chunks(regions)),
                    (MANIFEST, [full.packed()]),
                ],
            )
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o755)
        os.replace(part, path)
    except OSError as err:
        part.unlink(missing_ok=True)
        raise SetupError(f"cannot write {path}: {err.strerror or err}") from err
    return full


def rewrite_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of an artifact, whose parts stay as they are."""
    _, sections = read_with_sections(path)
    part = path.with_name(f".{path.name}.part")
    try:
        shutil.copyfile(path, part)
        with part.open("r+b") as file:
            append_sections(file, [(MANIFEST, [manifest.packed()])])
        part.chmod(0o755)
        os.replace(part, path)
    except OSError as err:
        part.unlink(missing_ok=True)
        raise SetupError(f"cannot write {path}: {err.strerror or err}") from err


def _places(weights: Sequence[np.ndarray]) -> tuple[dict[str, Any], ...]:
    rows, at = [], 0
    for array in weights:
        rows.append({"dtype": array.dtype.name, "shape": list(array.shape), "offset": at, "size": array.nbytes})
        at += array.nbytes + (-array.nbytes % _ALIGN)
    return tuple(rows)


def _region_places(regions: Sequence[tuple[str, bytes]]) -> tuple[dict[str, Any], ...]:
    rows, at = [], 0
    for digest, model in regions:
        rows.append({"digest": digest, "offset": at, "size": len(model)})
        at += len(model)
    return tuple(rows)


def _weight_chunks(weights: Sequence[np.ndarray]) -> Iterator[bytes | memoryview]:
    for array in weights:
        yield memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        yield b"\0" * (-array.nbytes % _ALIGN)


def _region_chunks(regions: Sequence[tuple[str, bytes]]) -> Iterator[bytes]:
    for _, model in regions:
        yield model


def _digest(chunks: Iterator[Any]) -> str:
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()


def _digest_file(path: Path) -> str:
    """Digest the library behind its ELF header, which changes when sections are added."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(_HEADER)
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()
