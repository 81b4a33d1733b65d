"""`tvmstack backend`: what else can run parts of a model, and whether it keeps its promises."""

from __future__ import annotations

import click

from tvmstack.cli.options import json_option

__all__ = ["backend"]


@click.group()
def backend() -> None:
    """List the back ends that can take parts of a model, and check one."""


@backend.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """Say for each back end what is installed, what is missing and how to get it, its targets and licence."""
    from tvmstack.backends.registry import backend_facts
    from tvmstack.cli.output import emit
    from tvmstack.report.backends import backends_page

    emit({"backends": backend_facts()}, as_json, backends_page)


@backend.command("check")
@click.argument("name", metavar="NAME[:TARGET]")
@json_option
def check(name: str, as_json: bool) -> int:
    """Put a back end to the contract; exit with 5 where it breaks it.

    It says what it can do, answers for every node, and what it compiles equals onnxruntime within its target's
    tolerance.
    """
    from tvmstack.cli.output import emit
    from tvmstack.core.errors import BackendError
    from tvmstack.driver.contract import check_backend
    from tvmstack.report.artifact import check_page

    first, _, target = name.partition(":")
    rows = [row.to_json() for row in check_backend(first, target)]
    ok = all(row["ok"] for row in rows)
    emit({"ok": ok, "rows": rows}, as_json, check_page)
    return 0 if ok else BackendError.exit_code
