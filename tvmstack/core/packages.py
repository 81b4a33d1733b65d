"""Which Python packages are installed, found without importing them."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, packages_distributions, version

__all__ = ["installed_version", "same_release"]


def installed_version(package: str) -> str:
    """Return the version of a distribution, or of the one that provides a module of that name; "" where there is none.

    "onnxruntime" is found where only onnxruntime-gpu is installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        module = package.replace("-", "_")
    try:
        if importlib.util.find_spec(module) is None:
            return ""
    except (ImportError, ValueError):
        return ""
    owners = packages_distributions().get(module, [])
    return version(owners[0]) if owners else ""


def same_release(one: str, other: str) -> bool:
    """Whether two versions name one release: "2026.4.1" and "2026.4.1-21537-abc"."""
    return _release(one) == _release(other)


def _release(text: str) -> list[str]:
    parts = text.split("-", maxsplit=1)[0].split("+", maxsplit=1)[0].split(".")
    while len(parts) > 1 and parts[-1] == "0":
        parts.pop()
    return parts
