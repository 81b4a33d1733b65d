"""`tvmstack profile`."""

from __future__ import annotations

import click

from tvmstack.cli.options import (
    artifact_argument,
    board_option,
    input_option,
    inputs_from_texts,
    json_option,
    threads_option,
)

__all__ = ["profile"]


@click.command()
@artifact_argument
@input_option
@click.option(
    "--repeats", type=click.IntRange(min=1), default=20, show_default=True, help="Inferences to average over."
)
@click.option(
    "--peaks/--no-peaks", default=True, help="Measure the machine's peaks first (about 3 s) to set kernels against."
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show only the N costliest kernels.")
@threads_option
@board_option
@json_option
def profile(
    artifact: str,
    inputs: tuple[str, ...],
    repeats: int,
    peaks: bool,
    top: int | None,
    threads: int | None,
    board: str | None,
    as_json: bool,
) -> None:
    """Show where ARTIFACT's time goes.

    A row a kernel: its time, share, GFLOP/s, GB/s, share of the machine's peak, and who owns it.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.timing import profile_page

    report = driver.profile(
        artifact, inputs=inputs_from_texts(inputs), repeats=repeats, peaks=peaks, threads=threads, board=board
    )
    emit(report.to_json(), as_json, lambda data: profile_page(data, top))
