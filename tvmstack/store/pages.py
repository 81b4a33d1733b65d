"""Rows straight from the pages of an SQLite file, whether or not a tree still leads to them.

The layout is that of https://www.sqlite.org/fileformat2.html: leaf pages of tables hold cells, a cell holds a row, and
what does not fit goes to a chain of overflow pages. Nothing here is believed: rows carry digests of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["pages_of", "rows_of"]

_PAGE = 4096
_TABLE_LEAF = 0x0D
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WAL_HEADER, _FRAME_HEADER = 32, 24
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_LARGEST_ROW = 64 << 20


def pages_of(file: Path, log: Path) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the pages of a file by number, without and with the commits that are still in its write-ahead log."""
    data = file.read_bytes()
    plain = {1 + start // _PAGE: data[start : start + _PAGE] for start in range(0, len(data), _PAGE)}
    return plain, {**plain, **(_committed(log.read_bytes()) if log.exists() else {})}


def _committed(log: bytes) -> dict[int, bytes]:
    if len(log) < _WAL_HEADER or struct.unpack(">I", log[:4])[0] not in _WAL_MAGIC:
        return {}
    salt, found, pending = log[16:24], dict[int, bytes](), dict[int, bytes]()
    for start in range(_WAL_HEADER, len(log) - _FRAME_HEADER - _PAGE + 1, _FRAME_HEADER + _PAGE):
        number, size = struct.unpack(">II", log[start : start + 8])
        if log[start + 8 : start + 16] != salt:
            break
        pending[number] = log[start + _FRAME_HEADER : start + _FRAME_HEADER + _PAGE]
        if size:
            found.update(pending)
            pending.clear()
    return found


def rows_of(pages: Mapping[int, bytes]) -> Iterator[list[Any]]:
    """Yield the values of every row on a leaf page of any table; cells that make no sense are left out."""
    for number, page in pages.items():
        start = 100 if number == 1 else 0
        if len(page) < _PAGE or page[start] != _TABLE_LEAF:
            continue
        (cells,) = struct.unpack_from(">H", page, start + 3)
        for index in range(min(cells, _PAGE // 4)):
            try:
                (place,) = struct.unpack_from(">H", page, start + 8 + 2 * index)
                yield _row(page, place, pages)
            except (IndexError, ValueError, KeyError, struct.error):
                continue


def _row(page: bytes, place: int, pages: Mapping[int, bytes]) -> list[Any]:
    size, place = _varint(page, place)
    _, place = _varint(page, place)
    if size > _LARGEST_ROW:
        raise ValueError("no row is so large")
    return _values(_payload(page, place, size, pages))


def _payload(page: bytes, place: int, size: int, pages: Mapping[int, bytes]) -> bytes:
    """Collect a row's bytes from its cell and its chain of overflow pages."""
    largest, least = _PAGE - 35, (_PAGE - 12) * 32 // 255 - 23
    if size <= largest:
        return page[place : place + size]
    local = least + (size - least) % (_PAGE - 4)
    local = local if local <= largest else least
    parts, missing = [page[place : place + local]], size - local
    (following,) = struct.unpack_from(">I", page, place + local)
    while missing > 0:
        parts.append(pages[following][4 : 4 + missing])
        (following,) = struct.unpack_from(">I", pages[following])
        missing -= _PAGE - 4
    return b"".join(parts)


def _values(payload: bytes) -> list[Any]:
    end, place = _varint(payload, 0)
    kinds = []
    while place < end:
        kind, place = _varint(payload, place)
        kinds.append(kind)
    values = []
    for kind in kinds:
        value, place = _value(payload, place, kind)
        values.append(value)
    if place != len(payload):
        raise ValueError("the row is longer than its columns")
    return values


def _value(payload: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), place
    if kind == 7:
        return struct.unpack_from(">d", payload, place)[0], place + 8
    if kind in _INTEGER_BYTES:
        end = place + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[place:end], "big", signed=True), end
    if kind < 12:
        raise ValueError("no such kind of value")
    end = place + (kind - 12) // 2
    raw = payload[place:end]
    return (raw.decode() if kind % 2 else raw), end


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for step in range(8):
        byte = data[place + step]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + step + 1
    return value << 8 | data[place + 8], place + 9
