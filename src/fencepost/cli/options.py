"""Options that several commands share, and the durations people write."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any

import typer

from fencepost.errors import ConfigurationError
from fencepost.timing import parse_duration

__all__ = [
    "AppArgument",
    "AppOption",
    "JsonOption",
    "UrlOption",
    "age",
    "duration",
    "instant_of",
    "labels_of",
    "object_of",
]

_PLAIN = re.compile(r"\d+(?:\.\d+)?")


def duration(text: str | float) -> float:
    """Seconds from `90s`, `15m`, `1h30m`, `7d`, or a plain number of seconds."""
    if not isinstance(text, str):  # Typer has its defaults parsed too
        return float(text)
    try:
        return parse_duration(text, repr(text))
    except ConfigurationError as error:
        raise typer.BadParameter(f"{text!r} is no duration. Write 90s, 15m, 12h, 7d or 1h30m.") from error


def age(text: str) -> float:
    """Seconds from a duration with its unit: a plain number would be days to one reader and seconds to another."""
    if _PLAIN.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is no duration. Write 90s, 15m, 12h, 7d or 1h30m.")
    return duration(text)


def instant_of(text: str | None, name: str) -> datetime | None:
    """An instant in ISO 8601 with its offset; a naive one would be another instant on another machine."""
    if text is None:
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {text!r} is no instant. Write ISO 8601: 2030-01-31T08:00:00Z") from error
    if value.utcoffset() is None:
        raise typer.BadParameter(
            f"{name}: {text!r} has no time zone, so its instant is not known. Write 2030-01-31T08:00:00Z or ...+02:00"
        )
    return value


def object_of(text: str | None, name: str) -> dict[str, Any] | None:
    """A handler's arguments, written as a JSON object."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name} is no JSON: {error}. Write an object: '{{\"user_id\": 7}}'") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{name} is a JSON object of the handler's arguments by name: '{{\"user_id\": 7}}'")
    return value


def labels_of(pairs: list[str] | None) -> dict[str, str] | None:
    """Labels, each written as NAME=VALUE."""
    if not pairs:
        return None
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--label: {pair!r} is no label. Write NAME=VALUE: --label gpu=a100")
        if labels.setdefault(name, value) != value:
            raise typer.BadParameter(f"--label: {name} is given twice, as {labels[name]} and as {value}")
    return labels


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The database: sqlite:///jobs.db, postgresql://user:password@host/database, mysql://... "
        "Default: the environment variable FENCEPOST_URL, which keeps a password out of the list of processes.",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="The database of this app (module:attribute), instead of --url."),
]
AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="Where your fencepost.App is: module:attribute, for example tasks:app. Modules are looked for in the "
        "current directory too.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout and nothing else. Instants are ISO 8601 in UTC.")
]
