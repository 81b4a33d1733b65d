"""Which thread runs a model.

TVM keeps one pool of workers for each thread that ever ran a parallel kernel, sizes it at its first use, and leaves it
behind when that thread ends. Hence:

- With one thread no pool is made: a model runs in the thread that calls it, and callers run side by side.
- With more, the main thread runs models itself, with the thread count of the first session that ran there.
- Every other call goes to a lane: a thread that stays for the life of the process. There is one set of lanes for
  each thread count, as many as fit on the cores, so that sessions of different counts leave each other's pools alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tvmstack.core.device import physical_cores
from tvmstack.runtime.library import set_thread_count

__all__ = ["run_on_lane"]

T = TypeVar("T")


class _Here(threading.local):
    """What this thread is known to have: the count last set in it, the size of its pool (0: none, -1: unusable)."""

    count = 0
    pool = 0


_here = _Here()
_lanes: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def run_on_lane(threads: int, work: Callable[..., T], *args: Any) -> T:
    """Return `work(*args)`, run with `threads` TVM threads, here where that leaves nothing behind."""
    if threads == 1:
        _set_count(1)
        return work(*args)
    if threading.current_thread() is threading.main_thread() and _here.pool in (0, threads):
        _here.pool = threads
        _set_count(threads)
        return work(*args)
    return _lane(threads).submit(work, *args).result()


def _set_count(threads: int) -> None:
    if _here.count != threads:
        set_thread_count(threads)
        _here.count = threads


def _lane(threads: int) -> ThreadPoolExecutor:
    lane = _lanes.get(threads)
    if lane is None:
        with _lock:
            lane = _lanes.get(threads) or ThreadPoolExecutor(
                max_workers=max(1, physical_cores() // threads),
                thread_name_prefix=f"tvmstack-{threads}",
                initializer=set_thread_count,
                initargs=(threads,),
            )
            _lanes[threads] = lane
    return lane


def _after_fork() -> None:
    """Give up what the parent's threads were: in the child they do not exist."""
    global _lock
    _lock = threading.Lock()
    _lanes.clear()
    _here.pool = -1 if _here.pool else 0


os.register_at_fork(after_in_child=_after_fork)
