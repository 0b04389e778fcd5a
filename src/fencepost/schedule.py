"""Plain data: schedules, and the words for their policies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = ["DEFAULT_GRACE_SECONDS", "DEFAULT_MAX_CATCH_UP", "Misfire", "Schedule", "Trigger"]

DEFAULT_GRACE_SECONDS = 60.0
DEFAULT_MAX_CATCH_UP = 100


class Misfire(StrEnum):
    """What becomes of instants that passed, beyond the grace, while nothing could run them."""

    SKIP = "skip"
    """None of them runs."""
    LATEST = "latest"
    """The newest one runs, unless a later one is within the grace and runs anyway."""
    CATCH_UP = "catch_up"
    """The newest `max_catch_up` run, in order."""


class Trigger(StrEnum):
    """What made an occurrence."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stood when it was read. Instants are aware datetimes in UTC."""

    name: str
    kind: str
    queue: str
    cron: str | None
    every: float | None
    """Seconds."""
    at: datetime | None
    timezone: str
    arguments: Any
    misfire: Misfire | str
    max_catch_up: int
    grace: float
    """Seconds within which an instant is late, not missed."""
    jitter: float
    """Seconds."""
    until: datetime | None
    max_runs: int | None
    runs: int
    """Occurrences made by the schedule itself so far."""
    version: int
    next_fire_at: datetime | None
    """None: it will not fire any more."""
    paused_at: datetime | None
    paused_reason: str | None
    """`operator`, or `undeclared` for one that vanished from the code."""
    declared: bool
    """Whether it is kept in step with the code."""
    error: str | None
    """Why it cannot be planned by this version, if it cannot."""
    created_at: datetime
    updated_at: datetime
