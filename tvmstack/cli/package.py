"""`tvmstack package`."""

from __future__ import annotations

import click

from tvmstack.cli.options import artifact_argument, json_option

__all__ = ["package"]


@click.command()
@artifact_argument
@click.option("-o", "--output", required=True, metavar="DIR", help="A new folder; all of it is made, or nothing.")
@click.option("--with-runtime", is_flag=True, help="Add libtvmstack, TVM's runtime, headers, CMake files, examples.")
@click.option("--with-vendor", is_flag=True, help="Copy the installed vendor libraries of its regions, with licences.")
@click.option("--arch", metavar="NAME", help="Refuse an artifact that is for another CPU: x86_64, aarch64.")
@json_option
def package(artifact: str, output: str, with_runtime: bool, with_vendor: bool, arch: str | None, as_json: bool) -> None:
    """Put ARTIFACT into a folder that runs on a machine without Python.

    With --with-runtime the folder holds all that a C or C++ program needs: bin/run shows and times the model there.
    An artifact for another CPU gets that CPU's libraries, compiled by its cross compiler.
    """
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.report.artifact import package_page

    emit(driver.package(artifact, output, with_runtime, with_vendor, arch), as_json, package_page)
