"""What a build gives, where it may go, and how long tuning may take."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmstack.core.errors import SetupError, UsageError

if TYPE_CHECKING:
    from tvmstack.artifact.manifest import Manifest

__all__ = ["Artifact", "check_output", "check_scratch", "disk_words", "seconds_from", "write_text"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# What an artifact needs beside its model: the library's code and the working copy of the build.
_SPARE_BYTES = 32 << 20


@dataclass
class Artifact:
    """A built and, unless that was switched off, compared artifact that `save` puts in its place.

    Attributes:
        path: the file: a temporary one until `save`.
        manifest: what it says of itself.
        report: what happened while it was built, as plain data.
    """

    path: Path
    manifest: Manifest
    report: dict[str, Any]
    _folder: Any = field(default=None, repr=False)

    def save(self, path: str | Path) -> Path:
        """Put the artifact at `path`, all of it or nothing.

        Raises:
            SetupError: the place cannot be written or is full.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(self.path, part)
            part.chmod(0o755)
            os.replace(part, target)
        except OSError as err:
            part.unlink(missing_ok=True)
            raise SetupError(f"cannot write {target}: {disk_words(err)}") from err
        self.path = target
        self.report["path"] = str(target)
        self._folder = None
        return target


def seconds_from(text: float | str | None) -> float | None:
    """Return a time budget in seconds: 90, "90", "90s", "2m" or "1h".

    Raises:
        UsageError: the text is no such time.
    """
    if text is None or isinstance(text, (int, float)):
        seconds = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
        if match is None:
            raise UsageError(f"{text!r} is not a time; write 90s, 2m or 1h")
        seconds = float(match[1]) * _UNITS[match[2]]
    if seconds is not None and seconds <= 0:
        raise UsageError(f"the time to tune for must be more than nothing, not {text!r}")
    return float(seconds) if seconds is not None else None


def check_output(path: Path, model: Path | None = None) -> None:
    """Refuse an output file that could not be written, before any long work.

    Raises:
        SetupError: its folder is missing, not writable or too full.
        UsageError: it is a folder.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise SetupError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise SetupError(f"cannot write {path}: the folder {folder} is not writable")
    size = model.stat().st_size if model and model.is_file() else 0
    _require_space(folder, size, f"cannot write {path}")


def check_scratch(weights_bytes: int) -> None:
    """Refuse to build where the temporary folder is too full: LLVM ends the whole process when its disk is.

    Raises:
        SetupError: there is too little room.
    """
    folder = Path(tempfile.gettempdir())
    _require_space(folder, weights_bytes, "cannot build (TMPDIR names another place)")


def _require_space(folder: Path, size_bytes: int, doing: str) -> None:
    need, free = 2 * size_bytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise SetupError(f"{doing}: about {need >> 20} MiB are needed and {free >> 20} MiB are free in {folder}")


def disk_words(err: OSError) -> str:
    """Return what an error of the file system means."""
    if err.errno == errno.ENOSPC:
        return "the disk is full"
    return err.strerror or str(err)


def write_text(path: Path, text: str) -> None:
    """Write a file, all of it or nothing.

    Raises:
        SetupError: the place cannot be written or is full.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as err:
        part.unlink(missing_ok=True)
        raise SetupError(f"cannot write {path}: {disk_words(err)}") from err
