"""The records that come with tvmstack: a second store, read-only, under the same key rules."""

from __future__ import annotations

import functools
import importlib.resources
import logging
from collections.abc import Iterator
from pathlib import Path

from tvmstack.core.errors import TuningError
from tvmstack.store.key import structure_digest
from tvmstack.store.record import Record, record_from_line

__all__ = ["Shipped"]

_log = logging.getLogger(__name__)


class Shipped:
    """Records of `tuning_logs/`, read when first asked for."""

    def __len__(self) -> int:
        return sum(len(found) for found in self._by_structure.values())

    def alike(self, structure: str) -> list[Record]:
        """Return the records of kernels of this structure."""
        return self._by_structure.get(structure, [])

    def all(self) -> list[Record]:
        """Return every record."""
        return [record for found in self._by_structure.values() for record in found]

    @functools.cached_property
    def _by_structure(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in _shipped():
            found.setdefault(structure_digest(record.workload), []).append(record)
        return found


def _shipped() -> Iterator[Record]:
    folder = importlib.resources.files("tvmstack").joinpath("tuning_logs")
    for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
        if not file.name.endswith(".jsonl"):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                yield record_from_line(line, "shipped")
            except TuningError as err:
                _log.warning("shipped records %s, line %d: %s", Path(file.name).name, number, err)
