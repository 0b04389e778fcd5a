"""Reading for people and programs: one job, pages of jobs, counts. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.engine import Connection

from fencepost.job import LIVE_STATES, Job, Micros, State
from fencepost.store.dependencies import open_dependencies
from fencepost.store.rows import LISTING_COLUMNS, instant, job_from_row
from fencepost.store.tables import jobs, live_key_of, queues

__all__ = [
    "LIVE_PARTS",
    "QueueCounts",
    "count_live",
    "find_live",
    "get_job",
    "list_jobs",
    "list_occurrences",
    "queue_counts",
    "result_text",
    "states_of",
]

LIVE_PARTS: tuple[ColumnElement[bool], ...] = (
    and_(jobs.c.line.is_not(None), jobs.c.state == State.READY),
    and_(jobs.c.line.is_not(None), jobs.c.state == State.BLOCKED),
    and_(jobs.c.wake_at.is_not(None), jobs.c.state == State.SCHEDULED),
    and_(jobs.c.lease_until.is_not(None), jobs.c.state == State.RUNNING),
    and_(jobs.c.wake_at.is_not(None), jobs.c.state == State.BLOCKED, jobs.c.line.is_(None)),
)
"""Live jobs by the indexes that hold live jobs alone, whatever the number of final ones."""


_MOST_NAMED = 5
_TOLD = select(queues).where(or_(queues.c.paused_at.is_not(None), queues.c.updated_at.is_not(None)))


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """One queue's live jobs.

    Attributes:
        name: the queue.
        ready, blocked, scheduled, running: how many.
        paused_since: None while it is not paused. An aware datetime in UTC.
        fair: whether its tenants share it by weight.
        max_pending, overflow: its bound and what an enqueue beyond it does; None: it has none.
        shed: how many of its waiting jobs were skipped so far because it was full.
    """

    name: str
    ready: int
    blocked: int
    scheduled: int
    running: int
    paused_since: datetime | None
    fair: bool = False
    max_pending: int | None = None
    overflow: str | None = None
    shed: int = 0


def get_job(conn: Connection, job_id: str) -> Job | None:
    """One job whole, or None."""
    row = conn.execute(select(jobs).where(jobs.c.id == job_id)).first()
    if row is None:
        return None
    job = job_from_row(row)
    if row.state == State.BLOCKED and row.waits_for:
        first = open_dependencies(conn, job_id, most=_MOST_NAMED)
        named = ", ".join(f"{when} of job {predecessor}" for predecessor, when in first)
        more = row.waits_for - len(first)
        job = replace(job, waits_for=f"{named} and {more:,} more" if more > 0 else named or job.waits_for)
    return job


def result_text(conn: Connection, job_id: str) -> str | None:
    """The result as it is stored: JSON text, or None."""
    return conn.execute(select(jobs.c.result).where(jobs.c.id == job_id)).scalar()


def states_of(conn: Connection, ids: Sequence[str]) -> dict[str, str]:
    """The states of jobs, by id; those that are not there are left out."""
    found = conn.execute(select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids)))
    return {str(row.id): row.state for row in found}


def list_jobs(
    conn: Connection,
    *,
    states: Collection[str] = (),
    kind: str | None = None,
    queue: str | None = None,
    key: str | None = None,
    tenant: str | None = None,
    tag: str | None = None,
    labels: Mapping[str, str] | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[Job]:
    """A page of jobs, newest first, without their arguments, results and history.

    Args:
        conn: any connection.
        states: any of these; empty: all.
        kind, queue, key, tenant: equal to this; None: any.
        tag: among its tags; None: any.
        labels: among its labels, all of them; None: any.
        before: the last id of the page before this one.
        limit: how many at most.
    """
    query = select(*(jobs.c[name] for name in LISTING_COLUMNS))
    if states:
        query = query.where(jobs.c.state.in_(sorted(states)))
    for column, value in (
        (jobs.c.kind, kind),
        (jobs.c.queue, queue),
        (jobs.c.dedup_key, key),
        (jobs.c.tenant, tenant),
    ):
        if value is not None:
            query = query.where(column == value)
    if tag is not None:
        query = query.where(jobs.c.tags.contains(json.dumps(tag, ensure_ascii=False), autoescape=True))
    for name, value in (labels or {}).items():
        stored = f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False)}"  # as `encode_labels` writes it
        # Not by LIKE, to which "A" and "a" are the same on SQLite.
        query = query.where(func.replace(jobs.c.labels, stored, "") != jobs.c.labels)
    if before is not None:
        query = query.where(jobs.c.id < before)
    rows = conn.execute(query.order_by(jobs.c.id.desc()).limit(limit))
    return [job_from_row(row) for row in rows]


def list_occurrences(
    conn: Connection,
    *,
    schedule: str | None = None,
    states: Collection[str] = (),
    trigger: str | None = None,
    since: Micros | None = None,
    until: Micros | None = None,
    before: tuple[Micros, str] | None = None,
    limit: int = 50,
) -> list[Job]:
    """A page of occurrences, newest instant first, without arguments, results and history.

    Args:
        conn: any connection.
        schedule, trigger: equal to this; None: any.
        states: any of these; empty: all.
        since, until: the window of `scheduled_for`, both included.
        before: (`scheduled_for`, id) of the last one of the page before this one.
        limit: how many at most.
    """
    query = select(*(jobs.c[name] for name in LISTING_COLUMNS)).where(jobs.c.schedule.is_not(None))
    if schedule is not None:
        query = query.where(jobs.c.schedule == schedule)
    if states:
        query = query.where(jobs.c.state.in_(sorted(states)))
    if trigger is not None:
        query = query.where(jobs.c.trigger == trigger)
    if since is not None:
        query = query.where(jobs.c.scheduled_for >= since)
    if until is not None:
        query = query.where(jobs.c.scheduled_for <= until)
    if before is not None:
        instant_, job_id = before
        earlier = jobs.c.scheduled_for < instant_
        query = query.where(or_(earlier, and_(jobs.c.scheduled_for == instant_, jobs.c.id < job_id)))
    rows = conn.execute(query.order_by(jobs.c.scheduled_for.desc(), jobs.c.id.desc()).limit(limit))
    return [job_from_row(row) for row in rows]


def find_live(conn: Connection, kind: str, key: str) -> Job | None:
    """The live job that holds the identity `(kind, key)`, or None. Served by the `live` index."""
    row = conn.execute(
        select(jobs).where(jobs.c.live_key == live_key_of(kind, key), jobs.c.state.in_(sorted(LIVE_STATES)))
    ).first()
    return None if row is None else job_from_row(row)


def count_live(conn: Connection, kind: str) -> int:
    """How many jobs of `kind` wait or run."""
    return sum(
        conn.execute(select(func.count()).select_from(jobs).where(part, jobs.c.kind == kind)).scalar_one()
        for part in LIVE_PARTS
    )


def queue_counts(conn: Connection) -> list[QueueCounts]:
    """Every queue that has live jobs, is paused or has settings, by name."""
    counts: dict[str, list[int]] = {}
    for place, part in zip((0, 1, 2, 3, 1), LIVE_PARTS, strict=True):
        for queue, number in conn.execute(select(jobs.c.queue, func.count()).where(part).group_by(jobs.c.queue)):
            counts.setdefault(queue, [0, 0, 0, 0])[place] += number
    told = {row.name: row for row in conn.execute(_TOLD)}
    listed = []
    for name in sorted(counts.keys() | told.keys()):
        ready, blocked, scheduled, running = counts.get(name, (0, 0, 0, 0))
        found = QueueCounts(name, ready, blocked, scheduled, running, None)
        row = told.get(name)
        if row is not None:
            found = replace(
                found,
                paused_since=instant(row.paused_at),
                fair=bool(row.fair),
                max_pending=row.max_pending,
                overflow=None if row.max_pending is None else row.overflow,
                shed=row.shed,
            )
        listed.append(found)
    return listed
