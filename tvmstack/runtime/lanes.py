"""Which thread runs a model.

TVM keeps one worker pool for each thread that ever ran a parallel kernel, sizes it at its first use and never takes it away when
the thread ends. So models run only on threads that stay: the main thread, where the call is made there, and else a
few lanes, kept for the life of the process, one set for each thread count.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tvmstack.core.device import physical_cores
from tvmstack.runtime.library import set_thread_count

__all__ = ["run_on_lane"]

T = TypeVar("T")

_claimed: dict[int, int] = {}
_lanes: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def run_on_lane(threads: int, work: Callable[[], T]) -> T:
    """Run `work` with `threads` TVM threads: here if this is the main thread and its pool has that size, else on a lane."""
    here = threading.get_ident()
    if here == threading.main_thread().ident and _claim(here, threads):
        return work()
    return _lane(threads).submit(work).result()


def _claim(ident: int, threads: int) -> bool:
    held = _claimed.get(ident)
    if held is None:
        set_thread_count(threads)
        _claimed[ident] = held = threads
    return held == threads


def _lane(threads: int) -> ThreadPoolExecutor:
    if threads not in _lanes:
        with _lock:
            if threads not in _lanes:
                _lanes[threads] = ThreadPoolExecutor(
                    max_workers=max(1, physical_cores() // threads),
                    thread_name_prefix=f"tvmstack-{threads}",
                    initializer=set_thread_count,
                    initargs=(threads,),
                )
    return _lanes[threads]


def _forget_lanes() -> None:
    """Start afresh in a forked child, which has none of the parent's threads."""
    _claimed.clear()
    _lanes.clear()


os.register_at_fork(after_in_child=_forget_lanes)
