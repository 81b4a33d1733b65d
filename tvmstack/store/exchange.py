"""Records out of a store and into one: as lines of JSON that can be read in a review, and from another store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tvmstack.core.errors import TuningError
from tvmstack.store.database import Store
from tvmstack.store.record import Record, record_from_line
from tvmstack.store.schema import contexts, records

__all__ = ["Taken", "export_records", "import_records", "merge_stores"]


@dataclass(frozen=True)
class Taken:
    """What came in: records read, those that are new, a line about each that was refused."""

    read: int
    new: int
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"records": self.read, "new": self.new, "refused": self.refused}


def export_records(store: Store, path: Path, finals_only: bool = False, devices: Collection[str] = ()) -> int:
    """Write records as JSON lines, all or nothing; return how many.

    The order depends on the keys only, so that two exports differ where the records do. Quarantined records stay.

    Raises:
        TuningError: the file cannot be written.
    """
    conditions = [records.c.quarantine == ""]
    if finals_only:
        conditions.append(records.c.is_final)
    if devices:
        conditions.append(contexts.c.device.in_(devices))
    count = 0
    with _replaced(path) as file:
        for record in store.walk(*conditions):
            file.write(record.to_line() + "\n")
            count += 1
    return count


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[str]]:
    """Open a file that takes the place of `path` when the block ends well."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    except OSError as err:
        raise TuningError(f"cannot write {path}: {err.strerror}") from err
    finally:
        part.unlink(missing_ok=True)


def import_records(store: Store, path: Path) -> Taken:
    """Read records from JSON lines; one that is damaged or holds what no record may is refused, the others come in.

    They count as not proven: each is replayed in a process of its own before a build uses it.

    Raises:
        TuningError: the file cannot be read, or the store cannot be written.
    """
    refused: list[str] = []
    read, new = store.take(_records(path, refused))
    return Taken(read, new, refused)


def _records(path: Path, refused: list[str]) -> Iterator[Record]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield record_from_line(line)
                except TuningError as err:
                    refused.append(f"line {number}: {err}")
    except OSError as err:
        raise TuningError(f"cannot read {path}: {err.strerror}") from err


def merge_stores(target: Store, source: Store) -> Taken:
    """Take all records of another store, quarantined ones as such; what was proven there is not proven here."""
    read, new = target.take(replace(record, proven=False) for record in source.walk())
    return Taken(read, new)
