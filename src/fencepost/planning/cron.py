"""When a schedule fires: cron expressions by Debian cron's rules, intervals, single instants.

Daylight saving follows Debian's cron(8): a wall time in the hour that is left out fires once, right after it; a wall
time in the hour that is repeated fires once, at the first; an expression whose hour or minute field starts with a star
follows real time through both. Six fields (leading seconds) always follow real time. If the day of month or the day of
week starts with a star, both must match; otherwise either one does.

cronsim reads the expressions and says which days match; the instants of a day are found here. Its own walk goes by
whole hours of real time, and so leaves instants out where the clocks change by half an hour, and takes a midnight that
is left out for one that exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from fencepost.errors import ConfigurationError
from fencepost.job import Micros
from fencepost.schedule import Cron, Every, Once, Timing
from fencepost.timing import LAST_INSTANT

__all__ = ["checked", "count_between", "fires_after", "jitter_of", "last_between", "next_fire"]

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND: Micros = 1_000_000
_DAY: Micros = 86_400 * _SECOND
_ONE_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARSED_FROM = datetime(2000, 1, 1, tzinfo=ZoneInfo("Etc/UTC"))  # a zone, or cronsim does not tell fixed times apart
_SEARCHED_YEARS = 50  # a leap day that is a Monday may be 40 years away
_FIXED_ZONE = re.compile(r"^(EST|MST|HST|[A-Z]{3}\d|Etc/GMT.+)", re.ASCII)


def checked(timing: Timing) -> Timing:
    """The timing, if it can be.

    Raises:
        ConfigurationError: an expression, a zone or a period that cannot be, or an expression that never fires; with
            what is wrong and an example.
    """
    match timing:
        case Every(period) if period < _SECOND:
            raise ConfigurationError("every= is at least 1 second: every='90s', every='15m' or a timedelta")
        case Cron(expression, timezone):
            _check_cron(expression, _zone(timezone))
    return timing


def _check_cron(expression: str, zone: ZoneInfo) -> None:
    fields = _fields(expression)
    try:
        first = next(islice(CronSim(fields, datetime(2000, 1, 1, tzinfo=zone)), 1), None)
    except (CronSimError, ValueError, RecursionError) as error:
        if not _is_impossible_date(fields):
            raise ConfigurationError(
                f"{expression!r} is no cron expression: {_why(fields, error)}. Example: '15 2 * * 1-5' is 02:15 from "
                "Monday to Friday"
            ) from None
        first = None
    if first is None:
        raise ConfigurationError(
            f"{expression!r} never fires: no date of its months has that day. Example of one that does: '0 0 28 2 *'"
        )


def _fields(expression: str) -> str:
    return _NICKNAMES.get(expression.strip().lower(), expression)


def next_fire(timing: Timing, after: Micros) -> Micros | None:
    """The first instant strictly after `after`, or None if there is none (any more)."""
    return next(fires_after(timing, after), None)


def fires_after(timing: Timing, after: Micros) -> Iterator[Micros]:
    """All instants strictly after `after`, in order."""
    match timing:
        case Once(at):
            if at > after:
                yield at
        case Every(period, anchor):
            at = anchor + ((after - anchor) // period + 1) * period
            while at <= LAST_INSTANT:
                yield at
                at += period
        case Cron():
            yield from _cron_after(timing, after)


def count_between(timing: Timing, first: Micros, last: Micros) -> int:
    """How many instants lie from `first` to `last`, both included. Costs a step a day, not one an instant."""
    if last < first:
        return 0
    match timing:
        case Once(at):
            return int(first <= at <= last)
        case Every(period, anchor):
            return (last - anchor) // period - (first - 1 - anchor) // period
        case Cron():
            return _count_cron(timing, first, last)


def last_between(timing: Timing, first: Micros, last: Micros, most: int) -> list[Micros]:
    """The last `most` instants from `first` to `last`, both included, in order."""
    if most < 1 or last < first:
        return []
    span = 60 * _SECOND
    while True:
        start = max(first, last - span)
        found = [*_until(timing, start - 1, last)]
        if len(found) >= most or start == first:
            return found[-most:]
        span *= 4


def jitter_of(schedule: str, scheduled_for: Micros, most: Micros) -> Micros:
    """The delay of one instant, from 0 to `most`: drawn from the schedule's name and the instant, so it is stable."""
    if most <= 0:
        return 0
    digest = blake2b(f"{schedule}\0{scheduled_for}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (most + 1)


def _until(timing: Timing, after: Micros, last: Micros) -> Iterator[Micros]:
    for at in fires_after(timing, after):
        if at > last:
            return
        yield at


def _cron_after(cron: Cron, after: Micros) -> Iterator[Micros]:
    zone = _zone(cron.timezone)
    sim = _parsed(cron.expression)
    try:
        day = _local(min(after, LAST_INSTANT), zone).date()
        last_year = day.year + _SEARCHED_YEARS
        while day.year <= last_year:
            for at in _instants_of(sim, day, zone, after):
                # Several wall times that are left out may all fire right after the gap: that is once.
                if at > after:
                    yield at
                    after = at
                    last_year = day.year + _SEARCHED_YEARS
            day += _ONE_DAY
    except OverflowError:  # the year 9999
        return


def _instants_of(sim: CronSim, day: date, zone: ZoneInfo, after: Micros) -> Iterator[Micros]:
    """A day's instants in order, from the hour of `after` on."""
    is_match = _matches(sim, day)
    if not is_match and not _matches(sim, day - _ONE_DAY):
        return
    if _is_even(day, zone):
        if is_match:
            start, _ = _bounds(day, zone)
            yield from _by_fields(sim, start, after)
    elif sim.fixup_tz is None:
        yield from _by_real_time(sim, *_bounds(day, zone), zone)
    elif is_match:
        for hour in sorted(sim.hours):
            for minute in sorted(sim.minutes):
                yield _first_pass(datetime.combine(day, time_of_day(hour, minute)), zone)


def _by_fields(sim: CronSim, start: Micros, after: Micros) -> Iterator[Micros]:
    minutes, seconds = sorted(sim.minutes), sorted(sim.seconds)
    for hour in sorted(sim.hours):
        if start + (hour + 1) * 3600 * _SECOND <= after:
            continue
        for minute in minutes:
            for second in seconds:
                yield start + (hour * 3600 + minute * 60 + second) * _SECOND


def _by_real_time(sim: CronSim, start: Micros, end: Micros, zone: ZoneInfo) -> Iterator[Micros]:
    """Minute by minute. Past a midnight that is repeated, the date is the day before's once more."""
    for at in range(start, end, 60 * _SECOND):
        local = _local(at, zone)
        if local.hour in sim.hours and local.minute in sim.minutes and _matches(sim, local.date()):
            yield from (at + second * _SECOND for second in sorted(sim.seconds))


def _first_pass(wall: datetime, zone: ZoneInfo) -> Micros:
    """The instant of a wall time: the first of two, or right after the gap that it lies in."""
    while True:
        at = (wall.replace(tzinfo=zone) - _EPOCH) // _MICROSECOND
        if _local(at, zone).replace(tzinfo=None) == wall:
            return at
        wall += timedelta(minutes=1)


def _matches(sim: CronSim, day: date) -> bool:
    return day.month in sim.months and sim.match_day(day)


def _local(at: Micros, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=at)).astimezone(zone)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> CronSim:
    """The expression's fields; `fixup_tz` is None if it follows real time."""
    return CronSim(_fields(expression), _PARSED_FROM)


