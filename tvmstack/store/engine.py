"""Transactions on SQLite and PostgreSQL behind one interface, and what goes wrong in them in words."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from tvmstack.core.errors import SetupError, TuningError, UsageError
from tvmstack.store.salvage import file_lock, is_damage, salvage
from tvmstack.store.schema import SCHEMA, held_schema, prepare_schema

__all__ = ["Database", "connect"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[sa.Connection], T]

BUSY_S = 30.0
# How long a run waits for a server that went away.
WAIT_S = 600.0
# Server restarting or shutting down, connection lost, serialization failure, deadlock: the same transaction may pass.
_PASSING = ("57P01", "57P02", "57P03", "08", "40001", "40P01")


def connect(url: str | sa.URL, path: Path | None) -> Database:
    """Open a database and bring its tables up to date.

    Args:
        url: an SQLAlchemy URL of SQLite or PostgreSQL.
        path: the file, for SQLite; None for one in memory and for a server.

    Raises:
        UsageError: the URL is not understood.
        SetupError: the driver for PostgreSQL is not installed.
        TuningError: it cannot be opened, or is of a newer schema.
    """
    try:
        parsed = sa.make_url(url)
    except ArgumentError as err:
        raise UsageError(f"--store {url!r} is neither a file nor a URL like postgresql://user@host/name") from err
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return Database(_server_engine(parsed), parsed.render_as_string(hide_password=True), None)
    if kind == "sqlite":
        engine = sa.create_engine(parsed)
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", _begin)
        return Database(engine, str(path or parsed.database or ":memory:"), path)
    raise UsageError(f"--store: no store can be in {kind!r}; accepted: a file, postgresql://user@host/name")


def _server_engine(url: sa.URL) -> sa.Engine:
    try:
        import psycopg  # noqa: F401  (SQLAlchemy's own message does not say how to get it)
    except ImportError as err:
        raise SetupError("a store on a PostgreSQL server needs psycopg: pip install 'tvmstack[postgres]'") from err
    # A server that vanishes without a word (power, network) is noticed within about a minute.
    alive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
    arguments = {"connect_timeout": 10, "application_name": "tvmstack", **alive}
    return sa.create_engine(url.set(drivername="postgresql+psycopg"), connect_args=arguments)


class Database:
    """Runs work in transactions: again where that may help, in words where it does not."""

    def __init__(self, engine: sa.Engine, name: str, path: Path | None) -> None:
        self.name, self.path = name, path
        self.is_server = engine.dialect.name == "postgresql"
        # A look-up is one statement: on a server it need not pay for beginning and ending a transaction as well.
        self._readers = engine.execution_options(isolation_level="AUTOCOMMIT") if self.is_server else engine
        self._writers = engine.execution_options(write=True)
        self._was_open, self._inode = False, 0
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._readers.dispose()

    def read(self, work: Work[T]) -> T:
        """Return what `work` gives; its statements change nothing. Of a file they all see the same state."""
        return self._attempt("read", self._readers, work)

    def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction of which all or nothing stays. It may run more than once, so it must not add up.

        Raises:
            TuningError: locked, full, or out of reach for too long; nothing was written then.
        """
        return self._attempt("written", self._writers, work)

    def shrink(self) -> None:
        """Give the room of deleted rows back to the disk; a server does that by itself in time.

        Raises:
            TuningError: another process is at work on the file, or the disk has no room for the copy this takes.
        """
        if self.is_server:
            return
        try:
            with self._readers.connect() as db:
                raw = db.connection.dbapi_connection
                assert raw is not None
                for statement in ("vacuum", "pragma wal_checkpoint(truncate)"):
                    raw.execute(statement).fetchall()
        except (DBAPIError, sqlite3.Error) as err:
            words = _words(err.orig if isinstance(err, DBAPIError) else err)
            raise TuningError(f"records are deleted, but {self.name} cannot be made smaller now: {words}") from err

    def _open(self) -> None:
        if self._attempt("opened", self._readers, held_schema) != SCHEMA:
            self._attempt("opened", self._writers, lambda db: prepare_schema(db, self.name))
        self._was_open = True
        self._inode = self.path.stat().st_ino if self.path is not None else 0

    def _follow(self) -> None:
        """Connect anew where another file has taken the place of ours, or ours was deleted."""
        if self.path is None or not self._was_open:
            return
        if not self.path.exists() or self.path.stat().st_ino != self._inode:
            _log.warning("the store %s was moved or replaced; going on with what is there now", self.name)
            self._readers.dispose()
            self._was_open = False
            self._open()

    def _attempt(self, doing: str, engine: sa.Engine, work: Work[T]) -> T:
        began = time.monotonic()
        for attempt in range(1_000_000):
            try:
                # Writers share the lock that who salvages the file needs alone.
                with file_lock(self.path if engine is self._writers else None, exclusive=False):
                    self._follow()
                    with engine.begin() as db:
                        return work(db)
            except DBAPIError as err:
                if self.path is not None and is_damage(err.orig) and attempt == 0:
                    self._readers.dispose()
                    salvage(self.path)
                elif self._may_pass(err) and time.monotonic() - began < WAIT_S:
                    self._wait(attempt, err)
                else:
                    raise TuningError(f"the store {self.name} cannot be {doing}: {_words(err.orig)}") from err
        raise AssertionError("unreachable")

    def _may_pass(self, err: DBAPIError) -> bool:
        if not self.is_server or not self._was_open:
            return False
        state = getattr(err.orig, "sqlstate", None)
        lost = err.connection_invalidated or (state is None and isinstance(err, sa.exc.OperationalError))
        return bool(lost or (state or "").startswith(_PASSING))

    def _wait(self, attempt: int, err: DBAPIError) -> None:
        if attempt == 1:
            minutes = WAIT_S / 60
            _log.warning(
                "the store %s is out of reach, waiting up to %.0f min: %s", self.name, minutes, _words(err.orig)
            )
        time.sleep(min(0.1 * 2**attempt, 5.0))


def _words(err: BaseException | None) -> str:
    reason = " ".join(str(err).split())
    if "locked" in reason or "busy" in reason:
        return "it is locked by another process; try again or use --store"
    if "disk is full" in reason or "No space left" in reason:
        return "the disk is full; what was measured before is safe. Make room and run the same command again"
    if "disk I/O error" in reason:
        return "the disk is full or failing (disk I/O error); what was measured before is safe"
    if "readonly" in reason:
        return "it is read-only for this user; use --store with a file of your own"
    return reason


def _configure(connection: Any, _record: Any) -> None:
    # Transactions begin where _begin says, not where the driver guesses.
    connection.isolation_level = None
    # A flipped bit may make bytes that are no text: such a row shall fail by its seal, not fail the whole look-up.
    connection.text_factory = _text
    cursor = connection.cursor()
    cursor.execute(f"pragma busy_timeout={int(BUSY_S * 1e3)}")
    cursor.execute("pragma journal_mode=wal")
    # A batch is a second of measuring and a few milliseconds of this: also a power cut shall not cost it.
    cursor.execute("pragma synchronous=full")
    cursor.close()


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _begin(connection: sa.Connection) -> None:
    """Begin; a writer asks for the lock at once, so that it waits for it instead of failing half-way."""
    writes = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
