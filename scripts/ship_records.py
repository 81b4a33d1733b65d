"""Write the finished records of benchmark models on this device to `tuning_logs/`; see --help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.catalog import names, source
from tvmstack.cli.options import store_option
from tvmstack.core.device import detect_device
from tvmstack.core.kernel import Kernel, site_kernel
from tvmstack.driver.algorithms import recorded
from tvmstack.driver.steps import Prepared, key_context, open_records, prepare

LOGS = Path(__file__).resolve().parent.parent / "tuning_logs"
# So many of a model's costliest kernels also ship what lost, from which the cost model learns.
_TAUGHT_BY = 8


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="NAME…")
@click.option("--prefix", required=True, help="What the files' names begin with: the kind of machine.")
@store_option
def main(models: tuple[str, ...], prefix: str, store: str | None) -> None:
    """Ship what the store holds for benchmark models: winners, algorithms, and some of what lost. One file a model."""
    unknown = sorted(set(models) - set(names()))
    if unknown:
        raise click.UsageError(f"unknown model {unknown[0]}; known are {', '.join(names())}")
    device = detect_device()
    with open_records(store) as records:
        for name in models:
            model = source(name)
            pick = recorded(records, device, winograd=True)
            prepared = prepare(model.file(), model.shapes, device, (), model.freeze, None, pick)
            lines = sorted({record.to_line() for record in _records(prepared, records)})
            file = LOGS / f"{prefix}.{name}.jsonl"
            file.write_text("".join(f"{line}\n" for line in lines))
            click.echo(f"{len(lines)} records in {file.name}")


def _records(prepared: Prepared, records: Any) -> Iterator[Any]:
    context = key_context(prepared)
    kernels = prepared.lowered.kernels
    for site in {k.site for k in kernels if k.site}:
        yield from (r for r in records.trials(site_kernel(site), context) if r.is_final)
    ranked: list[Kernel] = []
    for kernel in kernels:
        best = records.best(kernel, context)
        if best is not None and best.source == "tuned" and best.is_final:
            yield best
            ranked.append(kernel)
    for kernel in ranked[:_TAUGHT_BY]:
        measured = [r for r in records.trials(kernel, context) if math.isfinite(r.median_s)]
        by_time = sorted(measured, key=lambda r: r.median_s)
        yield from (by_time[len(by_time) // 2], by_time[-1])


if __name__ == "__main__":
    main()
