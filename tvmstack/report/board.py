"""Boards as text: what was built, which there are, what their self-test found."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

__all__ = ["boards_page", "doctor_page", "server_page"]


def server_page(data: dict[str, Any]) -> Text:
    """Return what was built and how to start it there."""
    size = sum(data["files"].values()) / 1e6
    folder = data["program"].rpartition("/")[0]
    return Text(
        f"{folder}: {len(data['files'])} files, {size:.1f} MB for {data['arch']}. Copy the folder to the board and "
        "start there\n\n  ./tvmstack-board --key KEY --tracker 127.0.0.1:9190\n\n"
        "with the tracker's port and the board's own brought together by\n\n"
        "  ssh -R 9190:127.0.0.1:9190 -L 9100:127.0.0.1:9100 USER@BOARD"
    )


def boards_page(data: dict[str, Any]) -> Table | Text:
    """Return a row a board."""
    if not data["boards"]:
        return Text("the tracker knows no board")
    table = Table("class", "board", "address", "CPU", "cores", "TVM", "state", box=None)
    for row in data["boards"]:
        cpu = f"{row['mcpu']} ({row['arch']})" if row["arch"] else "?"
        words = (
            row["key"],
            row["name"],
            row["address"],
            cpu,
            str(row["cores"] or "?"),
            row["tvm"] or "?",
            row["state"],
        )
        table.add_row(*words)
    return table


def doctor_page(data: dict[str, Any]) -> Table:
    """Return a row a test."""
    table = Table("", data["board"], data["device"]["id"], box=None)
    for row in data["rows"]:
        note = "" if row["ok"] else f"{row['reason']}: {row['hint']}"
        table.add_row("ok" if row["ok"] else "NO", f"{row['name']}: {row['figure']}", note)
    return table
