"""`tvmstack bench`."""

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

__all__ = ["bench"]


@click.command()
@artifact_argument
@click.option("--model", metavar="FILE", help="The original model, for the peers.")
@click.option(
    "--against", metavar="NAMES", help="Peers, with commas: onnxruntime, openvino [default: onnxruntime with --model]."
)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns each peer gets.")
@click.option("--seconds", type=click.FloatRange(min=0.01), default=0.5, show_default=True, help="Length of one turn.")
@input_option
@threads_option
@board_option
@json_option
def bench(
    artifact: str,
    model: str | None,
    against: str | None,
    rounds: int,
    seconds: float,
    inputs: tuple[str, ...],
    threads: int | None,
    board: str | None,
    as_json: bool,
) -> int:
    """Time ARTIFACT against other runtimes: same inputs, same threads, each in its own process, in turns.

    A peer that is not installed, or cannot run the model, is named and the others are measured; the exit code then
    says that it was missing (4 or 5).
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit, talk
    from tvmstack.core import errors
    from tvmstack.report.timing import bench_page

    report = driver.bench(
        artifact,
        model,
        against=[n.strip() for n in against.split(",") if n.strip()] if against else None,
        inputs=inputs_from_texts(inputs),
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        progress=talk,
        board=board,
    )
    emit(report.to_json(), as_json, bench_page)
    return max((getattr(errors, peer.error).exit_code for peer in report.missing), default=0)
