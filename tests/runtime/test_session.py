"""A session's life: loading, regions, threads, forks, time and memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvmstack.core.device import physical_cores
from tvmstack.core.errors import ArtifactError, BackendError, SetupError, TvmstackError, UsageError
from tvmstack.runtime import load
from tvmstack.runtime import regions as region_room

pytestmark = pytest.mark.cpu
X = {"x": np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)}
IMAGES = [{"x": np.random.default_rng(i).standard_normal((1, 3, 64, 64)).astype(np.float32)} for i in range(8)]


def os_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("count", [1, 2])
def test_eight_threads_get_what_one_gets(count: int, conv: Path) -> None:
    wrong: list[int] = []
    with load(conv, threads=count) as session:
        want = [session.run(image)["y"].tobytes() for image in IMAGES]
        assert len(set(want)) == len(want)

        def work(index: int) -> None:
            for _ in range(200):
                if session.run(IMAGES[index])["y"].tobytes() != want[index]:
                    wrong.append(index)

        in_threads(work, len(IMAGES))
    assert wrong == []


@pytest.mark.parametrize("count", [1, 2])
def test_threads_that_end_leave_no_threads_behind(count: int, conv: Path) -> None:
    with load(conv, threads=count) as session:
        in_threads(lambda i: session.run(IMAGES[i]) and None, 4)
        before = os_threads()
        for _ in range(5):
            in_threads(lambda i: session.run(IMAGES[i]) and None, 4)
        deadline = time.monotonic() + 5  # a joined thread may take a moment to leave the system
        while os_threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os_threads() <= before


def test_sessions_of_different_thread_counts_give_the_same_answers_by_turns(conv: Path) -> None:
    with load(conv, threads=1) as one, load(conv, threads=2) as two, load(conv, threads=3) as three:
        for image in IMAGES[:3]:
            answers = {session.run(image)["y"].tobytes() for session in (one, two, three, one)}
            assert len(answers) == 1
        assert [s.threads for s in (one, two, three)] == [1, 2, 3]


def test_memory_stays_flat_over_many_runs(conv: Path) -> None:
    with load(conv) as session:
        for image in IMAGES * 30:
            session.run(image)
        before = resident()
        for _ in range(250):
            for image in IMAGES:
                session.run(image)
        assert resident() - before < 2 << 20


def test_memory_stays_flat_over_many_loads(split: Path) -> None:
    for _ in range(5):
        load(split).close()
    before = resident()
    for _ in range(30):
        load(split).close()
    assert resident() - before < 4 << 20


def test_a_run_outlives_a_close_in_another_thread(conv: Path) -> None:
    session = load(conv, threads=1)
    want = session.run(IMAGES[0])["y"].tobytes()
    odd: list[BaseException] = []

    def work(_: int) -> None:
        try:
            while True:
                assert session.run(IMAGES[0])["y"].tobytes() == want
        except UsageError:
            return
        except (AssertionError, TvmstackError) as err:
            odd.append(err)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    session.close()
    for thread in threads:
        thread.join(20)
    assert odd == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_closed_session_says_so(dense: Path) -> None:
    with load(dense) as session:
        session.run(X)
    session.close()
    for call in (session.run, session.time, session.profile):
        with pytest.raises(UsageError, match="is closed; load it again"):
            call(X)
    assert "closed" in repr(session)


def test_a_session_is_not_pickled(dense: Path) -> None:
    with load(dense) as session, pytest.raises(TypeError, match="load the artifact in the other process"):
        pickle.dumps(session)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_a_count_of_threads_is_a_whole_number(threads: object, dense: Path) -> None:
    with pytest.raises(UsageError, match="threads must be a whole number from 1 on"):
        load(dense, threads=threads)  # type: ignore[arg-type]


def test_the_environment_names_the_default_count(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    assert load(dense).threads == min(2, physical_cores())
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert load(dense).threads == 1
    assert load(dense, threads=2).threads == 2
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(UsageError, match="TVM_NUM_THREADS"):
        load(dense)


def test_a_file_that_is_exchanged_under_a_session_does_not_matter(dense: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    path.write_bytes(dense.read_bytes())
    with load(path) as session:
        want = session.run(X)["y"]
        path.unlink()
        np.testing.assert_array_equal(session.run(X)["y"], want)
        with pytest.raises(ArtifactError, match="there is no file"):
            load(path)


def test_a_replaced_file_is_loaded_anew(dense: Path, conv: Path, tmp_path: Path) -> None:
    path = tmp_path / "same name.so"
    names = []
    for source in (dense, conv):
        part = tmp_path / "part"
        part.write_bytes(source.read_bytes())
        part.replace(path)
        with load(path) as session:
            feeds = {s.name: np.zeros(s.shape, s.dtype) for s in session.inputs}
            names.append([value.shape for value in session.run(feeds).values()])
    assert names[0] != names[1]


def test_no_temporary_folder_is_no_hindrance(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryDirectory", none)
    with load(dense) as session:
        assert session.run(X)["y"].shape == (2, 8)


@pytest.mark.parametrize("kind", ["split", "only_region"])
def test_a_region_computes_what_tvm_would(kind: str, dense: Path, request: pytest.FixtureRequest) -> None:
    with load(dense) as whole, load(request.getfixturevalue(kind)) as session:
        assert session.manifest.regions
        np.testing.assert_allclose(session.run(X)["y"], whole.run(X)["y"], rtol=1e-5, atol=1e-6)


def test_sessions_share_a_region_until_the_last_is_closed(split: Path) -> None:
    first, second = load(split), load(split)
    want = first.run(X)["y"]
    (digest,) = (r["digest"] for r in first.manifest.regions)
    first.close()
    np.testing.assert_array_equal(second.run(X)["y"], want)
    second.close()
    assert digest not in region_room._held


def test_a_region_that_fails_is_an_error_of_the_back_end(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(split) as session:
        want = session.run(X)["y"]
        (region,) = region_room._held.values()

        class Broken:
            def run(self, *_: object) -> None:
                raise RuntimeError("out of luck\nsecond line")

        working = region._engine
        monkeypatch.setattr(region, "_engine", Broken())
        with pytest.raises(BackendError, match=r"split\.so failed: .*onnxruntime failed in region \w+: out of luck$"):
            session.run(X)
        monkeypatch.setattr(region, "_engine", working)
        np.testing.assert_array_equal(session.run(X)["y"], want)


def test_a_missing_onnxruntime_is_named(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SetupError, match="pip install onnxruntime"):
        load(split)


def test_times_are_one_a_run(dense: Path) -> None:
    with load(dense) as session:
        times = session.time(X, repeats=7)
    assert len(times) == 7
    assert all(0 < t < 1 for t in times)


def test_a_profile_names_kernels_and_regions(split: Path) -> None:
    with load(split) as session:
        rows = {row.name: row for row in session.profile(X, repeats=3)}
        again = session.run(X)["y"]
    assert any(name.startswith("tvmstack.region.") for name in rows)
    assert not any(name.startswith("vm.") for name in rows)
    assert all(row.calls == 1 and 0 < row.seconds < 1 for row in rows.values())
    assert again.shape == (2, 8)


FRESH = """
import os, sys, time
start = time.perf_counter()
import tvmstack.runtime
spent = time.perf_counter() - start
import numpy as np
x = {"x": np.ones((2, 32), np.float32)}
session = tvmstack.runtime.load(sys.argv[1])
y = session.run(x)["y"]
peak = next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]
bad = [m for m in ("tvm", "onnx", "onnx_ir", "onnxruntime", "sqlalchemy", "tvmstack.lower") if m in sys.modules]
print(spent, int(peak) // 1024, bad, y.shape)
"""

FORKED = """
import os, sys
import numpy as np
from tvmstack.runtime import load
x = {"x": np.ones((1, 3, 64, 64), np.float32)}
session = load(sys.argv[1], threads=2)
want = session.run(x)["y"].tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if session.run(x)["y"].tobytes() == want else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

CALM = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before = os.sched_getaffinity(0)
import numpy as np
from tvmstack.runtime import load
load(sys.argv[1], threads=2).run({"x": np.ones((1, 3, 64, 64), np.float32)})
sys.exit(os.sched_getaffinity(0) != before)
"""


def python(code: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


def test_a_fresh_process_needs_little_time_and_memory_and_no_compiler(dense: Path) -> None:
    done = python(FRESH, dense)
    assert done.returncode == 0, done.stderr
    spent, peak, *rest = done.stdout.split(maxsplit=2)
    assert float(spent) < 1.0
    assert int(peak) < 100
    assert rest[0].startswith("[] ")
    assert done.stderr == ""


def test_a_forked_child_runs_the_parents_session(conv: Path) -> None:
    done = python(FORKED, conv)
    assert done.returncode == 0, done.stderr


def test_the_callers_affinity_is_left_alone(conv: Path) -> None:
    done = python(CALM, conv)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
