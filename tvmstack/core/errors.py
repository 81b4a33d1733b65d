"""The exceptions of tvmstack. The class says who must act; the command line turns it into an exit code.

TvmstackError                 1
├── UsageError                2   the call is wrong: an option, a name, a value
├── ModelError                3   the model is broken, or holds what cannot be compiled
├── SetupError                4   something is not installed or not usable on this machine
├── BackendError              5   a back end failed on a region it had accepted
├── TuningError               6   tuning or its store failed
├── ArtifactError             7   an artifact is damaged, foreign or wrong in its numbers
└── BoardError                8   a board is lost, hung, or not what it says; its kinds are in tvmstack/board/errors.py
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ArtifactError",
    "BackendError",
    "BoardError",
    "ModelError",
    "SetupError",
    "TuningError",
    "TvmstackError",
    "UsageError",
    "nearest",
]


class TvmstackError(Exception):
    """Base of every error that a user can cause or mend; its text is complete as it stands."""

    exit_code = 1


class UsageError(TvmstackError):
    """The call itself is wrong."""

    exit_code = 2


class ModelError(TvmstackError):
    """The model cannot be read, is inconsistent, or holds something that cannot be compiled."""

    exit_code = 3


class SetupError(TvmstackError):
    """Something that the work needs is missing or unusable on this machine."""

    exit_code = 4


class BackendError(TvmstackError):
    """A back end failed on a region that it had accepted."""

    exit_code = 5


class TuningError(TvmstackError):
    """Tuning, or the store that keeps its results, failed."""

    exit_code = 6


class ArtifactError(TvmstackError):
    """An artifact is damaged, was made for another machine, or gives wrong numbers."""

    exit_code = 7


class BoardError(TvmstackError):
    """A board cannot be reached, does not do what it should, or is not what it says it is."""

    exit_code = 8


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest of `known`, or lists them; empty when there are none."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(names)}" if names else ""
