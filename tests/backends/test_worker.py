"""A vendor's crash, hang and noise in a worker process."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.odd import Odd
from tvmstack.backends.base import Blob, NodeVerdict, Options, Support
from tvmstack.backends.wire import pack, unpack
from tvmstack.backends.worker import hosted
from tvmstack.core.errors import BackendError, UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region

pytestmark = pytest.mark.null

SPEC = TensorSpec("x", "float32", (1, "n"))
REGION = Region("d" * 16, b"model", (SPEC,), (SPEC,), ("a",), ())


def compiled(how: str, seconds: float = 60.0, **extra: Any) -> Blob:
    backend = hosted(Odd())
    options = Options(seconds=seconds, extra={"how": how, **extra})
    return backend.compile(REGION, backend.targets()[0], options, {"x": [np.ones((1, 2), np.float32)]})


def test_a_crash_is_a_sentence_with_the_last_words() -> None:
    with pytest.raises(BackendError, match=r"odd crashed \(SIGSEGV\) in compile; .*about to read from nowhere"):
        compiled("crash")


def test_a_hang_ends_with_all_its_children(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with pytest.raises(BackendError, match=r"odd was stopped after 3 s in compile"):
        compiled("hang", 3.0, note=str(note))
    for process in map(int, note.read_text().split()):
        deadline = time.monotonic() + 5
        while _lives(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _lives(process)


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raise", BackendError, r"odd failed in compile: RuntimeError: vendor code 17$"),
        ("ours", UsageError, r"^no such option$"),
        ("quit", BackendError, r"odd ended with code 3 and no answer in compile"),
    ],
)
def test_what_is_raised_keeps_its_kind(how: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        compiled(how)


def test_a_worker_leaves_nothing_and_prints_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("tvmstack")  # the command line, run in another test, gives it a handler on stderr
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    before = set(os.listdir())
    with caplog.at_level(logging.DEBUG, "tvmstack.backends"):
        blob = compiled("well")
    assert blob.data == b"data"
    assert blob.inputs == (SPEC,)
    assert not Path(blob.options["cwd"]).exists()
    assert blob.options["home"] == blob.options["cwd"]
    assert set(os.listdir()) == before
    assert capfd.readouterr().out == ""
    assert "noise on standard output" in caplog.text
    if "not cut off" not in caplog.text:
        assert not blob.options["network"]


def test_values_come_back_as_they_went() -> None:
    value = {
        "array": np.arange(6, dtype=np.int8).reshape(2, 3),
        "verdicts": {"n": NodeVerdict(Support.VENDOR_CPU, "why")},
        "region": REGION,
        "number": 1.5,
    }
    back = unpack(pack(value))
    np.testing.assert_array_equal(back.pop("array"), value.pop("array"))
    assert back == value


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b"\xff" * 8 + d, lambda d: b""])
def test_a_damaged_message_is_an_error_of_the_back_end(damage: Any) -> None:
    with pytest.raises(BackendError, match="damaged"):
        unpack(damage(pack((REGION, b"123"))))


def test_what_is_no_value_of_the_protocol_is_refused() -> None:
    with pytest.raises(BackendError, match="a object cannot pass"):
        pack(object())
