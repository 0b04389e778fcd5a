"""A process whose wall clock is wrong: `time.time()`, `time.time_ns()` and `datetime.now()` lie, monotonic does not."""

from __future__ import annotations

import datetime
import time
from typing import Any

__all__ = ["shift_clocks"]


def shift_clocks(seconds: float) -> None:
    """From here on this process's wall clock is off by so much. Before other modules take the functions."""
    if not seconds:
        return
    true_time, true_time_ns = time.time, time.time_ns

    class Shifted(datetime.datetime):
        __slots__ = ()  # C extensions check the size of the class

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(true_time() + seconds, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_time_ns() + round(seconds * 1_000_000_000)
    datetime.datetime = Shifted  # type: ignore[misc]
