"""Durations and instants as people give them, as the microseconds that the store keeps."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from fencepost.errors import ConfigurationError
from fencepost.job import Micros

__all__ = ["FIRST_INSTANT", "LAST_INSTANT", "instant_micros", "micros", "parse_duration", "seconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_SECONDS = 100 * 366 * 86_400

FIRST_INSTANT: Micros = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST_INSTANT: Micros = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The instants that a datetime in UTC can be: from the year 1 to the year 9999."""


def seconds(duration: float | timedelta, name: str) -> float:
    """A duration of seconds or timedelta, in seconds.

    Raises:
        ConfigurationError: negative, not finite, beyond 100 years, or no duration at all. `name` is in the text.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value = float(duration)
    else:
        raise ConfigurationError(f"{name} is a number of seconds or a timedelta, not {duration!r}")
    if not math.isfinite(value) or not 0 <= value <= _LONGEST_SECONDS:
        raise ConfigurationError(f"{name} is between 0 seconds and 100 years, not {duration!r}")
    return value


def micros(duration: float | timedelta, name: str) -> Micros:
    """A duration of seconds or timedelta, in microseconds; the same errors as `seconds`."""
    return round(seconds(duration, name) * 1_000_000)


def parse_duration(text: str, name: str) -> float:
    """Seconds from a text such as `90s`, `15m`, `1h30m`, `7d`, `250ms` or `1.5` (seconds).

    Raises:
        ConfigurationError: it is none. `name` is in the text.
    """
    plain = text.strip().lower()
    if _PLAIN.fullmatch(plain):
        return seconds(float(plain), name)
    if not plain or _PART.sub("", plain):
        raise ConfigurationError(f"{name} is a duration such as 90s, 15m, 1h30m or 7d; not {text!r}")
    return seconds(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain)), name)


def instant_micros(instant: datetime, name: str) -> Micros:
    """An aware datetime, in microseconds since the Unix epoch, exactly.

    Raises:
        ConfigurationError: naive, no datetime at all, or in UTC no longer within the years 1 to 9999.
    """
    if not isinstance(instant, datetime):
        raise ConfigurationError(f"{name} is an aware datetime, not {instant!r}")
    if instant.utcoffset() is None:
        raise ConfigurationError(
            f"{name}={instant!r} has no time zone, so its instant is not known. Give it one: "
            "datetime.now(UTC) + timedelta(hours=1), or datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    found = (instant - _EPOCH) // _MICROSECOND
    if not FIRST_INSTANT <= found <= LAST_INSTANT:
        raise ConfigurationError(f"{name}={instant!r} lies, in UTC, outside of the years 1 to 9999: choose another one")
    return found
