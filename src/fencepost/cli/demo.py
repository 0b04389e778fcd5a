"""`fencepost demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli.output import console
from fencepost.demo.run import DEFAULT_FILES, run_demo

__all__ = ["demo"]


def demo(
    files: Annotated[
        int,
        typer.Option("--files", metavar="N", min=20, max=1500, help="How many files of Python's library are counted."),
    ] = DEFAULT_FILES,
    database: Annotated[
        Path | None,
        typer.Option("--database", metavar="PATH", help="A new SQLite file for it, which is kept. Default: temporary."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder, and say where it is.")] = False,
) -> None:
    """Watch it work, with an audit at the end.

    It takes less than half a minute: jobs and schedules on one SQLite file, worker processes, a `kill -9` half-way,
    and a moment without any worker. Each job counts one file of Python's own library and stores a row together with
    its completion. Some fail at first, some are delayed, one runs in a process of its own. Three schedules fire every
    second. Exit code 1 if the audit finds anything wrong.

    \b
    Example:
      fencepost demo --files 300 --database demo.db
    """
    if not run_demo(console(), files=files, database=database, keep=keep):
        raise typer.Exit(1)
