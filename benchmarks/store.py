"""How quick a store of 100,000 records is, in a file or on a server: python -m benchmarks.store [--store URL]."""

from __future__ import annotations

import contextlib
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from tvmstack.core.device import Device
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.store import KeyContext, PruneRule, Record, export_records, open_store, prune, stats

__all__ = ["fill", "measure", "model_of"]

KERNELS_OF_A_MODEL = 60
_TRIALS = 50
_DEVICE = Device("cpu", "a benchmark's CPU", "x86_64", "haswell", ("avx2", "fma"), 2, (1 << 15, 1 << 20, 1 << 23))
_CONTEXTS = tuple(
    KeyContext(_DEVICE, '{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}', f"tvm 0.{minor}.0, ffi 0.1.14", "p", "1")
    for minor in (25, 26, 27)
)
CONTEXT = _CONTEXTS[-1]
_ARGUMENTS = 'x: T.Buffer((T.int64(1), T.int64({n}), T.int64(64)), "float32"), y: T.Buffer((T.int64(64),), "float32")'


def workload(number: int) -> str:
    """Return a text of about the length of a kernel's."""
    return f"def main({_ARGUMENTS.format(n=number + 1)}):\n" + "    y[v_j] = y[v_j] + x[0, v_i, v_j]\n" * 75


def records(total: int) -> Iterator[Record]:
    """Yield trials of many kernels, each under three versions of TVM, a few of them finalists, some failed."""
    for number in range(total):
        index, trial = divmod(number, _TRIALS)
        kernel, context = divmod(index, len(_CONTEXTS))
        failed = trial % 17 == 16
        decisions = {"oc": 2, "oh": 1, "order": 0, "ow": trial, "pad": 1}
        yield Record(
            workload(kernel),
            "dense",
            Choice("dense", decisions),
            status="run: crash (signal 11)" if failed else "ok",
            median_s=1e-5 + trial * 1e-7,
            is_default=trial == 0,
            is_final=trial < 2,
            when=1.7e9 + number,
            **_CONTEXTS[context].fields,
        )


def fill(where: str, total: int) -> None:
    """Put `total` records into the store."""
    with contextlib.closing(open_store(where, shipped=False)) as store:
        store.take(records(total))


def model_of(total: int, known: bool) -> list[Kernel]:
    """Return the kernels of a model: spread over what the store holds, or shapes that it does not."""
    step = total // _TRIALS // len(_CONTEXTS) // KERNELS_OF_A_MODEL
    numbers = range(0, step * KERNELS_OF_A_MODEL, step) if known else range(10**6, 10**6 + KERNELS_OF_A_MODEL)
    return [Kernel(f"k{n}", None, workload(n), 1, 1.0, 1.0, "dense") for n in numbers]


def measure(where: str, total: int) -> dict[str, float]:
    """Return seconds of what a user waits for, the store's size, and what the process's memory grew by."""
    base, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}

    def clock(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = work()
        seconds[f"{name}_s"] = round(time.perf_counter() - start, 4)
        return value

    store = clock("open", lambda: open_store(where, shipped=False))
    known, strange = model_of(total, known=True), model_of(total, known=False)
    found = clock("look_up", lambda: [store.best(k, CONTEXT) for k in known])
    assert all(found)
    clock("explain_hits", lambda: [store.explain(k, CONTEXT) for k in known])
    clock("explain_misses", lambda: [store.explain(k, CONTEXT) for k in strange])
    clock("neighbours", lambda: [store.neighbours(k, CONTEXT) for k in known])
    facts = clock("stats", lambda: stats(store))
    clock("list", lambda: store.records(50))
    clock("prune_dry_run", lambda: prune(store, PruneRule(superseded=True), dry_run=True))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    with tempfile.TemporaryDirectory() as folder:
        clock("export", lambda: export_records(store, Path(folder) / "out.jsonl"))
    exported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    store.close()
    assert facts["records"] == total
    size = facts["size_bytes"] / (1 << 20)
    return {**seconds, "size_mib": round(size, 1), "memory_mib": memory >> 10, "memory_with_export_mib": exported >> 10}


@click.command()
@click.option("--store", "where", metavar="URL", help="An empty store [default: a file in a temporary folder].")
@click.option("--records", "total", type=int, default=100_000, show_default=True)
def main(where: str | None, total: int) -> None:
    """Fill a store and time what a user waits for; print it as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        place = where or str(Path(folder) / "store.db")
        start = time.perf_counter()
        fill(place, total)
        filled = round(time.perf_counter() - start, 1)
        click.echo(json.dumps({"records": total, "fill_s": filled, **measure(place, total)}, indent=2))


if __name__ == "__main__":
    main()
