"""What vendors' back ends have in common: versions, names of targets, regions of fixed shapes, captured output."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tvmstack.core.errors import BackendError
from tvmstack.core.region import Region

__all__ = [
    "Captured",
    "captured",
    "is_importable",
    "need_static",
    "shortened",
]

_LOG_CHARS = 4000


def is_importable(module: str) -> bool:
    """Whether a top-level module is there; it is not imported."""
    return importlib.util.find_spec(module) is not None


def need_static(region: Region, backend: str) -> None:
    """Refuse a region whose inputs or outputs have dynamic dims.

    Raises:
        BackendError: one has; the message names it and its shape.
    """
    for spec in (*region.inputs, *region.outputs):
        if not spec.is_static:
            shape = "x".join(str(d) for d in spec.shape)
            raise BackendError(f"{backend} needs fixed shapes, but {spec.name} is {shape}: fix it with --shape")


def shortened(log: str) -> str:
    """Return a vendor's log, its middle left out where it is long."""
    log = log.strip()
    if len(log) <= _LOG_CHARS:
        return log
    half = _LOG_CHARS // 2
    return f"{log[:half]}\n… {len(log) - 2 * half} characters left out …\n{log[-half:]}"


@dataclass
class Captured:
    """What native code wrote to file descriptors 1 and 2; whole once the block has ended."""

    text: str = ""


@contextmanager
def captured() -> Iterator[Captured]:
    """Collect what native code writes to file descriptors 1 and 2: the whole process is silent meanwhile."""
    seen = Captured()
    with tempfile.TemporaryFile() as sink:
        kept = [os.dup(1), os.dup(2)]
        try:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
            yield seen
        finally:
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)
            sink.seek(0)
            seen.text = sink.read().decode(errors="replace")
