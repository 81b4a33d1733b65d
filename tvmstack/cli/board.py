"""`tvmstack board`: machines and boards as measuring devices."""

from __future__ import annotations

import click

from tvmstack.cli.options import json_option

__all__ = ["board"]

_secret_option = click.option(
    "--secret-file", metavar="FILE", help="The secret, on its first line [default: $TVMSTACK_BOARD_SECRET_FILE]."
)
_board_argument = click.argument("board", metavar="KEY[@TRACKER]")


@click.group()
def board() -> None:
    """Turn machines and boards into measuring devices, list them, test them.

    TVM's tracker knows the boards by a key: boards that give the same times share one. What a board is sent is run
    there, so traffic stays on loopback (or in an SSH tunnel) unless --allow-network says otherwise.
    """


@board.command("build-server")
@click.option("--arch", metavar="ARCH", help="The board's CPU, as `uname -m` says there [default: this machine's].")
@click.option("-o", "--output", "folder", required=True, metavar="DIR", help="Where the server and its libraries go.")
@json_option
def build_server(arch: str | None, folder: str, as_json: bool) -> None:
    """Build the RPC server for a board without Python: one folder of about 6 MB to copy there."""
    import platform
    from pathlib import Path

    from tvmstack.board.build import build_server as build
    from tvmstack.cli.output import emit
    from tvmstack.report.board import server_page

    program = build(arch or platform.machine(), Path(folder))
    files = {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}
    emit({"program": str(program), "arch": arch or platform.machine(), "files": files}, as_json, server_page)


@board.command()
@click.option("--key", required=True, metavar="KEY", help="The class this board belongs to.")
@click.option("--tracker", metavar="HOST:PORT", help="The tracker; started here where none answers on loopback.")
@click.option("--name", metavar="NAME", help="This board's name, unique in its class [default: the host's name].")
@click.option("--arch", metavar="ARCH", help="Emulate a board with this CPU; its times mean nothing.")
@click.option(
    "--server", metavar="DIR", help="A folder made by build-server [default: built now, in a folder of its own]."
)
@click.option("--python", "use_python", is_flag=True, help="TVM's Python server; needs no C++ compiler here.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The interface to listen on.")
@click.option("--port", type=click.IntRange(1, 65435), default=9100, show_default=True, help="The first port to try.")
@click.option("--address", metavar="HOST", help="Where clients reach this machine, if the tracker sees it elsewhere.")
@click.option("--allow-network", is_flag=True, help="Listen outside loopback; needs --secret-file.")
@_secret_option
def serve(
    key: str,
    tracker: str | None,
    name: str | None,
    arch: str | None,
    server: str | None,
    use_python: bool,
    host: str,
    port: int,
    address: str | None,
    allow_network: bool,
    secret_file: str | None,
) -> int:
    """Offer this machine, or an emulated board, until Ctrl-C."""
    from tvmstack.board.serve import ServerOptions, serve_until_stopped
    from tvmstack.board.tracker import DEFAULT_TRACKER
    from tvmstack.cli.output import talk

    options = ServerOptions(
        key, tracker or DEFAULT_TRACKER, name or "", host, port, address or "", secret_file=_secret_path(secret_file)
    )
    options.check(allow_network)
    return serve_until_stopped(options, arch, server, use_python, talk)


def _secret_path(named: str | None) -> str:
    import os

    return named or os.environ.get("TVMSTACK_BOARD_SECRET_FILE", "")


@board.command("ls")
@click.option("--tracker", metavar="HOST:PORT", help="The tracker to ask [default: 127.0.0.1:9190].")
@json_option
def ls(tracker: str | None, as_json: bool) -> None:
    """List the boards a tracker knows: class, name, CPU, state."""
    from tvmstack.board.watch import list_states
    from tvmstack.cli.output import emit
    from tvmstack.report.board import boards_page

    emit({"boards": list_states(tracker)}, as_json, boards_page)


@board.command()
@_board_argument
@click.option("--name", default="", metavar="NAME", help="Test the board of this name, also out of quarantine.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="To compare clocks over."
)
@_secret_option
@json_option
def doctor(board: str, name: str, seconds: float, secret_file: str | None, as_json: bool) -> int:
    """Test a board: reach, versions, upload, values, noise, clock, heat. Exits with 8 where it is not fit to measure.

    A board that passes leaves its quarantine.
    """
    from tvmstack.board.doctor import examine
    from tvmstack.board.tracker import board_from_text, read_secret
    from tvmstack.board.watch import Boards
    from tvmstack.cli.output import emit
    from tvmstack.core.errors import BoardError
    from tvmstack.report.board import doctor_page

    with Boards(board_from_text(board), read_secret(secret_file), only=name) as boards:
        found = examine(boards, seconds)
    emit(found, as_json, doctor_page)
    return 0 if found["ok"] else BoardError.exit_code


@board.command()
@click.option("--tracker", metavar="HOST:PORT", help="The tracker to ask [default: 127.0.0.1:9190].")
@click.option("--every", type=click.FloatRange(min=1.0), default=60.0, show_default=True, metavar="S", help="Pause.")
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="Stop after so many rounds.")
@_secret_option
def watch(tracker: str | None, every: float, rounds: int | None, secret_file: str | None) -> None:
    """Test all free boards again and again: quarantine those that fail, take back those that pass."""
    from tvmstack.board.tracker import read_secret
    from tvmstack.board.watch import watch_boards
    from tvmstack.cli.output import talk

    watch_boards(tracker, read_secret(secret_file), every, rounds, talk)
