"""The answer to a question somebody may ask "why?" about."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Verdict"]


@dataclass(frozen=True)
class Verdict:
    """Whether something can be done, why not, and what would help."""

    ok: bool
    reason: str = ""
    hint: str = ""

    def __bool__(self) -> bool:
        return self.ok

    @staticmethod
    def yes() -> Verdict:
        """Return the verdict that needs no reason."""
        return Verdict(True)

    @staticmethod
    def no(reason: str, hint: str = "") -> Verdict:
        """Return a refusal with its reason and, if there is one, a way out."""
        return Verdict(False, reason, hint)
