"""`tvmstack scan`."""

from __future__ import annotations

import click

from tvmstack.cli.options import (
    freeze_option,
    frozen_from_texts,
    json_option,
    model_argument,
    shape_option,
    shapes_from_texts,
)

__all__ = ["scan"]


@click.command()
@model_argument
@shape_option
@freeze_option
@click.option("--all", "every", is_flag=True, help="List every node, not only those TVM does not take.")
@json_option
def scan(model: str, shapes: tuple[str, ...], freeze: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Say for each node of MODEL who will run it, why not TVM, and what would help.

    Nothing is compiled. Nodes TVM cannot take run through onnxruntime, inside the same artifact.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.scan import scan_page

    report = driver.scan(model, shapes_from_texts(shapes), frozen_from_texts(freeze))
    emit(report.to_json(), as_json, lambda data: scan_page(data, every))
