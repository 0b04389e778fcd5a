"""What the commands print: tables, fields and JSON on stdout, hints and errors on stderr.

Nothing that comes from the database is interpreted as markup, and no control character of it reaches the terminal.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fencepost.cli.printable import one_line, printable

__all__ = [
    "Column",
    "console",
    "count",
    "fields",
    "hint",
    "iso",
    "line",
    "problem",
    "since",
    "span",
    "table",
    "write_json",
]

_GAP = "  "
_ELLIPSIS = "…"


def console(*, on_stderr: bool = False) -> Console:
    """A console that prints what it is given as it stands."""
    return Console(file=sys.stderr if on_stderr else sys.stdout, highlight=False, markup=False, emoji=False)


def line(text: str, style: str = "") -> None:
    """One line on stdout."""
    console().print(Text(one_line(text), style), soft_wrap=True)


def hint(text: str) -> None:
    """One line on stderr, for people: it does not disturb what is piped on."""
    console(on_stderr=True).print(Text(one_line(text), "dim"), soft_wrap=True)


def problem(text: str) -> None:
    """One line on stderr: what went wrong."""
    console(on_stderr=True).print(Text.assemble(("fencepost: ", "bold red"), one_line(text)), soft_wrap=True)


# JSON


def write_json(value: object) -> None:
    """One JSON value on stdout, and nothing else. ASCII alone: it is the same in every locale, and harmless."""
    text = json.dumps(_plain(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f")
    sys.stdout.write(f"{text}\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
        return str(value)
    return str(value) if isinstance(value, str) else value


def iso(instant: datetime) -> str:
    """An instant as ISO 8601 in UTC."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# People


def since(instant: datetime | None, now: datetime) -> str:
    """An instant against now, in a few characters: "12s ago", "in 3m"."""
    if instant is None:
        return ""
    distance = (instant - now).total_seconds()
    return f"in {span(distance)}" if distance > 0 else f"{span(-distance)} ago"


def span(seconds: float, *, exact: bool = False) -> str:
    """A duration in one unit: "119s", "2m", "3d".

    Args:
        seconds: how long.
        exact: whether the unit is the largest in which it is a whole number, instead of one that is near enough.
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds % size == 0 and seconds >= size if exact else seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s" if exact else f"{int(seconds)}s"


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 job", "1,000 jobs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one below the other; a value of several lines stands indented below its name."""
    listed = [(name, printable(value, keeps_lines=True).rstrip()) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    out = console()
    for name, value in listed:
        if "\n" in value:
            out.print(Text(name, "bold"), soft_wrap=True)
            out.print(Text("\n".join(f"    {part}" for part in value.split("\n"))), soft_wrap=True)
        else:
            out.print(Text.assemble((name.ljust(width), "bold"), _GAP, value), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        least: the width to which it may be cut on a narrow terminal; None: it is never cut.
        yields: whether the whole column may be left out where it is narrow; of several, the highest goes first.
        keeps_end: whether a cut value keeps its end, which tells more of a dotted name.
        style: the style of a value.
    """

    title: str
    least: int | None = None
    yields: int = 0
    keeps_end: bool = False
    style: Callable[[str], str] | None = None


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table on stdout. On a terminal it fits: values are cut, columns left out, and where not even that is
    enough each row becomes a block of lines. In a pipe everything is there, in aligned columns."""
    cells = [[one_line(value) for value in row] for row in rows]
    if not cells:
        hint(empty)
        return
    out = console()
    widths = [
        max(cell_len(column.title), *(cell_len(row[place]) for row in cells)) for place, column in enumerate(columns)
    ]
    fitted = _fit(columns, widths, out.width) if out.is_terminal else dict(enumerate(widths))
    if fitted is None:
        _blocks(out, columns, cells)
        return
    titles = [column.title for column in columns]
    for number, row in enumerate([titles, *cells]):
        text = Text()
        for place, width in fitted.items():
            column = columns[place]
            value = _cut(row[place], width, keeps_end=column.keeps_end)
            style = "bold" if number == 0 else column.style(row[place]) if column.style is not None else ""
            text.append(value, style)
            text.append(" " * (width - cell_len(value)) + _GAP)
        text.rstrip()
        out.print(text, soft_wrap=True)


def _blocks(out: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    for number, row in enumerate(cells):
        if number:
            out.print()
        for column, value in zip(columns, row, strict=True):
            if value:
                style = "" if column.style is None else column.style(value)
                out.print(Text.assemble((f"{column.title.lower()} ", "bold"), (value, style)), soft_wrap=True)


def _fit(columns: Sequence[Column], natural: Sequence[int], room: int) -> dict[int, int] | None:
    """The width of each column that is shown, by its place; None: it cannot be made to fit."""

    def least(place: int) -> int:
        wanted = columns[place].least
        return natural[place] if wanted is None else min(wanted, natural[place])

    shown = list(range(len(columns)))
    while sum(least(place) for place in shown) + len(_GAP) * (len(shown) - 1) > room:
        leaving = max(shown, key=lambda place: columns[place].yields)
        if not columns[leaving].yields:
            return None
        shown.remove(leaving)
    widths = {place: natural[place] for place in shown}
    while sum(widths.values()) + len(_GAP) * (len(shown) - 1) > room:
        widest = max((place for place in shown if widths[place] > least(place)), key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _cut(text: str, width: int, *, keeps_end: bool) -> str:
    if cell_len(text) <= width:
        return text
    kept = ""
    for character in reversed(text) if keeps_end else text:
        if cell_len(kept) + cell_len(character) > width - 1:
            break
        kept = character + kept if keeps_end else kept + character
    return _ELLIPSIS + kept if keeps_end else kept + _ELLIPSIS
