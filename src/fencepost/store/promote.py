"""Promotion: what waits for an instant moves when the instant comes, as the database's clock tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Update, bindparam, case, func, null, select, update
from sqlalchemy.engine import Connection

from fencepost.job import FINAL_STATES, Micros, Priority, Reason, State
from fencepost.planning.fairness import takes_turns
from fencepost.planning.outcome import waiting
from fencepost.planning.rank import urgent_rank
from fencepost.store.database import Database
from fencepost.store.rows import UNREADABLE, fixed_start, unreadable_text
from fencepost.store.tables import jobs, line_of_row, told_at, turn_line_of, words

__all__ = ["Due", "is_due", "next_wake", "promote_due"]

_DUE_COLUMNS = (
    *("id", "queue", "kind", "labels", "tenant", "state", "priority", "wake_at", "deadline", "options"),
    *("permit_key", "limits", "waits_for"),
)

# Served by the `wake` index. Neither arguments nor results are read: memory does not grow with the payloads.
_DUE = (
    select(*(jobs.c[name] for name in _DUE_COLUMNS))
    .where(jobs.c.wake_at <= bindparam("now"))
    .order_by(jobs.c.wake_at)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
# Above a constant, so that it is one probe of the index: IS NOT NULL makes MariaDB read all that is scheduled.
_NEXT_WAKE = select(func.min(jobs.c.wake_at)).where(jobs.c.wake_at >= 0)

_NAMES = (
    "_id",
    "_started_at",
    "_state",
    "_reason",
    "_line",
    "_rank",
    "_wake_at",
    "_finished_at",
    "_last_error",
)


def _promote_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Guarded by the instant that was planned (under a borrowed name): a row that moved meanwhile is left alone."""
    is_final = value("_finished_at").is_not(None)
    return (
        update(jobs)
        .where(
            match,
            jobs.c.wake_at == value("_started_at"),
            jobs.c.state.in_(words([State.SCHEDULED, State.READY, State.BLOCKED])),
        )
        .values(
            state=value("_state"),
            reason=func.coalesce(value("_reason"), jobs.c.reason),
            line=value("_line"),
            rank=value("_rank"),
            wake_at=case((is_final, told_at(value("_finished_at"))), else_=value("_wake_at")),
            finished_at=value("_finished_at"),
            last_error=func.coalesce(value("_last_error"), jobs.c.last_error),
            live_key=case((is_final, null()), else_=jobs.c.live_key),
        )
    )


class Due(NamedTuple):
    """What a pass found due.

    Attributes:
        moved: how many moved.
        waiting: the ids of jobs that wait for others, to be looked at: see `fencepost.store.dependencies.attach`.
        ended: the ids of jobs that have ended, which others wait for: see `fencepost.store.dependencies.pass_on`.
    """

    moved: int
    waiting: list[str]
    ended: list[str]


def promote_due(database: Database, conn: Connection, *, batch: int) -> Due:
    """Make due jobs ready, and move ready ones whose latest start is near to the urgent tier.

    What is due because of dependencies is only named: it takes other locks, in transactions of its own.

    Returns:
        What was due; more may be when it is as much as `batch`.
    """
    now = database.now_and_pin(conn)
    due = conn.execute(_DUE, {"now": now, "batch": batch}).fetchall()
    if not due:
        return Due(0, [], [])
    attaching, ended, moves = [], [], []
    for row in due:
        if row.state in FINAL_STATES:
            ended.append(str(row.id))
        elif row.waits_for and row.state == State.BLOCKED:
            attaching.append(str(row.id))
        else:
            moves.append(_move(row, now, database.known_queues.fair))
    moved = sum(database.dialect.update_rows(conn, _promote_rows, _NAMES, sorted(moves))) if moves else 0
    return Due(moved, attaching, ended)


def is_due(database: Database, conn: Connection) -> bool:
    """Whether `promote_due` has something to do."""
    wake_at = next_wake(conn)
    return wake_at is not None and wake_at <= database.now(conn)


def next_wake(conn: Connection) -> Micros | None:
    """The earliest instant at which `promote_due` will have something to do."""
    found = conn.execute(_NEXT_WAKE).scalar()
    return None if found is None else int(found)


def _move(row: Any, now: Micros, fair: Collection[str]) -> tuple[Any, ...]:
    """The values of `_NAMES` for one due row."""
    job_id = str(row.id)
    line = line_of_row(row)
    moved: tuple[Any, ...]
    try:
        rare = {} if row.options is None else json.loads(row.options)
        hint = int(rare.get("duration_hint", 0))
        start = fixed_start(rare)
        # Only a job with a deadline is ready, or waits for its turn, and has a wake_at.
        if row.state in (State.READY, State.BLOCKED):
            moved = (State.READY.value, None, line, urgent_rank(row.deadline, hint), None, None, None)
        else:
            start_at = None if start is None or start.at < row.wake_at else start.at  # or it waits for a retry
            state, rank, wake_at = waiting(
                Priority(row.priority),
                row.wake_at,
                now,
                deadline=row.deadline,
                duration_hint=hint,
                start_at=start_at,
            )
            is_turn = row.queue in fair and takes_turns(Priority(row.priority), start_at)
            if state is State.READY and is_turn:
                state, line = State.BLOCKED, turn_line_of(row.queue, row.kind, row.tenant)
            moved = (state.value, None, line, rank, wake_at, None, None)
    except UNREADABLE as error:
        text = unreadable_text(error)
        moved = (State.FAILED.value, Reason.UNDECODABLE.value, None, None, None, now, text)
    return (job_id, row.wake_at, *moved)
