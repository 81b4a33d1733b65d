"""A neural network in, one tuned and checked shared library out.

The verbs are loaded when they are first used, so that `import tvmstack` and `tvmstack --help` stay quick and never
import the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvmstack._version import VERSION as __version__

if TYPE_CHECKING:
    from tvmstack.driver import Artifact, bench, compile, scan, tune, verify
    from tvmstack.runtime import Session, load

__all__ = ["Artifact", "Session", "__version__", "bench", "compile", "load", "scan", "tune", "verify"]

_HOMES = {
    "Artifact": "tvmstack.driver",
    "bench": "tvmstack.driver",
    "compile": "tvmstack.driver",
    "scan": "tvmstack.driver",
    "tune": "tvmstack.driver",
    "verify": "tvmstack.driver",
    "Session": "tvmstack.runtime",
    "load": "tvmstack.runtime",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tvmstack' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
