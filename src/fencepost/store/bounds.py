"""Bounded queues: how many jobs may wait in a queue, decided under its row.

What counts as waiting is what stands in the queue's lines: ready jobs, and those that wait for their tenant's turn.
Jobs that are not due, that run, or that wait for a permit do not count; retries and jobs that become due come back
in whatever the bound says, as do a schedule's occurrences.

The count, the decision and the insert are one transaction that holds the queue's row, so of any number of racing
producers none exceeds the bound. At most `max_pending` + 1 entries of an index are read for the count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Update, bindparam, func, null, select, update
from sqlalchemy.engine import Connection

from fencepost.errors import QueueFull
from fencepost.job import EnqueueResult, Micros, NewJob, Reason, State
from fencepost.planning.fairness import DEFAULT_WEIGHT
from fencepost.planning.overflow import longest_first, room_for
from fencepost.planning.rank import TIER_BOUNDS
from fencepost.queue import Overflow, QueueSettings
from fencepost.store.claim import lines_of
from fencepost.store.database import Database
from fencepost.store.enqueue import insert_jobs
from fencepost.store.queues import lock_queue, settings_of, weights_of
from fencepost.store.tables import jobs, live_key_of, queues, told_at, word
from fencepost.store.turns import TurnLine, waiting_lines

__all__ = ["Placed", "make_room", "place", "report_shed"]

logger = logging.getLogger("fencepost.queues")

_SHEDDING = (Overflow.SHED_LOWEST, Overflow.SHED_OLDEST)
_STORED = select(jobs.c.id).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_HELD = select(jobs.c.live_key).where(jobs.c.live_key.in_(bindparam("keys", expanding=True)))
_ENTRIES = (
    select(jobs.c.line)
    .where(jobs.c.line == bindparam("line"), jobs.c.rank.is_not(None))
    .limit(bindparam("most", type_=BigInteger))
    .subquery("entries")
)
_COUNT = select(func.count()).select_from(_ENTRIES)
_LAST = (
    select(jobs.c.id, jobs.c.rank)
    .where(jobs.c.line == bindparam("line"), jobs.c.rank.is_not(None))
    .order_by(jobs.c.rank.desc())
    .limit(bindparam("most", type_=BigInteger))
)
_FIRST = (
    select(jobs.c.id, jobs.c.rank, jobs.c.created_at)
    .where(
        jobs.c.line == bindparam("line"),
        jobs.c.rank >= bindparam("low", type_=BigInteger),
        jobs.c.rank < bindparam("high", type_=BigInteger),
    )
    .order_by(jobs.c.rank)
    .limit(bindparam("most", type_=BigInteger))
)


class Placed(NamedTuple):
    """What became of an enqueue into a bounded queue.

    Attributes:
        results: for the jobs that were stored, the first ones of those that were given.
        shed: how many waiting jobs were skipped for them.
        is_full: whether the rest may ask again, since the queue's overflow is to wait.
        wait: for how long, in microseconds.
    """

    results: list[EnqueueResult]
    shed: int
    is_full: bool
    wait: Micros
    max_pending: int = 0


class _Pending(NamedTuple):
    lines: dict[int, int]
    """How many wait in each line of the queue."""
    turns: dict[int, TurnLine]
    """Those of them in which jobs wait for their tenant's turn."""

    @property
    def total(self) -> int:
        return sum(self.lines.values())


def place(
    database: Database,
    conn: Connection,
    queue: str,
    new: Sequence[NewJob],
    declared: QueueSettings | None,
    *,
    is_shared: bool = False,
) -> Placed:
    """Store jobs of a bounded queue, and keep its bound. Safe to repeat: what is stored already needs no room.

    Args:
        database: where.
        conn: in a transaction that can write.
        queue: the queue of all of `new`.
        new: the jobs.
        declared: the queue's settings, should the database have none yet.
        is_shared: the transaction is the application's: nothing waits in it.

    Raises:
        QueueFull: nothing was stored.
    """
    row = lock_queue(database, conn, queue)
    now = database.now(conn) if is_shared else database.now_and_pin(conn)
    settings = _effective(row, declared)
    fair = database.known_queues.fair | ({queue} if settings.fair else frozenset())

    def stored(accepted: Sequence[NewJob]) -> list[EnqueueResult]:
        dialect = database.dialect
        return insert_jobs(dialect, conn, accepted, now, shared_transaction=is_shared, fair=fair) if accepted else []

    if settings.max_pending is None:
        return Placed(stored(new), 0, False, 0)
    if settings.overflow in _SHEDDING:
        results = stored(new)
        return Placed(results, _shed(database, conn, queue, settings, 0, now), False, 0)
    needing = _needing_room(conn, new, now)
    room = room_for(
        settings, _count(database, conn, queue, settings.max_pending).total, len(needing), may_wait=not is_shared
    )
    accepted = _prefix(new, needing, room)
    if len(accepted) < len(new) and (is_shared or settings.overflow is Overflow.REJECT):
        raise QueueFull(queue, settings.max_pending, refused=len(new))
    return Placed(stored(accepted), 0, len(accepted) < len(new), settings.wait, settings.max_pending)


def make_room(
    database: Database, conn: Connection, queue: str, new: Sequence[NewJob], declared: QueueSettings | None
) -> int:
    """Look at the bound, in a transaction of our own, for jobs that the application is about to store in its own.

    Returns:
        How many waiting jobs were skipped for them.

    Raises:
        QueueFull: there is no room.
    """
    row = lock_queue(database, conn, queue)
    now = database.now_and_pin(conn)
    settings = _effective(row, declared)
    if settings.max_pending is None:
        return 0
    asked = len(_needing_room(conn, new, now))
    if settings.overflow in _SHEDDING:
        return _shed(database, conn, queue, settings, asked, now)
    pending = _count(database, conn, queue, settings.max_pending).total
    if room_for(settings, pending, asked, may_wait=False) < asked:
        raise QueueFull(queue, settings.max_pending, refused=len(new))
    return 0


