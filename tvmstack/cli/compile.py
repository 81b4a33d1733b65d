"""`tvmstack compile`."""

from __future__ import annotations

from pathlib import Path

import click

from tvmstack.cli.options import (
    backend_option,
    board_option,
    bytes_from_text,
    device_option,
    freeze_option,
    frozen_from_texts,
    input_option,
    inputs_from_texts,
    json_option,
    model_argument,
    onnxruntime_nodes_option,
    report_option,
    shape_option,
    shapes_from_texts,
    store_option,
    threads_option,
    winograd_option,
)
from tvmstack.core.errors import UsageError

__all__ = ["compile_"]


@click.command("compile")
@model_argument
@click.option("-o", "--output", required=True, metavar="FILE.so", help="Where the artifact goes.")
@shape_option
@freeze_option
@device_option
@click.option("--tune", metavar="TIME", help="Tune first, for at most this long: 90s, 10m, 1h.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Tune first, with at most this many trials.")
@store_option
@threads_option
@onnxruntime_nodes_option
@backend_option
@click.option("--min-region", type=click.IntRange(min=1), default=1, metavar="N", help="No region has fewer nodes.")
@click.option("--memory-budget", metavar="SIZE", help="Weights, regions and results may take this: 64MB, 1.5GiB.")
@click.option("--plan", metavar="FILE", help="Do the plan of an earlier artifact, or of its `inspect --json`, again.")
@winograd_option
@click.option(
    "--verify/--no-verify", default=True, help="Compare the artifact with the original model before it is written."
)
@input_option
@board_option
@report_option
@json_option
def compile_(
    model: str,
    output: str,
    shapes: tuple[str, ...],
    freeze: tuple[str, ...],
    device: str | None,
    tune: str | None,
    trials: int | None,
    store: str | None,
    threads: int | None,
    onnxruntime_nodes: tuple[str, ...],
    backends: tuple[str, ...],
    min_region: int,
    memory_budget: str | None,
    plan: str | None,
    winograd: bool,
    verify: bool,
    inputs: tuple[str, ...],
    board: str | None,
    report: str | None,
    as_json: bool,
) -> None:
    """Compile MODEL (an ONNX file) to one shared library.

    Kernels are scheduled by the best records of the store, else by default schedules. With --tune or --trials more are
    measured first; what the store already knows is not measured again.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.cli.progress import tuning_display
    from tvmstack.driver.result import write_text
    from tvmstack.report.artifact import build_page
    from tvmstack.report.tuning_html import tuning_html

    driver.check_output(Path(output), Path(model))
    if report and not (tune or trials):
        raise UsageError("--report shows what tuning did: add --tune TIME or --trials N")
    if report:
        driver.check_output(Path(report))
    with tuning_display(driver.seconds_from(tune), trials) as progress:
        artifact = driver.compile(
            model,
            shapes=shapes_from_texts(shapes),
            device=device,
            tune=tune,
            trials=trials,
            store=store,
            verify=verify,
            onnxruntime_nodes=onnxruntime_nodes,
            winograd=winograd,
            threads=threads,
            progress=progress,
            freeze=frozen_from_texts(freeze),
            inputs=inputs_from_texts(inputs),
            board=board,
            backends=[name for text in backends for name in text.split(",") if name],
            min_region=min_region,
            memory_budget=bytes_from_text(memory_budget),
            plan=plan,
        )
    artifact.save(output)
    if report:
        write_text(Path(report), tuning_html(artifact.report["tuning"], Path(model).name))
    emit(artifact.report, as_json, build_page)
