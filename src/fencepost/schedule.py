"""Plain data: schedules, and the words for their policies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from fencepost.job import Micros, OnMiss, Options

__all__ = [
    "DEFAULT_GRACE_SECONDS",
    "DEFAULT_MAX_CATCH_UP",
    "OWN_KEY_PREFIX",
    "Cron",
    "Every",
    "Misfire",
    "NewSchedule",
    "Once",
    "Overlap",
    "Schedule",
    "Timing",
]

DEFAULT_GRACE_SECONDS = 60
DEFAULT_MAX_CATCH_UP = 100

OWN_KEY_PREFIX = "schedule:"
"""How the concurrency key of a schedule's own begins; the name follows."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression (5 fields, 6 with leading seconds, or a nickname) in an IANA time zone."""

    expression: str
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval in microseconds; its instants are `anchor + n * period`, so restarts do not shift them."""

    period: Micros
    anchor: Micros = 0


@dataclass(frozen=True, slots=True)
class Once:
    """A single instant, in microseconds since the Unix epoch."""

    at: Micros


Timing: TypeAlias = Cron | Every | Once


class Misfire(StrEnum):
    """What becomes of instants that passed, beyond the grace, while nothing could run them."""

    SKIP = "skip"
    """None of them runs."""
    LATEST = "latest"
    """The newest one runs, unless a later one is within the grace and runs anyway."""
    CATCH_UP = "catch_up"
    """The newest `max_catch_up` run, in order."""


class Overlap(StrEnum):
    """What becomes of an occurrence that is due while an earlier one of the same key still runs."""

    ALLOW = "allow"
    """It runs beside it."""
    SKIP = "skip"
    """It is recorded as skipped, reason `singleton`."""
    QUEUE = "queue"
    """It waits until a permit is released."""
    QUEUE_ON_SUCCESS = "queue_on_success"
    """It waits until the earlier one is final, retries included, and runs if that succeeded; else it is skipped."""


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule's definition, checked and in the store's units.

    Attributes:
        name: unique.
        kind: whose jobs it makes.
        arguments: theirs, as JSON text.
        options: theirs.
        timing: when it fires.
        misfire, max_catch_up, grace: what becomes of instants that passed; `grace` in microseconds.
        jitter: the most by which an occurrence's start is put off, in microseconds.
        until: the last instant at which it may fire.
        max_runs: how many occurrences it makes at most.
        version: of two definitions the higher one wins, whenever they are declared.
        declared_in: the module that declares it; None: made at run time.
        overlap: what becomes of an occurrence that is due while others of its key run.
        permit_key: the key, which schedules may share; None: the schedule's own.
        slots: how many may run at once.

    With a tolerance among its options its occurrences have fixed starts, and are made a little ahead of them.
    """

    name: str
    kind: str
    arguments: str
    options: Options
    timing: Timing
    misfire: Misfire = Misfire.LATEST
    max_catch_up: int = DEFAULT_MAX_CATCH_UP
    grace: Micros = DEFAULT_GRACE_SECONDS * 1_000_000
    jitter: Micros = 0
    until: Micros | None = None
    max_runs: int | None = None
    version: int = 0
    declared_in: str | None = None
    overlap: Overlap = Overlap.ALLOW
    permit_key: str | None = None
    slots: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether its occurrences have fixed starts."""
        return self.options.tolerance is not None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stood when it was read. Instants are aware datetimes in UTC."""

    name: str
    kind: str
    queue: str
    cron: str | None
    every: float | None
    """Seconds."""
    anchor: datetime | None
    """One of the instants of `every`."""
    at: datetime | None
    timezone: str
    arguments: Any
    misfire: Misfire | str
    max_catch_up: int
    grace: float
    """Seconds within which an instant is late, not missed."""
    jitter: float
    """Seconds."""
    overlap: Overlap | str
    permit_key: str | None
    slots: int
    tolerance: float | None
    """Seconds by which a start may be late; None: starts are not fixed, but come as soon as they can."""
    on_miss: OnMiss | str | None
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
    declared_in: str | None
    """The module that declares it, with whose code it is kept in step; None: made at run time."""
    labels: dict[str, str]
    """What the worker of its jobs must have."""
    error: str | None
    """Why it cannot be planned by this version, if it cannot."""
    created_at: datetime
    updated_at: datetime
