"""Sections of an ELF64 file, added and read in plain Python: no binutils, no loader, any size.

New sections and a new section header table go behind the file's end; no loader maps them, `readelf -S` shows them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tvmstack.core.errors import ArtifactError

__all__ = ["Section", "append_sections", "read_sections"]

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_ALIGN = 64
_PROGBITS = 1


@dataclass(frozen=True)
class Section:
    """Where a section's bytes are in its file."""

    name: str
    offset: int
    size: int


@dataclass
class _Table:
    header: list[int | bytes]
    entries: list[tuple[int, ...]]
    names: bytes


def append_sections(file: BinaryIO, sections: Iterable[tuple[str, Iterable[bytes | memoryview]]]) -> list[Section]:
    """Append sections, each given as a name and chunks of bytes, to an ELF file open for reading and writing."""
    table = _read_table(file)
    written, entries, names = [], list(table.entries), bytearray(table.names)
    end = file.seek(0, 2)
    for name, chunks in sections:
        end += file.write(b"\0" * (-end % _ALIGN))
        start = end
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            file.write(view)
            end += view.nbytes
        written.append(Section(name, start, end - start))
        entries.append((len(names), _PROGBITS, 0, 0, start, end - start, 0, 0, _ALIGN, 0))
        names += name.encode() + b"\0"
    index = int(table.header[13])
    entries[index] = (*entries[index][:4], end, len(names), *entries[index][6:])
    end += file.write(bytes(names))
    end += file.write(b"\0" * (-end % 8))
    file.write(b"".join(_SHDR.pack(*entry) for entry in entries))
    header = list(table.header)
    header[6], header[12] = end, len(entries)
    file.seek(0)
    file.write(_EHDR.pack(*header))
    return written


def read_sections(path: Path) -> dict[str, Section]:
    """Return the sections of an ELF64 file by name.

    Raises:
        ArtifactError: the file cannot be read, is no ELF64 file, or is cut short.
    """
    try:
        with path.open("rb") as file:
            return {s.name: s for s in _sections(_read_table(file))}
    except FileNotFoundError as err:
        raise ArtifactError(f"there is no file {path}") from err
    except IsADirectoryError as err:
        raise ArtifactError(f"{path} is a folder, not an artifact") from err
    except OSError as err:
        raise ArtifactError(f"cannot read {path}: {err.strerror}") from err
    except ArtifactError as err:
        raise ArtifactError(f"{path} is {err}") from err


def _sections(table: _Table) -> Iterator[Section]:
    for entry in table.entries:
        end = table.names.find(b"\0", entry[0])
        yield Section(table.names[entry[0] : end].decode(errors="replace"), entry[4], entry[5])


def _read_table(file: BinaryIO) -> _Table:
    size = file.seek(0, 2)
    file.seek(0)
    raw = file.read(_EHDR.size)
    if raw[:4] != b"\x7fELF":
        raise ArtifactError("not a shared library: it does not begin as an ELF file")
    if len(raw) < _EHDR.size or raw[4] != 2 or raw[5] != 1:
        raise ArtifactError("not a 64-bit little-endian ELF file, or cut short")
    header: list[int | bytes] = list(_EHDR.unpack(raw))
    offset, count, names_at = int(header[6]), int(header[12]), int(header[13])
    if offset + count * _SHDR.size > size or names_at >= count:
        raise ArtifactError("cut short: its section table is missing. Copy or build it again")
    file.seek(offset)
    entries = [_SHDR.unpack(file.read(_SHDR.size)) for _ in range(count)]
    if any(e[1] == _PROGBITS and e[4] + e[5] > size for e in entries):
        raise ArtifactError("cut short: a section reaches beyond its end. Copy or build it again")
    file.seek(entries[names_at][4])
    return _Table(header, entries, file.read(entries[names_at][5]))
