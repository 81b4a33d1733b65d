"""A PostgreSQL server that goes away in the middle: the run waits and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.writer import CONTEXT, FORKS, batch, check_none_lost, committed, write
from tests.postgres import Server
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.store import Store, open_store

pytestmark = [pytest.mark.faults, pytest.mark.timeout(200)]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_is_restarted_stops_no_writer(
    mode: str, server: Server, tmp_path: Path, opened: Callable[[str], Store]
) -> None:
    where = server.new_database()
    logs = {f"w{n}": tmp_path / f"w{n}" for n in range(2)}
    writers = [FORKS.Process(target=write, args=(where, name, log, 400)) for name, log in logs.items()]
    for writer in writers:
        writer.start()
    while min(map(committed, logs.values())) < 20:
        time.sleep(0.05)
    server.stop(mode)
    stopped = {name: committed(log) for name, log in logs.items()}
    time.sleep(3.0)
    assert all(writer.is_alive() for writer in writers)
    assert {name: committed(log) for name, log in logs.items()} == stopped
    server.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert check_none_lost(opened(where), logs) == 2 * 400 * 5


def test_look_ups_and_claims_wait_too_and_the_wait_is_said(
    server: Server, opened: Callable[[str], Store], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(server.new_database())
    store.add(batch("w", 0))
    kernel = Kernel("kernel", None, batch("w", 0)[0].workload, 1, 1.0, 1.0, "dense")
    server.stop("fast")
    starter = FORKS.Process(target=_start_later, args=(server,))
    starter.start()
    assert len(store.trials(kernel, CONTEXT)) == 5
    assert store.claim(kernel, CONTEXT, [Choice("dense", {"m": 9})], "me", 60).choices
    starter.join()
    assert "is out of reach, waiting up to 10 min" in caplog.text


def _start_later(server: Server) -> None:
    time.sleep(2.0)
    server.start()


def test_a_server_that_stays_away_is_one_sentence(
    server: Server, opened: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(server.new_database())
    monkeypatch.setattr("tvmstack.store.engine.WAIT_S", 1.0)
    server.stop("fast")
    try:
        with pytest.raises(TuningError, match=r"cannot be written: .*onnection"):
            store.add(batch("w", 0))
    finally:
        server.start()
    assert store.add(batch("w", 0)) == 5


def test_a_server_that_is_not_there_at_the_start_is_told_at_once_and_without_the_password() -> None:
    began = time.monotonic()
    with pytest.raises(TuningError, match="cannot be opened") as caught:
        open_store("postgresql://somebody:secret@127.0.0.1:9/store")
    assert time.monotonic() - began < 10
    assert "secret" not in str(caught.value)