def _count_cron(cron: Cron, first: Micros, last: Micros) -> int:
    """Days without a change of the zone's offset are counted by their fields, the others instant by instant."""
    zone = _zone(cron.timezone)
    sim = _parsed(cron.expression)
    per_day = len(sim.hours) * len(sim.minutes) * len(sim.seconds)
    total = 0
    day = _local(first, zone).date()
    while True:
        start, end = _bounds(day, zone)
        if start > last:
            return total
        low, high = max(first, start), min(last, end - 1)
        # After a whole day that was left out, its wall times fire at this one's midnight.
        if not (_is_even(day, zone) and _is_even(day - _ONE_DAY, zone)):
            total += sum(1 for _ in _until(cron, low - 1, high))
        elif _matches(sim, day):
            if (low, high) == (start, end - 1):
                total += per_day
            else:
                total += _count_seconds(sim, (low - start + _SECOND - 1) // _SECOND, (high - start) // _SECOND)
        day += _ONE_DAY


def _count_seconds(sim: CronSim, first: int, last: int) -> int:
    """How many of a day's matching seconds lie from `first` to `last`, both included."""
    total = 0
    per_hour = len(sim.minutes) * len(sim.seconds)
    for hour in sim.hours:
        if first <= hour * 3600 and hour * 3600 + 3599 <= last:
            total += per_hour
        elif hour * 3600 + 3599 >= first and hour * 3600 <= last:
            total += sum(
                first <= hour * 3600 + minute * 60 + second <= last for minute in sim.minutes for second in sim.seconds
            )
    return total


def _bounds(day: date, zone: ZoneInfo) -> tuple[Micros, Micros]:
    def midnight(which: date) -> Micros:
        return (datetime.combine(which, time_of_day(), tzinfo=zone) - _EPOCH) // _MICROSECOND

    return midnight(day), midnight(day + _ONE_DAY)


@lru_cache(maxsize=4096)
def _is_even(day: date, zone: ZoneInfo) -> bool:
    """Whether the offset is one and the same from the day's midnight to the next, hour by hour."""
    offsets = {datetime.combine(day, time_of_day(hour), tzinfo=zone).utcoffset() for hour in range(24)}
    offsets.add(datetime.combine(day + _ONE_DAY, time_of_day(), tzinfo=zone).utcoffset())
    return len(offsets) == 1


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    if name != "UTC" and ("/" not in name or name not in available_timezones()):
        known = {zone.lower(): zone for zone in available_timezones()}
        meant = known.get(str(name).lower())
        if _FIXED_ZONE.match(str(name)):
            hint = "it has no daylight saving and is no place: use one such as 'America/New_York'"
        elif meant is not None and meant != name:
            hint = f"did you mean {meant!r}?"
        else:
            hint = "use an IANA name such as 'Europe/Berlin' or 'UTC'"
        raise ConfigurationError(f"{name!r} is no time zone of the kind that schedules take: {hint}")
    return ZoneInfo(name)


def _is_impossible_date(fields: str) -> bool:
    """Whether all is well with the expression but for the month, which never has such a day."""
    parts = fields.split()
    if len(parts) not in (5, 6):
        return False
    month = parts[-2]
    parts[-2] = "*"
    try:
        CronSim(" ".join(parts), datetime(2000, 1, 1, tzinfo=UTC))
        CronSim(f"0 0 1 {month} *", datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError):
        return False
    return True


def _why(fields: str, error: Exception) -> str:
    count = len(fields.split())
    if count not in (5, 6):
        return f"it has {count} fields instead of 5 (or 6 with leading seconds)"
    return str(error)[:1].lower() + str(error)[1:]
