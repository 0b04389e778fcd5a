"""`fencepost doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from fencepost.cli.options import AppOption, JsonOption, UrlOption
from fencepost.cli.output import console, count, write_json
from fencepost.cli.printable import one_line
from fencepost.cli.targets import opened
from fencepost.errors import FencepostError
from fencepost.store.finding import Finding, Health, Level

__all__ = ["doctor"]

_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.PROBLEM: ("problem", "bold red")}
_WIDTH = max(len(mark) for mark, _ in _MARKS.values())


def doctor(
    url: UrlOption = None,
    app: AppOption = None,
    integrity: Annotated[
        bool, typer.Option("--integrity", help="Also read the whole SQLite file to see that it is undamaged.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find what is wrong, and say what to do.

    It examines the database, its settings, its clock, its tables, the workers and the jobs, and changes nothing.
    Exit code 1 if there is a problem; warnings alone leave it 0.

    \b
    Example:
      fencepost doctor --url sqlite:///jobs.db --integrity
    """
    try:
        with opened(url, app) as target:
            health = target.health(is_thorough=integrity)
            name = target.store.database.display_url
    except FencepostError as error:  # not there, no such driver: a finding like others
        health, name = Health((Finding("database", Level.PROBLEM, str(error)),)), None
    if as_json:
        write_json({"database": name, "level": health.level, "findings": health.findings})
    else:
        _print(health.findings)
    if not health.is_well:
        raise typer.Exit(1)


def _print(findings: Sequence[Finding]) -> None:
    out = console()
    width = max(len(finding.check) for finding in findings)
    # A column is folded at its words on a terminal, and not at all in a pipe.
    grid = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for finding in findings:
        mark, style = _MARKS[finding.level]
        said = [finding.what, *([] if finding.do is None else [f"-> {finding.do}"])]
        for number, text in enumerate(said):
            head = Text("" if number else mark, style), Text("" if number else finding.check, "bold")
            if out.is_terminal:
                grid.add_row(*head, Text(one_line(text)))
            else:
                out.print(f"{head[0].plain:<{_WIDTH}}  {head[1].plain:<{width}}  {one_line(text)}", soft_wrap=True)
    if out.is_terminal:
        out.print(grid)
    problems, warnings = (
        sum(finding.level is level for finding in findings) for level in (Level.PROBLEM, Level.WARNING)
    )
    if problems or warnings:
        out.print(Text(f"{count(problems, 'problem')}, {count(warnings, 'warning')}.", "bold"))
    else:
        out.print(Text("All is well.", "bold green"))
