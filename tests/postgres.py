"""A real PostgreSQL server for tests, from the distribution's package, in a folder of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["Server", "missing"]

_NUMBERS = itertools.count()


def missing() -> str:
    """Return why no server can be started here; empty where one can."""
    if _program("initdb") is None:
        return "no PostgreSQL server here: apt-get install postgresql"
    if os.getuid() == 0 and _user() is None:
        return "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'tvmstack[postgres]'"
    return ""


def _program(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


def _user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Server:
    """A server on a free port of this machine. Root hands it to another user, since it refuses to run as root."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tvmstack-postgres-"))
        self._as: dict[str, Any] = {}
        owner = _user()
        if os.getuid() == 0 and owner is not None:
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._call("initdb", "-D", "data", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def _call(self, program: str, *words: str) -> None:
        command = [str(_program(program)), *words]
        log = self.folder / f"{program}.txt"
        with log.open("w") as output:
            done = subprocess.run(
                command,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                check=False,
                **self._as,
            )
        assert done.returncode == 0, f"{' '.join(command)}: {log.read_text()}"

    def start(self) -> None:
        """Start and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self._call("pg_ctl", "-D", "data", "-l", "server.txt", "-o", options, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop; "immediate" is a crash."""
        self._call("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        import psycopg

        name = f"store_{os.getpid()}_{next(_NUMBERS)}"
        where = f"host=127.0.0.1 port={self.port} user=tester dbname=postgres"
        with psycopg.connect(where, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://tester@127.0.0.1:{self.port}/{name}"

    def remove(self) -> None:
        """Stop and delete everything."""
        self.stop("immediate")
        shutil.rmtree(self.folder)
