"""`tvmstack inspect`."""

from __future__ import annotations

import click

from tvmstack.cli.options import artifact_argument, json_option

__all__ = ["inspect"]


@click.command()
@artifact_argument
@click.option("--kernels", is_flag=True, help="List every kernel with its schedule.")
@json_option
def inspect(artifact: str, kernels: bool, as_json: bool) -> None:
    """Show what ARTIFACT says of itself. Nothing in it is executed, so it works on any machine."""
    from pathlib import Path

    from tvmstack.artifact.manifest import read_manifest
    from tvmstack.cli.output import emit
    from tvmstack.report.artifact import manifest_page

    emit(read_manifest(Path(artifact)).to_json(), as_json, lambda data: manifest_page(data, kernels))
