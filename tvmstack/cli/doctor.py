"""`tvmstack doctor`."""

from __future__ import annotations

import click

from tvmstack.cli.options import json_option

__all__ = ["doctor"]


@click.command()
@click.option("--peaks/--no-peaks", default=True, help="Measure the machine's compute and memory peaks (about 3 s).")
@json_option
def doctor(peaks: bool, as_json: bool) -> int:
    """Say what is installed, which device this is, and what is missing.

    Exits with 4 where something that compiling needs is missing or known to be bad.
    """
    from tvmstack.backends.registry import backend_facts
    from tvmstack.cli.output import emit
    from tvmstack.core.errors import SetupError
    from tvmstack.measure.machine import examine
    from tvmstack.report.machine import machine_page

    facts = {**examine(peaks), "backends": backend_facts()}
    emit(facts, as_json, machine_page)
    return 0 if facts["ok"] else SetupError.exit_code
