"""What an examination of the database found: plain data for `fencepost doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Health", "Level"]


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


@dataclass(frozen=True, slots=True)
class Health:
    """What `app.health()` found: every check, and the worst level of them."""

    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """`ok`, `warning` or `problem`."""
        return max((finding.level for finding in self.findings), key=list(Level).index)

    @property
    def is_well(self) -> bool:
        """Whether there is no problem; there may be warnings."""
        return self.level is not Level.PROBLEM
