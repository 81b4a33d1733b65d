"""What boards and candidates can do wrong, and what it costs: no more than it must. Boards here are real processes."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.board.conftest import Farm
from tvmstack.board.doctor import examine
from tvmstack.board.errors import BadCandidate, BoardCrash, BoardLost, BoardRefused, BoardTimeout, TurnOver
from tvmstack.board.health import Health
from tvmstack.board.serve import ServerOptions as Options
from tvmstack.board.serve import ServerProcess, native_command
from tvmstack.board.tracker import BoardSpec
from tvmstack.board.watch import Boards, Limits, list_states

pytestmark = pytest.mark.cpu
HERE = platform.machine()
SHAPES = [([8], "float32"), ([8], "float32")]
QUICK = Limits(
    queue_s=15.0, recover_s=12.0, stages={"connect": 5.0, "load": 10.0, "upload": 5.0, "run": 1.5}, longest_s=60.0
)
HASTY = Limits(queue_s=15.0, recover_s=3.0, stages={"connect": 3.0, "load": 5.0, "upload": 2.0, "run": 1.5})


def introduced(spec: BoardSpec, limits: Limits, default: Path) -> Boards:
    boards = Boards(spec, limits=limits)
    boards.kernel("kernel", SHAPES)
    assert min(boards.measure("kernel", default, True)) > 0
    return boards


def test_each_fault_of_a_candidate_has_its_kind_and_leaves_the_board_in_use(
    farm: Farm, c_kernel: Callable[..., Path], tmp_path: Path
) -> None:
    good, wrong = c_kernel(), c_kernel(added=2.0)
    text = tmp_path / "text.so"
    text.write_text("this is no library")
    with introduced(farm.board("faults", HERE), QUICK, good) as boards:
        with pytest.raises(BadCandidate, match="wrong values: off by 1"):
            boards.measure("kernel", wrong, False)
        with pytest.raises(BadCandidate, match=r"cannot load text\.so"):
            boards.measure("kernel", text, False)
        with pytest.raises(BoardCrash, match="still there"):
            boards.measure("kernel", c_kernel("*(volatile int*)0 = 1"), False)
        boards.kernel("kernel", SHAPES)
        boards.measure("kernel", good, True)
        start = time.monotonic()
        with pytest.raises(BoardTimeout, match=r"no progress in 2 s of stage 'run'.*still there"):
            boards.measure("kernel", c_kernel("for (;;) pause()"), False)
        assert time.monotonic() - start < 20
        boards.kernel("kernel", SHAPES)
        assert min(boards.measure("kernel", good, True)) > 0
        assert boards.health.all() == {}
        assert all(boards.seconds[clock] > 0 for clock in ("queue", "connect", "upload", "load", "run"))


@pytest.mark.slow
def test_slow_work_that_makes_progress_is_waited_for(farm: Farm, c_kernel: Callable[..., Path]) -> None:
    slow = c_kernel("usleep(250000)")
    limits = Limits(stages={**QUICK.stages, "run": 3.0})
    with introduced(farm.board("slow", HERE), limits, slow) as boards:
        start = time.monotonic()
        for _ in range(2):
            boards.measure("kernel", slow, False)
        assert time.monotonic() - start > 3.0


@pytest.mark.slow
def test_long_work_takes_turns_instead_of_being_cut_off(farm: Farm, c_kernel: Callable[..., Path]) -> None:
    limits = Limits(queue_s=15.0, stages=QUICK.stages, longest_s=10.0)
    with introduced(farm.board("turns", HERE), limits, c_kernel()) as boards:
        time.sleep(8.0)
        with pytest.raises(TurnOver):
            boards.measure("kernel", c_kernel(), False)
        boards.kernel("kernel", SHAPES)
        assert min(boards.measure("kernel", c_kernel(), True)) > 0
        assert boards.health.all() == {}


def test_when_a_board_is_killed_another_of_its_class_goes_on(farm: Farm, c_kernel: Callable[..., Path]) -> None:
    spec = farm.board("pair", HERE, "one")
    good = c_kernel()
    with introduced(spec, QUICK, good) as boards:
        farm.board("pair", HERE, "two")
        farm.servers[0].stop()
        with pytest.raises(BoardLost, match=r"board one was lost \(.*\); two goes on"):
            boards.measure("kernel", good, False)
        assert boards.is_open
        boards.kernel("kernel", SHAPES)
        assert min(boards.measure("kernel", good, True)) > 0
        assert list(Health().all()) == [boards.board_id("one")]


def test_when_the_last_board_is_killed_the_loss_is_told(farm: Farm, c_kernel: Callable[..., Path]) -> None:
    with introduced(farm.board("last", HERE, "only one"), HASTY, c_kernel()) as boards:
        farm.stop()
        with pytest.raises(BoardLost, match=r"only one was lost .* no other is there"):
            boards.measure("kernel", c_kernel(), False)
        assert not boards.is_open


def test_a_hung_board_is_lost_within_its_deadlines(farm: Farm, c_kernel: Callable[..., Path]) -> None:
    with introduced(farm.board("hung", HERE, "stopped"), HASTY, c_kernel()) as boards:
        server = farm.servers[0].pid
        session = int(Path(f"/proc/{server}/task/{server}/children").read_text().split()[0])
        for pid in (server, session):
            os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        try:
            with pytest.raises(BoardLost, match="stopped was lost"):
                boards.measure("kernel", c_kernel(), False)
        finally:
            for pid in (session, server):
                os.kill(pid, signal.SIGCONT)
        assert time.monotonic() - start < 15
    assert "no progress" in Health().all()[boards.board_id("stopped")].reason


def test_a_board_with_another_abi_is_refused_with_a_sentence(farm: Farm, server_folder: Callable[..., Path]) -> None:
    farm.folders["old"] = server_folder(HERE, "0.24.0")
    host, _, port = farm.tracker.partition(":")
    options = Options("old", farm.tracker, name="old-timer")
    farm.servers.append(ServerProcess(native_command(farm.folders["old"], HERE, options)))
    with pytest.raises(BoardRefused, match=r"linked to TVM 0\.24\.0, here is 0\.27\..*build it again with"):
        Boards(BoardSpec("old", host, int(port)), limits=HASTY)
    row = next(row for row in list_states(farm.tracker) if row["name"] == "old-timer")
    assert "quarantine" in row["state"]


_LIES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

int uname(struct utsname* out) {
  int (*real)(struct utsname*) = (int (*)(struct utsname*))dlsym(RTLD_NEXT, "uname");
  int code = real(out);
  if (getenv("SAY_ARCH")) strcpy(out->machine, getenv("SAY_ARCH"));
  return code;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  int (*real)(clockid_t, struct timespec*) = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, out);
  if (getenv("RUN_FAST") && clock == CLOCK_MONOTONIC) {
    long long ns = (out->tv_sec * 1000000000LL + out->tv_nsec) / 10 * 11;
    out->tv_sec = ns / 1000000000LL;
    out->tv_nsec = ns % 1000000000LL;
  }
  return code;
}
"""


