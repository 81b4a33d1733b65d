"""`tvmstack check`."""

from __future__ import annotations

import click

from tvmstack.cli.options import artifact_argument, json_option

__all__ = ["check"]


@click.command()
@artifact_argument
@json_option
def check(artifact: str, as_json: bool) -> int:
    """Say whether ARTIFACT is whole and fits this machine; exit with 7 where not. Nothing in it is executed."""
    from tvmstack import driver
    from tvmstack.cli.output import emit
    from tvmstack.core.errors import ArtifactError
    from tvmstack.report.artifact import check_page

    rows = driver.check(artifact)
    emit({"ok": all(r["ok"] for r in rows), "rows": rows}, as_json, check_page)
    return 0 if all(r["ok"] for r in rows) else ArtifactError.exit_code
