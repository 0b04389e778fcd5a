"""What a cron expression means, by walking the minutes of UTC: slow, plain, and no code of fencepost's.

Debian's cron(8): a wall time that is left out fires once, right after the gap; one that is repeated fires at the
first pass; an expression whose minute or hour starts with a star follows real time through both. Of the day of month
and the day of week both must match if either starts with a star, else one is enough.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

__all__ = ["MINUTE", "Window", "at", "instants"]

MINUTE = 60_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = timedelta(minutes=1)
_MONTHS = [name.lower() for name in calendar.month_abbr]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True)
class Window:
    """Some days of a zone, from midnight to midnight UTC."""

    zone: str
    first: date
    days: int

    @property
    def start(self) -> int:
        """In microseconds."""
        return _micros(datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC))

    @property
    def end(self) -> int:
        """In microseconds, not included."""
        return self.start + self.days * 1440 * MINUTE

    def __str__(self) -> str:
        return f"{self.zone}-{self.first}"


def at(text: str) -> int:
    """The microseconds of an ISO instant such as 2026-03-08T07:00Z."""
    return _micros(datetime.fromisoformat(text))


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def instants(expression: str, window: Window) -> list[int]:
    """Every instant of an expression of five fields within the window."""
    matches = _matcher(expression)
    minute, hour = expression.split()[:2]
    follows_real_time = minute.startswith("*") or hour.startswith("*")
    found = []
    for instant, walls, fold in _walk(window):
        if follows_real_time:
            fires = matches(walls[-1])
        else:
            # `walls` begins with those that were left out just before this minute.
            fires = any(matches(wall) for wall in walls[:-1]) or (fold == 0 and matches(walls[-1]))
        if fires:
            found.append(instant)
    return found


@cache
def _walk(window: Window) -> list[tuple[int, list[datetime], int]]:
    zone = ZoneInfo(window.zone)
    moment = _EPOCH + timedelta(microseconds=window.start)
    before = (moment - _STEP).astimezone(zone).replace(tzinfo=None, fold=0)
    steps = []
    for _ in range(window.days * 1440):
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        left_out = [before + i * _STEP for i in range(1, max(1, (wall - before) // _STEP))]
        steps.append((_micros(moment), [*left_out, wall], local.fold))
        before = wall
        moment += _STEP
    return steps


def _matcher(expression: str) -> Callable[[datetime], bool]:
    minute, hour, day, month, weekday = expression.lower().split()
    minutes = _numbers(minute, 0, 59, [])
    hours = _numbers(hour, 0, 23, [])
    months = _numbers(month, 1, 12, _MONTHS)
    both = day.startswith("*") or weekday.startswith("*")

    def matches(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        days = _is_day(day, wall), _is_weekday(weekday, wall)
        return all(days) if both else any(days)

    return matches


def _is_day(field: str, wall: datetime) -> bool:
    last = calendar.monthrange(wall.year, wall.month)[1]
    return any(wall.day == last if part == "l" else wall.day in _numbers(part, 1, 31, []) for part in field.split(","))


def _is_weekday(field: str, wall: datetime) -> bool:
    today = wall.isoweekday() % 7
    last = calendar.monthrange(wall.year, wall.month)[1]
    for part in field.split(","):
        name, _, nth = part.partition("#")
        is_last = name[-1] == "l" and name[:-1].isdigit()
        wanted = {number % 7 for number in _numbers(name[:-1] if is_last else name, 0, 7, _DAYS)}
        if today in wanted and (not nth or (wall.day + 6) // 7 == int(nth)) and (not is_last or wall.day + 7 > last):
            return True
    return False


def _numbers(field: str, lowest: int, highest: int, names: list[str]) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if first == "*":
            low, high = lowest, highest
        else:
            low = names.index(first) if first in names else int(first)
            high = (names.index(last) if last in names else int(last)) if last else highest if step else low
        found |= set(range(low, high + 1, int(step or 1)))
    return found
