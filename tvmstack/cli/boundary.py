"""Where exceptions become words and exit codes, and where logging meets the terminal."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from tvmstack.cli.root import root
from tvmstack.core.errors import SetupError, TvmstackError

__all__ = ["INTERNAL_ERROR", "INTERRUPTED", "main", "run"]

INTERRUPTED = 130
INTERNAL_ERROR = 70
_CLOSED_PIPE = 141


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _silence()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error has been told on stderr by then."""
    try:
        return int(root.main(args=list(arguments), prog_name="tvmstack", standalone_mode=False) or 0)
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except TvmstackError as err:
        _say(str(err))
        return err.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("stopped; everything measured so far is in the store, and the same command goes on from there")
        return INTERRUPTED
    except BrokenPipeError:
        return _silence()
    except ImportError as err:
        return _missing_library(err)
    except Exception:  # noqa: BLE001 - the border: whatever is left is our own mistake and keeps its traceback
        return _internal_error()


def _say(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _missing_library(err: ImportError) -> int:
    if (err.name or "").split(".")[0] == "tvmstack":
        return _internal_error()
    _say(f"cannot import {err.name or 'a library'}: {err}; `tvmstack doctor` lists what is missing and how to get it")
    return SetupError.exit_code


def _internal_error() -> int:
    traceback.print_exc()
    _say(
        "this is a mistake in tvmstack, not in your model or call. Please report it in the project's issue tracker "
        "with the text above, the command and the output of `tvmstack doctor --json`"
    )
    return INTERNAL_ERROR


def _silence() -> int:
    """The reader of our output has gone; say nothing, also not while the interpreter shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _CLOSED_PIPE
