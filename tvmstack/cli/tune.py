"""`tvmstack tune`."""

from __future__ import annotations

import click

from tvmstack.cli.options import (
    board_option,
    device_option,
    freeze_option,
    frozen_from_texts,
    json_option,
    model_argument,
    onnxruntime_nodes_option,
    shape_option,
    shapes_from_texts,
    store_option,
    winograd_option,
)

__all__ = ["tune"]


@click.command()
@model_argument
@click.option("--tune", "--time", "tune", metavar="TIME", help="How long at most: 90s, 10m, 1h [default: 5m].")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="How many trials at most.")
@shape_option
@freeze_option
@device_option
@store_option
@onnxruntime_nodes_option
@winograd_option
@board_option
@json_option
def tune(
    model: str,
    tune: str | None,
    trials: int | None,
    shapes: tuple[str, ...],
    freeze: tuple[str, ...],
    device: str | None,
    store: str | None,
    onnxruntime_nodes: tuple[str, ...],
    winograd: bool,
    board: str | None,
    as_json: bool,
) -> None:
    """Measure schedules for MODEL's kernels and keep them in the store; write no artifact.

    Running it again goes on where it stopped. Ctrl-C loses at most the batch in flight.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.cli.progress import tuning_display
    from tvmstack.report.tuning import tuning_page

    budget = tune or (None if trials else "5m")
    with tuning_display(driver.seconds_from(budget), trials) as progress:
        report = driver.tune(
            model,
            shapes=shapes_from_texts(shapes),
            device=device,
            tune=budget,
            trials=trials,
            store=store,
            onnxruntime_nodes=onnxruntime_nodes,
            winograd=winograd,
            progress=progress,
            freeze=frozen_from_texts(freeze),
            board=board,
        )
    emit(report, as_json, tuning_page)