@pytest.fixture
def liar(farm: Farm, tmp_path: Path) -> Callable[[str, str, str], BoardSpec]:
    """Return a function that starts a board of this machine which lies about one thing."""
    library = tmp_path / "lies.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=_LIES, text=True, check=True)

    def start(key: str, about: str, lie: str) -> BoardSpec:
        host, _, port = farm.tracker.partition(":")
        command = native_command(farm.folders[HERE], HERE, Options(key, farm.tracker, name=key))
        farm.servers.append(ServerProcess(command, {"LD_PRELOAD": str(library), about: lie}))
        return BoardSpec(key, host, int(port))

    return start


@pytest.mark.skipif(HERE != "x86_64" or not shutil.which("aarch64-linux-gnu-g++"), reason="needs an ARM cross compiler")
def test_a_board_that_lies_about_its_cpu_is_found_out(liar: Callable[[str, str, str], BoardSpec]) -> None:
    with pytest.raises(BoardRefused, match="says it is aarch64, but does not run such code"):
        Boards(liar("liar", "SAY_ARCH", "aarch64"), limits=HASTY)


def test_doctor_sees_a_clock_that_runs_fast(liar: Callable[[str, str, str], BoardSpec]) -> None:
    with Boards(liar("racer", "RUN_FAST", "1")) as boards:
        report = examine(boards, seconds=1.0)
    rows = {row["name"]: row for row in report["rows"]}
    assert not rows["clock"]["ok"]
    assert "runs +10" in rows["clock"]["reason"]
    assert not report["ok"]


