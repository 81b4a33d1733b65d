"""Which boards have failed, and when they may be tried again: a small file that all processes of a user share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tvmstack.core.errors import SetupError

__all__ = ["Health", "Quarantine"]

# The first quarantine, doubled by each further failure up to the longest.
_FIRST_S, _LONGEST_S = 30.0, 3600.0


@dataclass(frozen=True)
class Quarantine:
    """Why a board is not used.

    Attributes:
        reason: what it did.
        since: seconds since the epoch.
        until: before this it is left alone; after it a self-test decides.
        failures: how often in a row it failed.
    """

    reason: str
    since: float
    until: float
    failures: int

    @property
    def is_over(self) -> bool:
        """Whether the board may be tested again."""
        return time.time() >= self.until


class Health:
    """The boards in quarantine, by tracker and name.

    Args:
        path: the file; None for $TVMSTACK_BOARD_HEALTH or the user's cache.
    """

    def __init__(self, path: Path | None = None) -> None:
        named = os.environ.get("TVMSTACK_BOARD_HEALTH")
        self._path = path or Path(named or Path.home() / ".cache" / "tvmstack" / "boards.json")

    def all(self) -> dict[str, Quarantine]:
        """Return every board in quarantine by its id."""
        with self._locked():
            return self._read()

    def of(self, board: str) -> Quarantine | None:
        """Return the quarantine of a board, None where it is in good health."""
        return self.all().get(board)

    def failed(self, board: str, reason: str) -> Quarantine:
        """Put a board into quarantine, for longer each time it fails again."""
        with self._locked():
            known = self._read()
            before = known[board].failures if board in known else 0
            now = time.time()
            until = now + min(_FIRST_S * 2**before, _LONGEST_S)
            known[board] = Quarantine(reason, now, until, before + 1)
            self._write(known)
            return known[board]

    def returned(self, board: str) -> bool:
        """Take a board out of quarantine; return whether it was in."""
        with self._locked():
            known = self._read()
            was = known.pop(board, None) is not None
            if was:
                self._write(known)
            return was

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as err:
            raise SetupError(f"cannot keep the boards' health in {self._path}: {err.strerror or err}") from err

    def _read(self) -> dict[str, Quarantine]:
        if not self._path.exists():
            return {}
        try:
            return {name: Quarantine(**row) for name, row in json.loads(self._path.read_text()).items()}
        except (ValueError, TypeError, AttributeError) as err:
            raise SetupError(f"{self._path} is damaged ({err}): remove it, boards will be tested again") from err

    def _write(self, known: dict[str, Quarantine]) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as part:
            json.dump({name: asdict(row) for name, row in known.items()}, part, indent=1)
        os.replace(part.name, self._path)
