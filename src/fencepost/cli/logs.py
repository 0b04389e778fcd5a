"""Log lines of a worker: for people, above its live line, and as JSON for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from rich.console import Console
from rich.text import Text

from fencepost.cli.output import iso
from fencepost.cli.printable import printable

__all__ = ["LogFormat", "LogLevel", "configure"]


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level that is printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(form: LogFormat, level: LogLevel, console: Console) -> None:
    """Send everything that is logged in this process to `console`, in the given form."""
    handler = _ConsoleHandler(console, _json_line if form is LogFormat.JSON else _text_line)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # its steps are ours to announce


class _ConsoleHandler(logging.Handler):
    """Prints through a Rich console, so that lines and a live line do not overwrite each other."""

    def __init__(self, console: Console, form: Callable[[logging.LogRecord], Text]) -> None:
        super().__init__()
        self._console = console
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(self._form(record), soft_wrap=True)
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)


def _text_line(record: logging.LogRecord) -> Text:
    at = datetime.fromtimestamp(record.created).astimezone()
    text = Text()
    text.append(f"{at:%Y-%m-%d %H:%M:%S} ", "dim")
    text.append(f"{record.levelname:<8} ", _STYLES.get(record.levelno, ""))
    text.append(printable(f"{record.getMessage()}{_traceback(record, lead=chr(10))}", keeps_lines=True))
    return text


def _json_line(record: logging.LogRecord) -> Text:
    fields: dict[str, object] = {
        "ts": iso(datetime.fromtimestamp(record.created, UTC)),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if record.exc_info or record.stack_info:
        fields["exception"] = _traceback(record)
    fields |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
    return Text(json.dumps(fields, default=str).replace("\x7f", "\\u007f"))


def _traceback(record: logging.LogRecord, *, lead: str = "") -> str:
    parts = []
    if record.exc_info:
        parts.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return lead + "\n".join(parts) if parts else ""
