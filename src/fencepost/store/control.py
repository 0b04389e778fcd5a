"""What people do to jobs and queues: cancel, retry, pause, resume. Each is a conditional write."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import and_, bindparam, case, exc, func, null, select, update
from sqlalchemy.engine import Connection

from fencepost.errors import InvalidTransition, JobNotFound, StoreUnavailable
from fencepost.job import FINAL_STATES, BusyPolicy, EnqueueResult, Micros, Priority, Reason, State
from fencepost.planning.outcome import waiting
from fencepost.planning.rank import rank
from fencepost.store.database import Database
from fencepost.store.dependencies import revive_successors
from fencepost.store.permits import release_cancelled
from fencepost.store.rows import UNREADABLE, fixed_start
from fencepost.store.tables import jobs, line_of_row, live_key_of, queues, told_at

__all__ = ["cancel_job", "paused_queues", "retry_job", "set_paused"]

_MOST_ROUNDS = 20
_STATE = select(jobs.c.state).where(jobs.c.id == bindparam("job"))
_SEQUENCE = select(jobs.c.permit_key).where(
    jobs.c.id == bindparam("job"), jobs.c.permit_policy == BusyPolicy.QUEUE_ON_SUCCESS.value
)
_RETRIABLE = [State.FAILED, State.CANCELLED, State.SKIPPED]


_RETRIED = (
    *("state", "kind", "queue", "labels", "priority", "dedup_key", "permit_key", "limits"),
    *("created_at", "options", "has_successors"),
)


def cancel_job(database: Database, conn: Connection, job_id: str) -> bool:
    """Cancel a job: a waiting one at once, a running one at its worker's next heartbeat.

    Returns:
        Whether the job is cancelled or will be; False: it was final already.

    Raises:
        JobNotFound: no such job.
    """
    now = database.now(conn)
    at_once = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state.in_([State.BLOCKED, State.SCHEDULED, State.READY]))
        .values(
            state=State.CANCELLED.value,
            reason=Reason.CANCELLED.value,
            line=null(),
            rank=null(),
            wake_at=told_at(now),
            live_key=null(),
            cancel_requested_at=now,
            finished_at=now,
        )
    )
    requested = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state == State.RUNNING)
        .values(
            cancel_requested_at=func.coalesce(jobs.c.cancel_requested_at, now),
            # A living worker renews within a third of the lease and hears of it. A dead one's lease ends sooner, and
            # with it what its job holds: two heartbeats from now at the latest.
            lease_until=case(
                (
                    and_(jobs.c.cancel_requested_at.is_(None), jobs.c.lease_until > now),
                    jobs.c.lease_until - (jobs.c.lease_until - now) // 3,
                ),
                else_=jobs.c.lease_until,
            ),
        )
    )
    for _ in range(_MOST_ROUNDS):
        if conn.execute(at_once).rowcount:
            key = conn.execute(_SEQUENCE, {"job": job_id}).scalar()
            if key is not None:
                release_cancelled(database.dialect, conn, job_id, key, now)
            return True
        if conn.execute(requested).rowcount:
            return True
        state = conn.execute(_STATE, {"job": job_id}).scalar()
        if state is None:
            raise JobNotFound(f"No job {job_id}. It may have been pruned.")
        if state in FINAL_STATES:
            return False
        # It was claimed or given back between the two writes; ask again.
    raise StoreUnavailable(f"Job {job_id} changed its state faster than it could be cancelled. Cancel it again.")


def retry_job(database: Database, conn: Connection, job_id: str) -> EnqueueResult:
    """Make a failed, cancelled or skipped job ready again, with a fresh budget of attempts and no deadline.

    A fixed start that lies ahead is awaited as before; one that has passed is not judged any more.

    Those that were skipped because it had not succeeded wait for it again, all the way down, in the same transaction.
    What it waited for itself is not asked again: whoever retries a job wants it to run.

    Where a newer live job holds its identity, that job does the work: the old one stays as it is, and the result
    names the newer one with `created=False`, as an enqueue would.

    Raises:
        JobNotFound: no such job.
        InvalidTransition: it succeeded, or is live.
    """
    now = database.now(conn)
    row = conn.execute(select(*(jobs.c[name] for name in _RETRIED)).where(jobs.c.id == job_id)).first()
    if row is None:
        raise JobNotFound(f"No job {job_id}. It may have been pruned.")
    if row.state not in _RETRIABLE:
        what = "has succeeded" if row.state == State.SUCCEEDED else f"is {row.state}"
        raise InvalidTransition(
            f"Job {job_id} {what}: only failed, cancelled and skipped jobs can be retried. "
            "To run it once more, enqueue it anew."
        )
    try:
        priority = Priority(row.priority)
    except ValueError as error:
        raise InvalidTransition(
            f"Job {job_id} has the priority {row.priority!r}, which this version of fencepost does not know. "
            "Upgrade fencepost to retry it."
        ) from error
    live_key = None if row.dedup_key is None else live_key_of(row.kind, row.dedup_key)
    start_at = _start_of(row.options)
    if start_at is not None and start_at > now:
        run_at = start_at
        state, new_rank, wake_at = waiting(priority, start_at, now, start_at=start_at)
    else:
        run_at = max(now, row.created_at + 1)  # due later than it was made, so the start that has passed is none
        state, new_rank, wake_at = State.READY, rank(priority, now), None
    again = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state == row.state)
        .values(
            state=state.value,
            reason=null(),
            line=None if new_rank is None else line_of_row(row),
            rank=new_rank,
            wake_at=wake_at,
            run_at=run_at,
            waits_for=case((jobs.c.waits_for.is_not(None), 0), else_=null()),
            attempts=0,
            deadline=null(),
            finished_at=null(),
            cancel_requested_at=null(),
            progress=null(),
            progress_note=null(),
            live_key=live_key,
        )
    )
    savepoint = conn.begin_nested()
    try:
        changed = conn.execute(again).rowcount == 1
    except exc.IntegrityError:
        savepoint.rollback()
        holder = conn.execute(select(jobs.c.id).where(jobs.c.live_key == live_key)).scalar()
        if holder is None:
            raise StoreUnavailable(f"The identity of job {job_id} changed hands just now. Retry it again.") from None
        return EnqueueResult(str(holder), created=False)
    savepoint.commit()
    if not changed:
        raise InvalidTransition(f"Job {job_id} changed its state just now. Look at it, then retry it again.")
    if row.has_successors:
        revive_successors(conn, job_id, now)
    return EnqueueResult(job_id, created=True)


def _start_of(options: str | None) -> Micros | None:
    try:
        start = None if options is None else fixed_start(json.loads(options))
    except UNREADABLE:
        return None  # who claims it will say so
    return None if start is None else start.at


def set_paused(database: Database, conn: Connection, queue: str, *, paused: bool) -> None:
    """Pause a queue (its jobs wait; running ones end) or resume it."""
    paused_at = database.now(conn) if paused else None
    conn.execute(database.dialect.upsert(queues, {"name": queue, "paused_at": paused_at}, key="name"))


def paused_queues(conn: Connection) -> dict[str, Any]:
    """The paused queues, each with the instant since when."""
    found = conn.execute(select(queues.c.name, queues.c.paused_at).where(queues.c.paused_at.is_not(None)))
    return {row.name: row.paused_at for row in found}
