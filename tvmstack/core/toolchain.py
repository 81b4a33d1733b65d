"""Which compiler links code for which CPU."""

from __future__ import annotations

import platform
import shutil

from tvmstack.core.errors import SetupError

__all__ = ["cross_compiler"]


def cross_compiler(arch: str) -> str | None:
    """Return the C++ compiler that links for another architecture, or None where `arch` is this machine's.

    Raises:
        SetupError: there is none on PATH.
    """
    if arch == platform.machine():
        return None
    name = f"{arch}-linux-gnu-g++"
    found = shutil.which(name)
    if found is None:
        raise SetupError(
            f"building for {arch} needs the cross compiler {name}, which is not on PATH: "
            f"apt-get install g++-{arch.replace('_', '-')}-linux-gnu"
        )
    return found
