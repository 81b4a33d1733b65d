"""Sections of an ELF64 file, added and read in plain Python: no binutils, no loader, any size.

New sections and a new section header table go behind the file's end; no loader maps them, `readelf -S` shows them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tvmstack.core.errors import ArtifactError

__all__ = ["HEADER_SIZE", "Section", "SectionWriter", "read_sections"]

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
HEADER_SIZE = _EHDR.size
_ALIGN = 64
_PROGBITS, _NOBITS = 1, 8
# Fields of the ELF header and of a section header, by their place.
_SHOFF, _SHENTSIZE, _SHNUM, _SHSTRNDX = 6, 11, 12, 13
_NAME, _TYPE, _OFFSET, _SIZE = 0, 1, 4, 5
# Counts from here on are kept elsewhere in the file; no library of ours has so many sections.
_MANY = 0xFF00


@dataclass(frozen=True)
class Section:
    """Where a section's bytes are in its file."""

    name: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Where they end."""
        return self.offset + self.size


@dataclass
class _Table:
    header: list[int | bytes]
    entries: list[tuple[int, ...]]
    names: bytearray

    def name(self, entry: tuple[int, ...]) -> str:
        start = entry[_NAME]
        return self.names[start : self.names.find(b"\0", start)].decode(errors="replace")


class SectionWriter:
    """Appends sections to an ELF64 file that is open for reading and writing; `finish` makes them visible.

    Args:
        file: the open file.
        drop: the name of a section to leave out; its bytes must be the last before the table that `finish` once wrote.
    """

    def __init__(self, file: BinaryIO, drop: str = "") -> None:
        self._file = file
        self._table = _read_table(file)
        self._end = file.seek(0, 2)
        gone = [e for e in self._table.entries if self._table.name(e) == drop]
        if drop and gone:
            self._table.entries = [e for e in self._table.entries if e not in gone]
            self._end = gone[0][_OFFSET]
            file.truncate(self._end)
            file.seek(self._end)

    def add(self, name: str, chunks: Iterable[bytes | memoryview]) -> Section:
        """Write one section, 64-byte aligned in the file, from chunks of bytes."""
        self._pad(_ALIGN)
        start = self._end
        for chunk in chunks:
            self._write(chunk)
        size = self._end - start
        self._table.entries.append((self._place_of(name), _PROGBITS, 0, 0, start, size, 0, 0, _ALIGN, 0))
        return Section(name, start, size)

    def finish(self) -> None:
        """Write the names, the section header table and the header that points at it."""
        table, index = self._table, int(self._table.header[_SHSTRNDX])
        self._pad(8)
        entry = list(table.entries[index])
        entry[_OFFSET], entry[_SIZE] = self._end, len(table.names)
        table.entries[index] = tuple(entry)
        self._write(bytes(table.names))
        self._pad(8)
        table.header[_SHOFF], table.header[_SHNUM] = self._end, len(table.entries)
        self._write(b"".join(_SHDR.pack(*e) for e in table.entries))
        self._file.seek(0)
        self._file.write(_EHDR.pack(*table.header))
        self._file.seek(0, 2)

    def _place_of(self, name: str) -> int:
        text = b"\0" + name.encode() + b"\0"
        if text not in self._table.names:
            self._table.names += text[1:]
        return self._table.names.find(text) + 1

    def _pad(self, align: int) -> None:
        self._write(b"\0" * (-self._end % align))

    def _write(self, chunk: bytes | memoryview) -> None:
        view = memoryview(chunk)
        done = self._file.write(view)
        self._end += done


def read_sections(path: Path) -> dict[str, Section]:
    """Return the sections of an ELF64 file by name, reading nothing but its tables.

    Raises:
        ArtifactError: the file cannot be read, is no ELF64 file, or is cut short.
    """
    try:
        with path.open("rb") as file:
            table = _read_table(file)
    except FileNotFoundError as err:
        raise ArtifactError(f"there is no file {path}") from err
    except IsADirectoryError as err:
        raise ArtifactError(f"{path} is a folder, not an artifact") from err
    except OSError as err:
        raise ArtifactError(f"cannot read {path}: {err.strerror}") from err
    except ArtifactError as err:
        raise ArtifactError(f"{path} is {err}") from err
    found = (Section(table.name(e), e[_OFFSET], e[_SIZE]) for e in table.entries if e[_TYPE] != _NOBITS)
    return {section.name: section for section in found}


def _read_table(file: BinaryIO) -> _Table:
    size = file.seek(0, 2)
    file.seek(0)
    raw = file.read(_EHDR.size)
    if not raw.startswith(b"\x7fELF"):
        raise ArtifactError("not a shared library: it does not begin as an ELF file")
    if len(raw) < _EHDR.size or raw[4] != 2 or raw[5] != 1:
        raise ArtifactError("not a 64-bit little-endian ELF file, or cut short")
    header: list[int | bytes] = list(_EHDR.unpack(raw))
    offset, count, names_at = int(header[_SHOFF]), int(header[_SHNUM]), int(header[_SHSTRNDX])
    if header[_SHENTSIZE] != _SHDR.size or not 0 < count < _MANY:
        raise ArtifactError("damaged: its ELF header names no section table. Copy or build it again")
    if offset + count * _SHDR.size > size or names_at >= count:
        raise ArtifactError("cut short: its section table is missing. Copy or build it again")
    file.seek(offset)
    entries = [_SHDR.unpack(file.read(_SHDR.size)) for _ in range(count)]
    if any(e[_TYPE] != _NOBITS and e[_OFFSET] + e[_SIZE] > size for e in entries):
        raise ArtifactError("cut short: a section reaches beyond its end. Copy or build it again")
    file.seek(entries[names_at][_OFFSET])
    return _Table(header, entries, bytearray(file.read(entries[names_at][_SIZE])))
