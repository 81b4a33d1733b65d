"""`tvmstack inspect`."""

from __future__ import annotations

import click

from tvmstack.cli.options import artifact_argument, json_option

__all__ = ["inspect"]


@click.command()
@artifact_argument
@click.option("--kernels", is_flag=True, help="List every kernel with its schedule.")
@click.option("--report", metavar="FILE.html", help="Write a page that draws who runs what, and why.")
@json_option
def inspect(artifact: str, kernels: bool, report: str | None, as_json: bool) -> None:
    """Show what ARTIFACT says of itself. Nothing in it is executed, so it works on any machine."""
    from pathlib import Path

    from tvmstack.artifact.manifest import read_manifest
    from tvmstack.cli.output import emit
    from tvmstack.driver.result import write_text
    from tvmstack.report.artifact import manifest_page
    from tvmstack.report.plan import plan_html

    if report:
        manifest = read_manifest(Path(artifact))
        write_text(Path(report), plan_html(manifest.plan, Path(artifact).name))
    emit(read_manifest(Path(artifact)).to_json(), as_json, lambda data: manifest_page(data, kernels))
