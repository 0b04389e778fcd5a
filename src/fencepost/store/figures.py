"""Figures of schedules, for people: the newest occurrence, what waits, how late it is. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, func, select
from sqlalchemy.engine import Connection

from fencepost.job import WAITING_STATES, Job, Micros, State, Trigger
from fencepost.store.listing import LIVE_PARTS
from fencepost.store.rows import LISTING_COLUMNS, instant, job_from_row
from fencepost.store.tables import jobs, schedules

__all__ = ["ScheduleFigures", "lag_seconds", "schedule_figures"]


@dataclass(frozen=True, slots=True)
class ScheduleFigures:
    """What has become of one schedule's occurrences.

    Attributes:
        schedule: its name.
        newest: the occurrence of the latest instant, as in a listing; None: there is none (any more).
        pending: how many wait: blocked, scheduled (backing off too) or ready.
        running: how many run.
        oldest_pending: the earliest instant that still waits; None: none does.
        oldest_pending_seconds: how long ago that was; 0 if it lies in the future.
        lag_seconds: how late the newest one started; None: it has not started, or was tried more than once.
    """

    schedule: str
    newest: Job | None
    pending: int
    running: int
    oldest_pending: datetime | None
    oldest_pending_seconds: float | None
    lag_seconds: float | None


# Served by the `occurrence` index: its last entry of each schedule, and the row that this names. Not max(): in a
# correlated subquery MariaDB and MySQL read every entry of the schedule for it.
_LAST_INSTANT = (
    select(jobs.c.scheduled_for)
    .where(jobs.c.schedule == schedules.c.name)
    .order_by(jobs.c.scheduled_for.desc())
    .limit(1)
    .scalar_subquery()
)
_LATEST = select(schedules.c.name, _LAST_INSTANT.label("at")).select_from(schedules).subquery("latest")
_NEWEST = select(*(jobs.c[name] for name in LISTING_COLUMNS)).join(
    _LATEST, and_(jobs.c.schedule == _LATEST.c.name, jobs.c.scheduled_for == _LATEST.c.at)
)

# Served by the indexes that hold live jobs alone: a long history costs nothing.
_LIVE = tuple(
    select(jobs.c.schedule, jobs.c.state, func.count().label("number"), func.min(jobs.c.scheduled_for).label("oldest"))
    .where(part, jobs.c.schedule.is_not(None))
    .group_by(jobs.c.schedule, jobs.c.state)
    for part in LIVE_PARTS
)


def schedule_figures(conn: Connection, now: Micros, name: str | None = None) -> list[ScheduleFigures]:
    """The figures of all schedules, by name, or of one; empty where it is not there.

    Args:
        conn: any connection.
        now: the database's clock.
        name: of one schedule; None: all.
    """
    listed, newest, live = select(schedules.c.name).order_by(schedules.c.name), _NEWEST, _LIVE
    if name is not None:
        listed, newest = listed.where(schedules.c.name == name), newest.where(_LATEST.c.name == name)
        live = tuple(query.where(jobs.c.schedule == name) for query in _LIVE)
    names = [str(row.name) for row in conn.execute(listed)]
    latest = {row.schedule: job_from_row(row) for row in conn.execute(newest)}
    pending, running, oldest = dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict[str, Micros]()
    for query in live:
        for row in conn.execute(query):
            if row.schedule not in pending:
                continue  # of a schedule that was deleted
            if row.state == State.RUNNING:
                running[row.schedule] += row.number
            else:
                pending[row.schedule] += row.number
                oldest[row.schedule] = min(row.oldest, oldest.get(row.schedule, row.oldest))
    return [
        ScheduleFigures(
            schedule=one,
            newest=latest.get(one),
            pending=pending[one],
            running=running[one],
            oldest_pending=instant(oldest.get(one)),
            oldest_pending_seconds=max(0, now - oldest[one]) / 1_000_000 if one in oldest else None,
            lag_seconds=None if one not in latest else lag_seconds(latest[one]),
        )
        for one in names
    ]


def lag_seconds(occurrence: Job) -> float | None:
    """How long after it was due an occurrence started.

    Due is the instant of the schedule (with its jitter); for what was made afterwards, that is by hand or for a past
    range, the moment at which it was made; for one that a person retried, the moment at which they did.

    Returns:
        Seconds; None: it has not started, or was tried more than once, when only its newest start is known.
    """
    if occurrence.started_at is None or occurrence.attempts > 1:
        return None
    if occurrence.state in WAITING_STATES or occurrence.state == State.SKIPPED:
        return None
    due = occurrence.run_at
    if due == occurrence.created_at and occurrence.trigger == Trigger.SCHEDULE and occurrence.scheduled_for is not None:
        due = occurrence.scheduled_for
    return max(timedelta(0), occurrence.started_at - due).total_seconds()
