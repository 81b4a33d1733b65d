from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmstack.artifact.elf import Section, SectionWriter, read_sections
from tvmstack.core.errors import ArtifactError

pytestmark = pytest.mark.null


def add(path: Path, **sections: bytes) -> dict[str, Section]:
    with path.open("r+b") as file:
        writer = SectionWriter(file)
        added = {name: writer.add(f".{name}", [data]) for name, data in sections.items()}
        writer.finish()
    return added


def test_sections_come_back_as_they_went_in(library: Path) -> None:
    before = read_sections(library)
    add(library, one=b"first", two=b"", three=bytes(range(256)) * 10)
    found = read_sections(library)
    raw = library.read_bytes()
    assert raw[found[".one"].offset : found[".one"].end] == b"first"
    assert found[".two"].size == 0
    assert raw[found[".three"].offset : found[".three"].end] == bytes(range(256)) * 10
    assert all(found[name].offset % 64 == 0 for name in (".one", ".two", ".three"))
    assert set(before) < set(found)


def test_the_library_still_loads(library: Path) -> None:
    add(library, extra=b"x" * 100_000)
    assert ctypes.CDLL(str(library))._handle


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
@pytest.mark.parametrize("machine", [62, 183], ids=["x86_64", "aarch64"])
def test_readelf_accepts_the_file(machine: int, library: Path) -> None:
    raw = bytearray(library.read_bytes())
    raw[18:20] = machine.to_bytes(2, "little")
    library.write_bytes(raw)
    add(library, extra=b"x" * 1000)
    done = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert ".extra" in done.stdout
    assert ".text" in done.stdout


def test_a_section_beyond_4_gb_is_found(library: Path) -> None:
    with library.open("r+b") as file:
        file.truncate(5 << 30)  # a hole, no real bytes
    add(library, far=b"far away")
    section = read_sections(library)[".far"]
    assert section.offset >= 5 << 30
    with library.open("rb") as file:
        file.seek(section.offset)
        assert file.read(section.size) == b"far away"


def test_a_dropped_section_leaves_no_trace(library: Path) -> None:
    add(library, kept=b"kept")
    once = library.read_bytes()
    add_last = Path(shutil.copy(library, library.with_name("other.so")))
    add(add_last, last=b"old" * 1000)
    with add_last.open("r+b") as file:
        writer = SectionWriter(file, drop=".last")
        writer.add(".last", [b"new"])
        writer.finish()
    found = read_sections(add_last)
    raw = add_last.read_bytes()
    assert raw[found[".last"].offset : found[".last"].end] == b"new"
    assert raw[found[".kept"].offset : found[".kept"].end] == b"kept"
    assert b"oldold" not in raw
    assert len(raw) < len(once) + 5000


def _cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def _patched(offset: int, value: bytes) -> Callable[[Path], None]:
    def patch(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[offset : offset + len(value)] = value
        path.write_bytes(raw)

    return patch


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.unlink(), "there is no file"),
        (lambda p: (p.unlink(), p.mkdir()), "is a folder"),
        (lambda p: p.write_bytes(b""), "does not begin as an ELF file"),
        (lambda p: p.write_bytes(b"PK\x03\x04" * 100), "does not begin as an ELF file"),
        (_cut(40), "cut short"),
        (_cut(64), "cut short"),
        (_cut(5000), "cut short"),
        (_patched(4, b"\x01"), "not a 64-bit"),
        (_patched(5, b"\x02"), "not a 64-bit"),
        (_patched(40, b"\xff" * 8), "cut short"),
        (_patched(58, b"\0\0"), "damaged"),
        (_patched(60, b"\0\0"), "damaged"),
        (_patched(62, b"\xff\xff"), "cut short"),
    ],
)
def test_what_is_no_whole_elf_file_is_refused_in_words(
    damage: Callable[[Path], None], words: str, library: Path
) -> None:
    damage(library)
    with pytest.raises(ArtifactError, match=words) as caught:
        read_sections(library)
    assert str(library) in str(caught.value)
