"""When a schedule fires: cron expressions by Debian cron's rules, intervals, single instants.

Daylight saving follows Debian's cron(8), as cronsim implements it: a wall time in the hour that is left out fires
once, right after it; a wall time in the hour that is repeated fires once, at the first; an expression whose hour or
minute field starts with a star follows real time through both. Six fields (leading seconds) always follow real time.
If the day of month or the day of week starts with a star, both must match; otherwise either one does.
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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
            while True:
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
    # Floor division, so that an instant before 1970 is rounded down as well.
    start = _EPOCH + timedelta(microseconds=after // _SECOND * _SECOND)
    try:
        for moment in CronSim(_fields(cron.expression), start.astimezone(zone)):
            at = (moment - _EPOCH) // timedelta(microseconds=1)
            # cronsim walks wall times: from inside a repeated hour it may name that hour's first pass again.
            if at > after:
                yield at
                after = at
    except (OverflowError, ValueError):  # the year 9999
        return


def _count_cron(cron: Cron, first: Micros, last: Micros) -> int:
    """Whole days without a change of the zone's offset are counted by their fields, the others instant by instant."""
    zone = _zone(cron.timezone)
    sim = CronSim(_fields(cron.expression), datetime(2000, 1, 1, tzinfo=zone))
    per_day = len(sim.hours) * len(sim.minutes) * len(sim.seconds)
    total = 0
    at = first
    while at <= last:
        local = (_EPOCH + timedelta(microseconds=at)).astimezone(zone)
        day = local.date()
        start, end = _bounds(day, zone)
        stop = min(last + 1, end)
        if at == start and stop == end and end - start == _DAY and _is_even(day, zone):
            if day.month in sim.months and sim.match_day(day):
                total += per_day
        elif end - start == _DAY and _is_even(day, zone):
            if day.month in sim.months and sim.match_day(day):
                total += _count_seconds(sim, (at - start + _SECOND - 1) // _SECOND, (stop - start - 1) // _SECOND)
        else:
            total += sum(1 for _ in _until(cron, at - 1, stop - 1))
        at = stop
    return total


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
        return (datetime.combine(which, time_of_day(), tzinfo=zone) - _EPOCH) // timedelta(microseconds=1)

    return midnight(day), midnight(day + timedelta(days=1))


def _is_even(day: date, zone: ZoneInfo) -> bool:
    """Whether the offset is one and the same from the day's midnight to the next, hour by hour."""
    offsets = {datetime.combine(day, time_of_day(hour), tzinfo=zone).utcoffset() for hour in range(24)}
    offsets.add(datetime.combine(day + timedelta(days=1), time_of_day(), tzinfo=zone).utcoffset())
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
