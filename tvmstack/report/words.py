"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count", "duration", "few", "size"]


def duration(seconds: float) -> str:
    """Return a time with three significant figures and a unit that fits."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit:
            return f"{seconds * scale:.3g} {unit}"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def size(value: float) -> str:
    """Return bytes in the unit that fits, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return "1 node", "2 nodes"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def few(names: Sequence[str], shown: int = 3) -> str:
    """Return "a, b, c and 4 more"."""
    left = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {left} more" if left > 0 else "")
