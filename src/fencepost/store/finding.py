"""What an examination of the database found: plain data for `fencepost doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as it should, or not for long."""
    PROBLEM = "problem"
    """Jobs do not run, or may be lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: a word for it that stays the same, for programs.
        level: how much it matters.
        what: what was found.
        do: what to do about it; None where nothing needs to be done.
    """

    check: str
    level: Level
    what: str
    do: str | None = None
