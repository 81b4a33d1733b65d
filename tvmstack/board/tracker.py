"""TVM's tracker as a client sees it: which boards there are, and an offer of one of them, all under a clock."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack.board.errors import BoardLost, BoardRefused, NoTracker
from tvmstack.board.facts import Facts, facts_from
from tvmstack.core.errors import SetupError, UsageError

__all__ = [
    "DEFAULT_TRACKER",
    "BoardRow",
    "BoardSpec",
    "Offer",
    "board_from_text",
    "list_boards",
    "read_secret",
    "request",
]

DEFAULT_TRACKER = "127.0.0.1:9190"
_MAGIC, _REQUEST, _SUMMARY = 0x2F271, 4, 6
_ANSWER_S = 5.0


@dataclass(frozen=True)
class BoardSpec:
    """A class of boards: the key they register under, and the tracker that knows them."""

    key: str
    host: str
    port: int

    @property
    def text(self) -> str:
        """The spec as a user writes it."""
        return f"{self.key}@{self.host}:{self.port}"


@dataclass(frozen=True)
class Offer:
    """One board that the tracker gave us: where it listens, and the word that opens it once."""

    host: str
    port: int
    match: str

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class BoardRow:
    """A registered board as the tracker knows it; `facts` is None for a server that is not ours."""

    key: str
    address: str
    facts: Facts | None


def board_from_text(text: str) -> BoardSpec:
    """Return the board class of "KEY", "KEY@HOST" or "KEY@HOST:PORT".

    Raises:
        UsageError: the text is none of these.
    """
    key, _, place = text.partition("@")
    host, port = address_from(place or DEFAULT_TRACKER)
    if not key or any(c.isspace() for c in key) or ":" in key:
        raise UsageError(f"{text!r} names no board; write KEY or KEY@HOST:PORT, like a72@{DEFAULT_TRACKER}")
    return BoardSpec(key, host, port)


def address_from(text: str) -> tuple[str, int]:
    """Return ("127.0.0.1", 9190) for "127.0.0.1:9190" or "127.0.0.1"."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, DEFAULT_TRACKER.rpartition(":")[2]
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address; write HOST:PORT, like {DEFAULT_TRACKER}")
    return host, int(port)


def read_secret(path: str | None = None) -> str:
    """Return the first line of the secret's file, named here or by $TVMSTACK_BOARD_SECRET_FILE; "" where neither is.

    Raises:
        SetupError: the file cannot be read or its first line is empty.
    """
    name = path or os.environ.get("TVMSTACK_BOARD_SECRET_FILE")
    if not name:
        return ""
    try:
        secret = Path(name).read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as err:
        raise SetupError(f"cannot read the boards' secret from {name}: {err}") from err
    if not secret:
        raise SetupError(f"the first line of {name} is empty: it should be the boards' secret")
    return secret


def list_boards(host: str, port: int) -> tuple[list[BoardRow], dict[str, Any]]:
    """Return the registered boards, and for each key how many are free and how many requests wait.

    Raises:
        BoardLost: there is no tracker.
    """
    with _Line(host, port, _ANSWER_S) as line:
        status = line.ask([_SUMMARY])[1]
    rows = []
    for row in status["server_info"]:
        address = ":".join(str(part) for part in row["addr"])
        rows.append(BoardRow(str(row["key"]).removeprefix("server:"), address, _facts_or_none(row.get("facts"))))
    return sorted(rows, key=lambda r: (r.key, r.address)), status["queue_info"]


def _facts_or_none(data: Any) -> Facts | None:
    try:
        return facts_from(data) if data else None
    except BoardRefused:
        return None


def request(spec: BoardSpec, seconds: float) -> Offer:
    """Wait for a free board of a class, and take it.

    Raises:
        BoardLost: there is no tracker, or no board became free in time.
    """
    with _Line(spec.host, spec.port, seconds) as line:
        try:
            host, port, match = line.ask([_REQUEST, spec.key, "", 1])[1]
        except TimeoutError as err:
            raise BoardLost(f"no board {spec.text} became free in {seconds:.0f} s{_who(spec)}") from err
    return Offer(str(host), int(port), str(match))


def _who(spec: BoardSpec) -> str:
    rows, queues = list_boards(spec.host, spec.port)
    mine = [row for row in rows if row.key == spec.key]
    if mine:
        return f"; {len(mine)} registered, {queues.get(spec.key, {}).get('free', 0)} free: others may be using them"
    known = sorted({row.key for row in rows})
    return f"; the tracker knows {', '.join(known)}" if known else "; the tracker knows no board"


class _Line:
    """A connection to the tracker, on which every answer is due at one deadline."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._place, self._until = f"{host}:{port}", time.monotonic() + seconds
        try:
            self._socket = socket.create_connection((host, port), timeout=_ANSWER_S)
            self._socket.sendall(struct.pack("<i", _MAGIC))
            if struct.unpack("<i", self._receive(4))[0] != _MAGIC:
                raise NoTracker(f"what listens on {self._place} is no TVM tracker")
        except OSError as err:
            raise NoTracker(f"no tracker answers on {self._place} ({err}): `tvmstack board serve` starts one") from err

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, message: list[Any]) -> Any:
        body = json.dumps(message).encode()
        try:
            self._socket.sendall(struct.pack("<i", len(body)) + body)
            return json.loads(self._receive(struct.unpack("<i", self._receive(4))[0]))
        except TimeoutError:
            raise
        except (OSError, ValueError) as err:
            raise NoTracker(f"the tracker on {self._place} broke off: {err}") from err

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self._socket.settimeout(max(0.001, self._until - time.monotonic()))
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("it closed the connection")
            data += part
        return data
