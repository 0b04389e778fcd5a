"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fencepost.job import Micros
from fencepost.timing import instant_micros, micros

__all__ = ["VirtualClock"]


class VirtualClock:
    """Stands in for the database's clock: `fencepost.App(url, clock=VirtualClock())`.

    Args:
        start: an aware datetime; default: 2026-01-01 00:00 UTC.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = instant_micros(start, "start")

    def now(self) -> Micros:
        """Microseconds since the Unix epoch."""
        return self._now

    def advance(self, duration: float | timedelta) -> None:
        """Move forward by seconds or a timedelta."""
        self._now += micros(duration, "duration")

    def set_back(self, duration: float | timedelta) -> None:
        """Move backward, as a clock that was corrected does."""
        self._now -= micros(duration, "duration")
