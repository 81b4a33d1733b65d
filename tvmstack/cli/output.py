"""The one way results reach stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

__all__ = ["emit", "talk"]

_PIPE_WIDTH = 140


def emit(data: Any, as_json: bool, render: Callable[[Any], RenderableType]) -> None:
    """Print plain data as JSON, or as `render` shows it."""
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(render(data))


def talk(text: str) -> None:
    """Write one line of talk to stderr, unless --quiet asked for none."""
    import logging

    logging.getLogger("tvmstack.cli").info("%s", text)
