"""`tvmstack tune`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tvmstack.cli.options import (
    board_option,
    device_option,
    freeze_option,
    frozen_from_texts,
    json_option,
    onnxruntime_nodes_option,
    report_option,
    shape_option,
    shapes_from_texts,
    store_option,
    winograd_option,
)

__all__ = ["tune"]


@click.command()
@click.argument("models", metavar="MODEL…", nargs=-1, required=True)
@click.option("--tune", "--time", "tune", metavar="TIME", help="How long at most: 90s, 10m, 1h [default: 5m].")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="How many trials at most.")
@shape_option
@freeze_option
@device_option
@store_option
@onnxruntime_nodes_option
@winograd_option
@board_option
@report_option
@json_option
def tune(
    models: tuple[str, ...],
    tune: str | None,
    trials: int | None,
    shapes: tuple[str, ...],
    freeze: tuple[str, ...],
    device: str | None,
    store: str | None,
    onnxruntime_nodes: tuple[str, ...],
    winograd: bool,
    board: str | None,
    report: str | None,
    as_json: bool,
) -> int:
    """Measure schedules for MODEL's kernels and keep them in the store; write no artifact.

    Several models, or a folder of .onnx files, are tuned together: kernels that are equal once, and the others by what
    they are worth to each model. --shape, --freeze and --onnxruntime-nodes go to the models that have such a name.

    Running it again goes on where it stopped. Ctrl-C loses at most the batch in flight.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.cli.progress import tuning_display
    from tvmstack.driver.fleet import is_fleet, tune_fleet
    from tvmstack.driver.result import check_output, write_text
    from tvmstack.report.tuning import tuning_page
    from tvmstack.report.tuning_html import tuning_html

    if report:
        check_output(Path(report))
    together = is_fleet(models)
    work: Callable[..., dict[str, Any]] = tune_fleet if together else driver.tune
    budget = tune or (None if trials else "5m")
    with tuning_display(driver.seconds_from(budget), trials) as progress:
        data = work(
            models if together else models[0],
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
    if report:
        write_text(Path(report), tuning_html(data, ", ".join(Path(m).name for m in models)))
    emit(data, as_json, tuning_page)
    return next((row["exit"] for row in data.get("fleet", ()) if row["exit"]), 0)
