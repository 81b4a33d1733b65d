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
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME[:TARGET],…",
    help="Ask these back ends as well, like openvino or qnn:htp:v73; auto asks all that run here.",
)
@click.option("--all", "every", is_flag=True, help="List every node, not only those that are refused.")
@json_option
def scan(
    model: str,
    shapes: tuple[str, ...],
    freeze: tuple[str, ...],
    backends: tuple[str, ...],
    every: bool,
    as_json: bool,
) -> None:
    """Say for each node of MODEL who will run it, why not TVM, and what would help.

    Nothing is compiled. Nodes TVM cannot take run through onnxruntime, inside the same artifact. With --backend each
    named back end says what it would take of the same nodes.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.scan import scan_page

    names = [name for text in backends for name in text.split(",") if name]
    report = driver.scan(model, shapes_from_texts(shapes), frozen_from_texts(freeze), backends=names)
    emit(report.to_json(), as_json, lambda data: scan_page(data, every))
