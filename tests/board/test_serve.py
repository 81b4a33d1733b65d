"""The server's process from its starter's side."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.null

_CHILD = "print('serving k on 127.0.0.1:1', flush=True); import time; time.sleep(60)"
_STARTER = f"""
import sys, time
from tvmstack.board.serve import ServerProcess
print(ServerProcess([sys.executable, "-c", {_CHILD!r}]).pid, flush=True)
time.sleep(60)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_ends_with_a_starter_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert _runs(pid)
        starter.kill()
    until = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)