def test_doctor_measures_an_honest_board(farm: Farm) -> None:
    with Boards(farm.board("honest", HERE)) as boards:
        report = examine(boards, seconds=0.5)
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["reach", "versions", "run", "upload", "noise", "clock", "heat"]
    assert all(rows[name]["ok"] for name in ("reach", "versions", "run", "upload", "clock"))
    assert "µs" in rows["noise"]["figure"]


def test_boards_of_one_class_that_differ_are_told_apart(
    farm: Farm, c_kernel: Callable[..., Path], server_folder: Callable[..., Path]
) -> None:
    farm.folders["aarch64"] = server_folder("aarch64")
    spec = farm.board("mixed", HERE, "here")
    limits = Limits(queue_s=15.0, recover_s=12.0, stages={**QUICK.stages, "connect": 10.0})
    with introduced(spec, limits, c_kernel()) as boards:
        farm.board("mixed", "aarch64", "arm")
        farm.servers[0].stop()
        with pytest.raises(BoardLost, match="another device than here"):
            boards.measure("kernel", c_kernel(), False)


def test_a_board_in_quarantine_is_left_alone_and_comes_back_by_its_self_test(farm: Farm) -> None:
    spec = farm.board("sick", HERE, "patient")
    health = Health()
    board_id = f"patient@{spec.host}:{spec.port}"
    health.failed(board_id, "it smelled of smoke")
    with pytest.raises(BoardLost, match=r"in quarantine for another \d+ s \(it smelled of smoke\)"):
        Boards(spec, limits=HASTY)
    with Boards(spec, limits=QUICK, only="patient") as boards:
        assert boards.facts.name == "patient"
    assert health.of(board_id) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [("", "open sesame", "refuses us"), ("guess", "open sesame", "refuses us"), ("open sesame", "", "does not know")],
)
def test_both_sides_must_know_the_secret(farm: Farm, tmp_path: Path, ours: str, theirs: str, words: str) -> None:
    file = tmp_path / "secret"
    file.write_text(theirs + "\n")
    spec = farm.board("secret", HERE, secret_file=str(file) if theirs else "")
    with pytest.raises(BoardRefused, match=words):
        Boards(spec, ours, HASTY)
    assert bool(Health().all()) == (words == "does not know")


def test_with_the_secret_the_board_opens(farm: Farm, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open sesame, at some length: " + "x" * 80 + "\n")
    spec = farm.board("open", HERE, secret_file=str(file))
    with Boards(spec, file.read_text().strip(), QUICK) as boards:
        assert boards.facts.name == "open"


def test_the_native_server_stays_on_loopback_without_a_secret(farm: Farm) -> None:
    command = native_command(farm.folders[HERE], HERE, Options("wide", farm.tracker, host="0.0.0.0"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert "0.0.0.0 is not loopback" in done.stderr


def test_an_array_survives_the_way_to_a_board_and_back(farm: Farm) -> None:
    from tvmstack.board.session import BoardSession
    from tvmstack.board.tracker import request

    session = BoardSession(request(farm.board("echo", HERE), 10), "", 60)
    for array in (np.float32(3.5), np.arange(12, dtype="int64").reshape(3, 4).T, np.zeros((0, 3), "float32")):
        np.testing.assert_array_equal(session.tensor(np.asarray(array)).numpy(), array)
