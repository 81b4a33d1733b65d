"""`tvmstack verify`."""

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

__all__ = ["verify"]


@click.command()
@artifact_argument
@click.option("--model", metavar="FILE", help="The original model [default: the answers kept in the artifact].")
@input_option
@threads_option
@board_option
@json_option
def verify(
    artifact: str, model: str | None, inputs: tuple[str, ...], threads: int | None, board: str | None, as_json: bool
) -> None:
    """Compare ARTIFACT with the original model.

    Random and edge inputs are fed to both; exits with 7 and the difference where they differ. Without --model the
    artifact's own reference answers are compared: does this machine give what the building machine gave?
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.artifact import verification_page

    found = driver.verify(artifact, model, threads=threads, inputs=inputs_from_texts(inputs), board=board)
    emit(found, as_json, verification_page)
