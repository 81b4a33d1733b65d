"""The artifact: manifest, writing, reading, checking, comparing. Knows nothing of the compiler."""

from tvmstack.artifact.check import CheckRow, check
from tvmstack.artifact.manifest import Manifest, read_manifest
from tvmstack.artifact.write import rewrite_manifest, write_artifact

__all__ = ["CheckRow", "Manifest", "check", "read_manifest", "rewrite_manifest", "write_artifact"]
