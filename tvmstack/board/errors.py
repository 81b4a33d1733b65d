"""What can go wrong with a board, so that a caller knows whom to blame and what to try next.

BoardError
├── BoardRefused      it answers, but is another TVM, another CPU than it says, or does not know the secret
│   └── AccessDenied  it does not let us in: our secret is wrong
├── BoardTimeout      what it was given made no progress in time; the board itself still answers
├── BoardCrash        what it was given killed the session; the board itself still answers
├── BoardLost         it does not answer any more
│   ├── NoTracker     the tracker does not answer, so nothing is known of boards
│   └── TurnOver      its session's time was up; a new one is open, which knows nothing
└── BadCandidate      a library it cannot load, or one that computes wrong values
"""

from __future__ import annotations

from tvmstack.core.errors import BoardError

__all__ = [
    "KINDS",
    "AccessDenied",
    "BadCandidate",
    "BoardCrash",
    "BoardLost",
    "BoardRefused",
    "BoardTimeout",
    "NoTracker",
    "TurnOver",
]


class BoardRefused(BoardError):
    """The board answers but must not be used: another ABI, a lie about itself, or no knowledge of the secret."""


class AccessDenied(BoardRefused):
    """The board does not let us in; that is no fault of its."""


class BoardTimeout(BoardError):
    """Work on the board made no progress before its deadline, and was ended."""


class BoardCrash(BoardError):
    """Work on the board killed its session."""


class BoardLost(BoardError):
    """The board, or every board of its class, does not answer any more."""


class NoTracker(BoardLost):
    """The tracker does not answer; no board is to blame."""


class TurnOver(BoardLost):
    """A session came to its agreed end, others had their turn, and a new one is open; nothing went wrong."""


class BadCandidate(BoardError):
    """A library that the board cannot load or that computes wrong values there."""


KINDS: dict[str, type[BoardError]] = {
    kind.__name__: kind for kind in (BoardRefused, AccessDenied, BoardTimeout, BoardCrash, BoardLost, BadCandidate)
}
