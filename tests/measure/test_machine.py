from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvmstack.core.errors import SetupError
from tvmstack.measure import machine
from tvmstack.report.machine import machine_page
from tvmstack.report.words import count, duration, size


@pytest.mark.null
def test_no_compiler_on_path_is_said_with_what_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SetupError, match=r"no C\+\+ compiler on PATH .*g\+\+.* install g\+\+"):
        machine.require_linker()


@pytest.mark.null
def test_a_compiler_named_in_the_environment_but_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SetupError, match="'no-such-compiler' named by"):
        machine.require_linker()


@pytest.mark.null
def test_a_compiler_that_cannot_link_is_refused_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'ld: not today' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SetupError, match="ld: not today"):
        machine.require_linker()


@pytest.mark.null
def test_the_ffi_release_that_crashes_is_named_with_the_one_that_works() -> None:
    lines = machine.known_bad({"apache-tvm-ffi": "0.1.15.post2"})
    assert lines == [
        "apache-tvm-ffi 0.1.15.post2: MetaSchedule crashes with it; pip install apache-tvm-ffi==0.1.14.post1"
    ]
    assert machine.known_bad({"apache-tvm-ffi": "0.1.14.post1"}) == []


@pytest.mark.cpu
def test_doctor_measures_peaks_that_a_cpu_can_have() -> None:
    facts = machine.examine(with_peaks=True)
    assert facts["ok"], facts["problems"]
    assert facts["peaks"]["method"] == "fma kernel"
    assert 1 < facts["peaks"]["gflops"] < 100_000
    assert 0.5 < facts["peaks"]["gbytes"] < 10_000
    assert machine_page(facts)


@pytest.mark.null
@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5e-6, "2.5 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (125.0, "2 min 05 s"), (0.0, "0 µs")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.null
def test_sizes_and_counts_read_well() -> None:
    assert [size(512), size(2048), size(3 << 20), size(5 << 30)] == ["512 B", "2.0 KiB", "3.0 MiB", "5.00 GiB"]
    assert [count(1, "node"), count(2, "node"), count(2, "try", "tries")] == ["1 node", "2 nodes", "2 tries"]
