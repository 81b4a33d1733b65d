"""Put library, weights, regions and manifest into one file: all of it or nothing."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvmstack.artifact.digest import parts_of, seal_of, span_digest
from tvmstack.artifact.elf import Section, SectionWriter
from tvmstack.artifact.manifest import DEVICE, MANIFEST, REGIONS, WEIGHTS, Manifest, parts_in, read_with_sections
from tvmstack.core.errors import SetupError

__all__ = ["rewrite_manifest", "write_artifact"]

_ALIGN = 64


def write_artifact(
    path: Path,
    library: Path,
    weights: Sequence[np.ndarray],
    regions: Sequence[tuple[str, bytes]],
    manifest: Manifest,
    device_code: Sequence[bytes] = (),
) -> Manifest:
    """Write the artifact `path` and return its manifest completed with the parts' places and digests.

    Raises:
        SetupError: the file cannot be written; nothing is left behind.
    """
    size = library.stat().st_size
    with _replacing(path, library) as file:
        writer = SectionWriter(file)
        sections = {
            WEIGHTS: writer.add(WEIGHTS, _weight_chunks(weights)),
            REGIONS: writer.add(REGIONS, _region_chunks(regions)),
        }
        if device_code:
            sections[DEVICE] = writer.add(DEVICE, device_code)
        parts = parts_of(size, sections, parts_in(sections))
        with _image(file) as image:
            digests = {name: span_digest(image, part) for name, part in parts.items()}
        full = replace(
            manifest,
            weights=_places(weights),
            regions=_region_places(regions),
            device_code=_code_places(device_code),
            digests=digests,
            library_size=size,
        )
        _close_with(file, writer, full, parts)
    return full


def rewrite_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of an artifact, whose parts stay as they are.

    Raises:
        ArtifactError: `path` is no artifact.
        SetupError: the file cannot be written; the old one stays.
    """
    old, sections = read_with_sections(path)
    with _replacing(path, path) as file:
        parts = parts_of(old.library_size, sections, parts_in(sections))
        full = replace(
            manifest,
            weights=old.weights,
            regions=old.regions,
            device_code=old.device_code,
            digests=old.digests,
            library_size=old.library_size,
        )
        _close_with(file, SectionWriter(file, drop=MANIFEST), full, parts)


def _close_with(file: BinaryIO, writer: SectionWriter, manifest: Manifest, parts: dict[str, Section]) -> None:
    """Write the manifest, the section table and the seal over what no digest covers yet."""
    held = [*parts.values(), writer.add(MANIFEST, [manifest.packed()])]
    writer.finish()
    with _image(file) as image:
        seal = seal_of(image, held, len(image))
    file.write(seal)


@contextmanager
def _replacing(path: Path, start: Path) -> Iterator[BinaryIO]:
    """Open a copy of `start` that takes the place of `path` when the block ends well, and is gone when it does not."""
    part = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        part = Path(name)
        with os.fdopen(handle, "r+b") as file:
            with start.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o755)
        os.replace(part, path)
    except OSError as err:
        words = "the disk is full" if err.errno in (errno.ENOSPC, errno.EDQUOT) else err.strerror or str(err)
        raise SetupError(f"cannot write {path}: {words}") from err
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


@contextmanager
def _image(file: BinaryIO) -> Iterator[memoryview]:
    file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        yield view


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
        at += len(model) + (-len(model) % _ALIGN)
    return tuple(rows)


def _region_chunks(regions: Sequence[tuple[str, bytes]]) -> Iterator[bytes]:
    for _, model in regions:
        yield model
        yield b"\0" * (-len(model) % _ALIGN)


def _code_places(device_code: Sequence[bytes]) -> tuple[dict[str, Any], ...]:
    rows, at = [], 0
    for image in device_code:
        rows.append({"offset": at, "size": len(image)})
        at += len(image)
    return tuple(rows)


def _weight_chunks(weights: Sequence[np.ndarray]) -> Iterator[bytes | memoryview]:
    for array in weights:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield np.ascontiguousarray(little).reshape(-1).view(np.uint8).data
        yield b"\0" * (-array.nbytes % _ALIGN)
