"""The `tvmstack` group: its options, its commands, and the log lines it shows."""

from __future__ import annotations

import logging
import sys

import click

from tvmstack._version import VERSION
from tvmstack.cli.backend import backend
from tvmstack.cli.bench import bench
from tvmstack.cli.board import board
from tvmstack.cli.cache import cache
from tvmstack.cli.check import check
from tvmstack.cli.compile import compile_
from tvmstack.cli.doctor import doctor
from tvmstack.cli.inspect import inspect
from tvmstack.cli.package import package
from tvmstack.cli.profile import profile
from tvmstack.cli.run import run
from tvmstack.cli.scan import scan
from tvmstack.cli.tune import tune
from tvmstack.cli.verify import verify

__all__ = ["root"]


_HELP = """Compile a neural network to one tuned, checked, self-describing shared library, and run it.

\b
tvmstack compile model.onnx -o model.so --tune 2m
tvmstack bench model.so --model model.onnx --against onnxruntime

Results go to stdout (--json for machines), talk and progress to stderr.
"""


@click.group(help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="tvmstack", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Say more on stderr: -v what each part does, -vv with its name.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors and warnings.")
def root(verbose: int, quiet: bool) -> None:
    """Set up what all commands share."""
    _configure_logging(verbose, quiet)


root.add_command(doctor)
root.add_command(scan)
root.add_command(compile_)
root.add_command(tune)
root.add_command(run)
root.add_command(bench)
root.add_command(verify)
root.add_command(profile)
root.add_command(inspect)
root.add_command(check)
root.add_command(package)
root.add_command(cache)
root.add_command(backend)
root.add_command(board)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that finds stderr when it writes, so that a progress display may stand in front of it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        """The stderr of this moment."""
        return sys.stderr

    @stream.setter
    def stream(self, value: object) -> None:
        """Ignored: there is nothing to keep."""


def _configure_logging(verbose: int, quiet: bool) -> None:
    logger = logging.getLogger("tvmstack")
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s" if verbose > 1 else "%(message)s"))
    logger.handlers[:] = [handler]
