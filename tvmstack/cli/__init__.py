"""The command line: one file a command, one boundary that turns exceptions into words and exit codes.

Command files import only click and `cli.options`; what they call is imported when they run, so that help is quick and
works where TVM is missing.
"""

from __future__ import annotations

from tvmstack.cli.boundary import main

__all__ = ["main"]
