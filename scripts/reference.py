"""Write docs/reference.md from the commands' own help; `--check` fails where the page is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tvmstack.cli.root import root
from tvmstack.core import errors

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"


def commands(group: click.Group, words: tuple[str, ...] = ("tvmstack",)) -> Iterator[tuple[str, click.Command]]:
    """Yield ("tvmstack cache ls", its command) for the group, its commands and theirs."""
    yield " ".join(words), group
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def help_text(name: str, command: click.Command) -> str:
    """Return a command's help as a terminal of 100 columns shows it, whether or not the command has run before."""
    names = root.context_settings["help_option_names"]
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100, help_option_names=names)
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def page() -> str:
    """Return the whole page."""
    parts = ["# Reference", "", "Generated from the commands' own help by `make docs`; do not edit.", ""]
    for name, command in commands(root):
        parts += [f"## `{name}`", "", "```text", help_text(name, command), "```", ""]
    parts += ["## Exit codes", "", "| code | class | what it means |", "|---|---|---|", "| 0 | | done |"]
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type):
            parts.append(f"| {kind.exit_code} | `{name}` | {kind.__doc__.splitlines()[0].rstrip('.')} |")
    parts += ["| 70 | | a mistake in tvmstack itself; the traceback is shown |", "| 130 | | stopped by Ctrl-C |", ""]
    return "\n".join(parts)


def main() -> int:
    if "--check" in sys.argv:
        if PAGE.exists() and PAGE.read_text() == page():
            return 0
        print("docs/reference.md is stale: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
