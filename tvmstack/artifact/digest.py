"""Digests of the parts of an artifact, quick enough to be checked at every load: blocks are hashed side by side.

A part's digest is the sha256 of its blocks' sha256. The frame is everything that is no part: the ELF header, the gaps
and the section table behind the parts. Its digest, the seal, is the file's last 32 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tvmstack.artifact.elf import HEADER_SIZE, Section
from tvmstack.core.device import physical_cores

__all__ = ["SEAL_SIZE", "parts_of", "seal_of", "span_digest"]

SEAL_SIZE = 32
_BLOCK = 4 << 20
_LIBRARY = "library"


def parts_of(library_size: int, sections: Mapping[str, Section], names: Mapping[str, str]) -> dict[str, Section]:
    """Return where each part is: the library without its ELF header, and the sections that `names` maps parts to."""
    library = Section(_LIBRARY, HEADER_SIZE, library_size - HEADER_SIZE)
    return {_LIBRARY: library, **{part: sections[section] for part, section in names.items()}}


def span_digest(image: memoryview, span: Section) -> str:
    """Return the digest (hex) of one part of a file's image."""
    starts = range(span.offset, span.end, _BLOCK)
    blocks = [(start, min(start + _BLOCK, span.end)) for start in starts]
    state = hashlib.sha256()
    if len(blocks) < 2:
        digests: Sequence[bytes] = [_hash(image, block) for block in blocks]
    else:
        with ThreadPoolExecutor(physical_cores()) as pool:
            digests = list(pool.map(lambda block: _hash(image, block), blocks))
    for digest in digests:
        state.update(digest)
    return state.hexdigest()


def _hash(image: memoryview, block: tuple[int, int]) -> bytes:
    with image[block[0] : block[1]] as part:
        return hashlib.sha256(part).digest()


def seal_of(image: memoryview, parts: Sequence[Section], end: int) -> bytes:
    """Return the digest of what lies before `end` and in none of the parts."""
    state, at = hashlib.sha256(), 0
    for part in sorted(parts, key=lambda p: p.offset):
        with image[at : max(at, part.offset)] as gap:
            state.update(gap)
        at = max(at, part.end)
    with image[at : max(at, end)] as gap:
        state.update(gap)
    return state.digest()
