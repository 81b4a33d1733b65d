"""Vendors' blobs and what they cost, kept in a folder: a rebuild asks no vendor's compiler.

A blob's key is the digest of all that made it: the region, the back end, its release, the target, the options. Names of
models and files play no part. They are files beside the store's file, as large as weights; a store on a server keeps
them in the user's cache. Each begins with the sha256 of the rest, which is compared before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["LAYOUT", "BlobFolder", "blob_folder", "key_of"]

_log = logging.getLogger(__name__)
LAYOUT = 1
_DIGEST = 64


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the key for what made a blob; plain JSON data, order does not matter."""
    text = json.dumps({"layout": LAYOUT, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def blob_folder(records: Any = None) -> BlobFolder:
    """Return the folder that belongs to a store; for one on a server or in memory, the one in the user's cache."""
    name = str(getattr(records, "name", ""))
    if records is not None and "://" not in name and name not in ("", ":memory:"):
        return BlobFolder(Path(f"{name}.blobs"))
    return BlobFolder(Path.home() / ".cache" / "tvmstack" / "blobs")


class BlobFolder:
    """Bytes by key. Writers replace whole files, so that readers never see half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str, used: bool = True) -> bytes | None:
        """Return what was put under a key; a damaged file is dropped and said, as if it had never been there.

        Where it is not `used`, only looked at, its age stays.
        """
        file = self.path / key
        try:
            data = file.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST:]).hexdigest().encode() != data[:_DIGEST]:
            _log.warning("%s is damaged (another digest) and is dropped", file)
            file.unlink(missing_ok=True)
            return None
        if used:
            with contextlib.suppress(OSError):
                os.utime(file)
        return data[_DIGEST:]

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key. Where there is no room that is a warning: nothing depends on the cache."""
        part = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=self.path)
            part = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode())
                file.write(data)
            os.replace(part, self.path / key)
        except OSError as err:
            _log.warning("a compiled region is not kept in %s: %s", self.path, err.strerror or err)
        finally:
            if part is not None:
                part.unlink(missing_ok=True)

    def files(self) -> list[tuple[str, int, float]]:
        """Return key, bytes and time of last use of each file, the last used first."""
        found = [(f.name, size, used) for f, size, used in self._files() if not f.name.startswith(".")]
        return sorted(found, key=lambda row: row[2], reverse=True)

    def stats(self) -> dict[str, int]:
        """Return how many files there are and their bytes."""
        sizes = [size for _, size, _ in self._files()]
        return {"blobs": len(sizes), "blobs_bytes": sum(sizes)}

    def merge(self, other: BlobFolder) -> int:
        """Take what another folder has and this one has not; a damaged file of the other is dropped, as `get` does.

        Returns:
            How many files are new here.
        """
        new = 0
        if other.path.resolve() == self.path.resolve():
            return new
        for file, _, _ in other._files():
            if file.name.startswith(".") or (self.path / file.name).exists():
                continue
            data = other.get(file.name, used=False)
            if data is not None:
                self.put(file.name, data)
                new += (self.path / file.name).exists()
        return new

    def prune(self, older_than_s: float = 0.0, most_bytes: int | None = None, dry_run: bool = False) -> int:
        """Delete what was not used for this long, then the longest unused until the rest fits.

        Returns:
            How many files went, or would go in a dry run.
        """
        now, gone = time.time(), 0
        files = sorted(self._files(), key=lambda f: f[2], reverse=True)
        held = 0
        for file, size, used in files:
            held += size
            too_old = older_than_s > 0 and now - used > older_than_s
            if too_old or (most_bytes is not None and held > most_bytes):
                if not dry_run:
                    file.unlink(missing_ok=True)
                held -= size
                gone += 1
        return gone

    def _files(self) -> list[tuple[Path, int, float]]:
        found = []
        for file in self.path.iterdir() if self.path.is_dir() else ():
            with contextlib.suppress(OSError):
                facts = file.stat()
                found.append((file, facts.st_size, facts.st_mtime))
        return found
