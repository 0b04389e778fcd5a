"""A file to which handlers in any process append a line each: what ran, where, at which attempt."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["JOURNAL_VARIABLE", "Entry", "Journal"]

JOURNAL_VARIABLE = "FENCEPOST_CHAOS_JOURNAL"


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        event: "start", "end" or "cancelled".
        name: the job's, as the test gave it.
        pid: the process.
        attempt, token: of the running attempt.
        fence: the fencing token of its permit, where the handler notes it.
        at: the monotonic instant, which all processes of a machine share, whatever their wall clocks say.
    """

    event: str
    name: str
    pid: int
    attempt: int
    token: int
    at: float
    fence: int = 0


class Journal:
    """The file. Appending is one write, so lines of several processes never mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, event: str, **values: Any) -> None:
        """Append a line."""
        line = json.dumps({"event": event, "at": time.monotonic()} | values) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def entries(self, event: str | None = None, name: str | None = None) -> list[Entry]:
        """The lines, in order, of one event or name or of all."""
        lines = self.path.read_text().splitlines()
        found = [Entry(**json.loads(line)) for line in lines]
        return [e for e in found if event in (None, e.event) and name in (None, e.name)]

    def starts(self, name: str | None = None) -> list[Entry]:
        """Where attempts began."""
        return self.entries("start", name)