def report_shed(queue: str, placed: Placed) -> None:
    """Say in the log that jobs were skipped."""
    if placed.shed:
        logger.warning(
            "The queue %r was full: %d waiting jobs were skipped (reason: shed). Find them with "
            "`fencepost jobs list --queue %s --state skipped`.",
            queue,
            placed.shed,
            queue,
        )


def _effective(row: Any, declared: QueueSettings | None) -> QueueSettings:
    return declared if row.updated_at is None and declared is not None else settings_of(row)


def _needing_room(conn: Connection, new: Sequence[NewJob], now: Micros) -> set[str]:
    """The ids of those that would wait in the queue beside what is there: not what an earlier try stored, nor what a
    live job's identity stands for, nor what is not due."""
    due = [
        job
        for job in new
        if not (job.options.delay or 0) > 0 and (job.options.run_at is None or job.options.run_at <= now)
    ]
    if not due:
        return set()
    stored = {str(row.id) for row in conn.execute(_STORED, {"ids": [job.id for job in due]})}
    keys = {job.id: live_key_of(job.kind, job.options.key) for job in due if job.options.key is not None}
    held = {row.live_key for row in conn.execute(_HELD, {"keys": sorted(set(keys.values()))})} if keys else set()
    needing: set[str] = set()
    for job in due:
        key = keys.get(job.id)
        if job.id in stored or (key is not None and key in held):
            continue
        if key is not None:
            held.add(key)  # a second one of this call names the first
        needing.add(job.id)
    return needing


def _prefix(new: Sequence[NewJob], needing: set[str], room: int) -> Sequence[NewJob]:
    """The jobs up to the first for which there is no room."""
    for place, job in enumerate(new):
        if job.id in needing:
            if room == 0:
                return new[:place]
            room -= 1
    return new


def _count(database: Database, conn: Connection, queue: str, bound: int) -> _Pending:
    """How many wait in each line of a queue, counted no further than one beyond the bound."""
    ready = [line.number for line in lines_of(database, conn, queue)]
    turns = {line.number: line for line in waiting_lines(database, conn).get(queue, ())}
    pending = _Pending({}, turns)
    left = bound + 1
    for line in (*ready, *turns):
        if left <= 0:
            break
        pending.lines[line] = int(conn.execute(_COUNT, {"line": line, "most": left}).scalar_one())
        left -= pending.lines[line]
    return pending


def _shed(database: Database, conn: Connection, queue: str, settings: QueueSettings, coming: int, now: Micros) -> int:
    """Skip waiting jobs until the bound holds, `coming` more included. Returns how many."""
    assert settings.max_pending is not None
    pending = _count(database, conn, queue, settings.max_pending + _MOST_SHED)
    excess = min(pending.total, pending.total + coming - settings.max_pending)
    if excess <= 0:
        return 0
    is_lowest = settings.overflow is Overflow.SHED_LOWEST
    chosen = _lowest(conn, queue, pending, excess) if is_lowest else _oldest(conn, pending, excess)
    victims = [(str(row.id), row.rank, now) for row in chosen]
    gone = sum(database.dialect.update_rows(conn, _shed_rows, _SHED_NAMES, sorted(victims)))
    conn.execute(update(queues).where(queues.c.name == queue).values(shed=queues.c.shed + gone))
    return gone


_MOST_SHED = 1000  # a batch of an enqueue, all of which may stand beyond the bound

_SHED_NAMES = ("_id", "_rank", "_finished_at")


def _shed_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Guarded by the rank, which waiting jobs alone have: what was claimed or cancelled meanwhile is left alone."""
    return (
        update(jobs)
        .where(match, jobs.c.rank == value("_rank"))
        .values(
            state=word(State.SKIPPED),
            reason=word(Reason.SHED),
            line=null(),
            rank=null(),
            wake_at=told_at(value("_finished_at")),
            live_key=null(),
            finished_at=value("_finished_at"),
        )
    )


def _lowest(conn: Connection, queue: str, pending: _Pending, excess: int) -> list[Any]:
    """Those that would be started last. In a fair queue the tenant with most waiting for its weight loses first, its
    newest first; those that have had their turn already go last."""
    weights = weights_of(conn, queue) if pending.turns else {}
    waiting = {
        number: (pending.lines.get(number, 0), weights.get(line.tenant, DEFAULT_WEIGHT))
        for number, line in pending.turns.items()
    }
    victims: list[Any] = []
    for line, lost in longest_first(waiting, excess).items():
        victims += conn.execute(_LAST, {"line": line, "most": lost})
    left = excess - len(victims)
    if left > 0:
        ready: list[Any] = []
        for line in pending.lines.keys() - pending.turns.keys():
            ready += conn.execute(_LAST, {"line": line, "most": left})
        victims += sorted(ready, key=lambda row: (row.rank, str(row.id)))[-left:]
    return victims


def _oldest(conn: Connection, pending: _Pending, excess: int) -> list[Any]:
    """Those that came first, whatever their priority: the heads of each tier of each line, by creation."""
    heads: list[Any] = []
    for line in pending.lines:
        for low, high in pairwise(TIER_BOUNDS):
            heads += conn.execute(_FIRST, {"line": line, "low": low, "high": high, "most": excess})
    return sorted(heads, key=lambda row: (row.created_at, str(row.id)))[:excess]
