"""A process that writes batches of records and says after each that it is committed, so that it can be killed."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

from tvmstack.core.device import Device
from tvmstack.core.kernel import Choice
from tvmstack.store import KeyContext, Record, Store, open_store

__all__ = ["BATCH", "CONTEXT", "FORKS", "batch", "check_none_lost", "committed", "write"]

BATCH = 5
# About as long as the text of a kernel.
_TEXT = "x" * 2000
DEVICE = Device("cpu", "a test's CPU", "x86_64", "haswell", ("avx2", "fma"), 2, (1 << 15, 1 << 20, 1 << 23))
CONTEXT = KeyContext(DEVICE, "{}", "tvm 0, ffi 0", "pipeline", "1")
# Children are forked from a process that has imported everything, so that a start takes milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.writer", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql"])


def batch(writer: str, number: int) -> list[Record]:
    """Return the records of one batch: their workloads name the writer and the batch."""
    base = Record(
        f"{writer} {number} {_TEXT}", "dense", Choice("dense"), median_s=1e-5, when=1.0 + number, **CONTEXT.fields
    )
    return [replace(base, choice=Choice("dense", {"m": m})) for m in range(BATCH)]


def write(store: str, writer: str, log: Path, batches: int = 1_000_000) -> None:
    """Write batches, each acknowledged by a byte in `log` once it is committed."""
    acknowledged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    opened = open_store(store, shipped=False)
    for number in range(batches):
        opened.add(batch(writer, number))
        os.write(acknowledged, b".")


def committed(log: Path) -> int:
    """Return how many batches a writer had been told are safe."""
    return log.stat().st_size if log.exists() else 0


def check_none_lost(store: Store, logs: dict[str, Path]) -> int:
    """Every batch acknowledged is there and whole, and at most the one in flight besides; return the records found."""
    held: dict[str, dict[int, int]] = {}
    for record in store.walk():
        writer, number, _ = record.workload.split()
        counts = held.setdefault(writer, {})
        counts[int(number)] = counts.get(int(number), 0) + 1
    for writer, log in logs.items():
        counts, acknowledged = held.get(writer, {}), committed(log)
        assert sorted(counts) == list(range(len(counts))), f"{writer}: gaps"
        assert acknowledged <= len(counts) <= acknowledged + 1, f"{writer}: {acknowledged} told, {len(counts)} held"
        assert set(counts.values()) <= {BATCH}, f"{writer}: half a batch"
    return sum(sum(counts.values()) for counts in held.values())
