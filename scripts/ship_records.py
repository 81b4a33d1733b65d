"""Write the finished records of one model on this device to `tuning_logs/`: python -m scripts.ship_records --help."""

from __future__ import annotations

from pathlib import Path

import click

from tvmstack.cli.options import device_option, model_argument, shape_option, shapes_from_texts, store_option
from tvmstack.driver.steps import key_context, open_records, prepare

LOGS = Path(__file__).resolve().parent.parent / "tuning_logs"


@click.command()
@model_argument
@click.option("--name", required=True, help="Name of the file, without .jsonl.")
@shape_option
@device_option
@store_option
def main(model: str, name: str, shapes: tuple[str, ...], device: str | None, store: str | None) -> None:
    """Ship what the store holds for MODEL: the winner of each kernel, and the default it was measured against."""
    prepared = prepare(model, shapes_from_texts(shapes), device, (), None)
    context = key_context(prepared)
    lines = {}
    with open_records(store) as records:
        for kernel in prepared.lowered.kernels:
            best = records.best(kernel, context)
            if best is not None and best.source == "tuned" and best.is_final:
                lines[kernel.workload] = best.to_line()
    file = LOGS / f"{name}.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines.values()))
    click.echo(f"{len(lines)} records in {file.name}")


if __name__ == "__main__":
    main()
