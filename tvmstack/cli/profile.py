"""`tvmstack profile`."""

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
@click.option("--report", metavar="FILE.html", help="Also write a page with a roofline; it needs no network.")
@threads_option
@board_option
@json_option
def profile(
    artifact: str,
    inputs: tuple[str, ...],
    repeats: int,
    peaks: bool,
    top: int | None,
    report: str | None,
    threads: int | None,
    board: str | None,
    as_json: bool,
) -> None:
    """Show where ARTIFACT's time goes.

    A row a kernel: its time, share, GFLOP/s, GB/s, what bounds it, its share of the roof that the machine's measured
    peaks set, and the ONNX nodes it computes; then the kernels worth tuning.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.driver.result import check_output, write_text
    from tvmstack.report.html import profile_html
    from tvmstack.report.timing import profile_page

    if report:
        check_output(Path(report))
    data = driver.profile(
        artifact, inputs=inputs_from_texts(inputs), repeats=repeats, peaks=peaks, threads=threads, board=board
    ).to_json()
    if report:
        write_text(Path(report), profile_html(data, Path(artifact).name))
    emit(data, as_json, lambda found: profile_page(found, top))
