"""`tvmstack run`."""

from __future__ import annotations

from pathlib import Path

import click

from tvmstack.cli.options import (
    artifact_argument,
    board_option,
    input_option,
    inputs_from_texts,
    json_option,
    threads_option,
)

__all__ = ["run"]


@click.command()
@artifact_argument
@input_option
@click.option("--output", "folder", metavar="DIR", help="Write each output to DIR/NAME.npy.")
@threads_option
@board_option
@json_option
def run(
    artifact: str, inputs: tuple[str, ...], folder: str | None, threads: int | None, board: str | None, as_json: bool
) -> None:
    """Run ARTIFACT once and describe its outputs. Only the runtime is loaded, never the compiler."""
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.measure.feed import describe_arrays, save_arrays
    from tvmstack.report.artifact import outputs_page

    outputs = driver.run(artifact, inputs_from_texts(inputs), threads=threads, board=board)
    if folder:
        save_arrays(outputs, Path(folder))
    emit({"outputs": describe_arrays(outputs)}, as_json, outputs_page)
