"""Permits: slots of concurrency keys, with fencing tokens, and the jobs that wait for one.

A permit has no lease of its own: it is taken while the attempt that its row names runs, and that attempt's lease is
its lease. So a heartbeat extends both or neither (S8), and a permit cannot leak: one whose attempt is over is free,
whatever its row says. Its token grows every time the slot is taken and never goes back. Under `queue_on_success` a job
keeps its permit until it is final.

Whoever takes, refuses or releases a permit locks the key's rows first. Without that a job could find the key busy and
lie down to wait just after the holder, releasing it, had looked for somebody to wake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Update, bindparam, null, select, update
from sqlalchemy.engine import Connection

from fencepost.job import FINAL_STATES, BusyPolicy, Claim, Micros, Reason, State
from fencepost.store.dialects import Dialect
from fencepost.store.guard import held_by
from fencepost.store.tables import ONE, jobs, permit_digest_of, permit_line_of, permits, told_at, word
from fencepost.store.waiting import first_waiting, wake

__all__ = [
    "Slots",
    "block_rows",
    "count_held",
    "end_sequences",
    "lock_slots",
    "release_cancelled",
    "release_permits",
    "take",
]

_KEY_ROWS = select(permits).where(permits.c.key_digest == bindparam("digest")).order_by(permits.c.slot)
_LOCKED_KEY_ROWS = _KEY_ROWS.with_for_update()

_HOLDERS = select(jobs.c.id, jobs.c.lease_token, jobs.c.state, jobs.c.permit_policy, jobs.c.finished_at).where(
    jobs.c.id.in_(bindparam("ids", expanding=True))
)

_TAKE = (
    update(permits)
    .where(
        permits.c.key_digest == bindparam("_digest"),
        permits.c.slot == bindparam("_slot"),
        permits.c.token == bindparam("_token"),
    )
    .values(token=permits.c.token + ONE, job_id=bindparam("_job"), lease_token=bindparam("_lease_token"))
)
_NAME_ON_JOB = (
    update(jobs)
    .where(jobs.c.id == bindparam("_id"))
    .values(permit_slot=bindparam("_slot"), permit_token=bindparam("_token", type_=BigInteger))
)
# The count is 1 while the attempt holds the permit; a superseded holder frees nothing.
_RELEASE = (
    update(permits)
    .where(
        permits.c.key_digest == bindparam("_digest"),
        permits.c.job_id == bindparam("_job"),
        permits.c.lease_token == bindparam("_lease_token"),
    )
    .values(job_id=null(), lease_token=null())
)

_RELEASE_JOB = (
    update(permits)
    .where(permits.c.key_digest == bindparam("_digest"), permits.c.job_id == bindparam("_job"))
    .values(job_id=null(), lease_token=null())
)

_SKIP_WAITING = (
    update(jobs)
    .where(
        jobs.c.line == bindparam("_line", type_=BigInteger),
        jobs.c.state == word(State.BLOCKED),
        jobs.c.permit_policy == word(BusyPolicy.QUEUE_ON_SUCCESS),
    )
    .values(
        state=word(State.SKIPPED),
        reason=word(Reason.DEPENDENCY_FAILED),
        line=null(),
        rank=null(),
        wake_at=told_at(bindparam("_now", type_=BigInteger)),
        live_key=null(),
        finished_at=bindparam("_now", type_=BigInteger),
    )
)


def block_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Turn a claim into waiting at a gate: the attempt is not spent, the token stays. Guarded by the lease."""
    return (
        update(jobs)
        .where(match, held_by(value("_lease_owner"), value("_lease_token")))
        .values(
            state=word(State.BLOCKED),
            line=value("_line"),
            rank=value("_rank"),
            attempts=jobs.c.attempts - ONE,
            started_at=null(),
            lease_owner=null(),
            lease_until=null(),
        )
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """A key's slots, whose rows are locked.

    Attributes:
        free: rows that may be taken.
        held: the rows of jobs that hold one, by job id.
        failed: the rows that name a job which held one in sequence and ended otherwise than by a settlement of its
            attempt: it was cancelled while it waited for its retry, say.
    """

    free: Sequence[Any]
    held: Mapping[str, Any]
    failed: Sequence[Any]


def lock_slots(dialect: Dialect, conn: Connection, key: str, slots: int, now: Micros) -> Slots:
    """Lock the rows of a key until the transaction ends, and say which are free.

    Args:
        dialect: the database's.
        conn: in a transaction that can write.
        key: the concurrency key.
        slots: how many permits it has.
        now: the database's clock, from which the tokens of a new key start, so that they exceed those of rows that
            were pruned.
    """
    digest = permit_digest_of(key)
    found = {row.slot: row for row in conn.execute(_LOCKED_KEY_ROWS, {"digest": digest})}
    missing = [slot for slot in range(slots) if slot not in found]
    if missing:
        for slot in missing:
            values = {"key_digest": digest, "slot": slot, "permit_key": key, "token": now}
            conn.execute(dialect.ignoring_conflicts(permits).values(values))
        found = {row.slot: row for row in conn.execute(_LOCKED_KEY_ROWS, {"digest": digest})}
    holders = _holders(conn, found.values())
    held, free, failed = {}, [], []
    for slot, row in sorted(found.items()):
        holder = None if row.job_id is None else holders.get(str(row.job_id))
        if _still_holds(holder, row.lease_token):
            held[str(row.job_id)] = row
            continue
        if _failed_in_sequence(holder):
            failed.append(row)
        if slot < slots:
            free.append(row)
    # Slots beyond the present number may still be held: they count until their attempts end.
    return Slots(free[: max(0, slots - len(held))], held, failed)


def count_held(conn: Connection, key: str) -> int:
    """How many of a key's permits are held, without locking them: for people, nothing is decided by it."""
    rows = conn.execute(_KEY_ROWS, {"digest": permit_digest_of(key)}).fetchall()
    holders = _holders(conn, rows)
    return sum(_still_holds(holders.get(str(row.job_id)), row.lease_token) for row in rows if row.job_id is not None)


def _holders(conn: Connection, rows: Iterable[Any]) -> dict[str, Any]:
    """The jobs that permits' rows name, by id."""
    named = [str(row.job_id) for row in rows if row.job_id is not None]
    return {str(row.id): row for row in conn.execute(_HOLDERS, {"ids": named})} if named else {}


def _still_holds(job: Any, token: int) -> bool:
    if job is None or job.finished_at is not None:
        return False
    if job.permit_policy == BusyPolicy.QUEUE_ON_SUCCESS:
        return True
    return bool(job.state == State.RUNNING and job.lease_token == token)


def _failed_in_sequence(job: Any) -> bool:
    return (
        job is not None
        and job.finished_at is not None
        and job.permit_policy == BusyPolicy.QUEUE_ON_SUCCESS
        and job.state != State.SUCCEEDED
    )


def take(conn: Connection, claim: Claim, row: Any) -> int:
    """Give a free slot to an attempt. Returns its fencing token."""
    lease = claim.lease
    values = {"_digest": row.key_digest, "_slot": row.slot, "_token": row.token}
    taken = conn.execute(_TAKE, values | {"_job": lease.job_id, "_lease_token": lease.token}).rowcount
    assert taken == 1, "the key's rows are locked"
    token = int(row.token) + 1
    conn.execute(_NAME_ON_JOB, {"_id": lease.job_id, "_slot": row.slot, "_token": token})
    return token


def release_permits(dialect: Dialect, conn: Connection, ended: Iterable[tuple[Claim, State]], now: Micros) -> None:
    """Free the permits of attempts that were settled in this transaction, and wake who waits for them.

    Args:
        dialect: the database's.
        conn: the transaction of the settlement.
        ended: the attempts, each with the state that its job has now.
        now: the database's clock.
    """
    holders = [(permit_digest_of(claim.concurrency.key), claim, state) for claim, state in ended if claim.concurrency]
    for digest, claim, state in sorted(holders, key=lambda entry: (entry[0], entry[1].id)):
        assert claim.concurrency is not None
        in_sequence = claim.concurrency.busy is BusyPolicy.QUEUE_ON_SUCCESS
        if in_sequence and state not in FINAL_STATES:
            continue
        conn.execute(_LOCKED_KEY_ROWS, {"digest": digest}).fetchall()
        values: dict[str, Any] = {"_digest": digest, "_job": claim.lease.job_id}
        if in_sequence:
            # The permit may be that of an attempt before: this one was retired before it could take it again.
            released = conn.execute(_RELEASE_JOB, values).rowcount
        else:
            released = conn.execute(_RELEASE, values | {"_lease_token": claim.lease.token}).rowcount
        if not released:
            continue
        if in_sequence and state is not State.SUCCEEDED:
            _skip_waiting(conn, digest, now)
        wake(dialect, conn, first_waiting(conn, permit_line_of(digest), 1))


def release_cancelled(dialect: Dialect, conn: Connection, job_id: str, key: str, now: Micros) -> None:
    """Free the permit that a job kept while it waited for its retry, and was cancelled in this transaction.

    Those who wait for its success are skipped, as if it had failed while it ran.
    """
    digest = permit_digest_of(key)
    conn.execute(_LOCKED_KEY_ROWS, {"digest": digest}).fetchall()
    if conn.execute(_RELEASE_JOB, {"_digest": digest, "_job": job_id}).rowcount:
        _skip_waiting(conn, digest, now)
        wake(dialect, conn, first_waiting(conn, permit_line_of(digest), 1))


def end_sequences(conn: Connection, slots: Slots, now: Micros) -> None:
    """Skip those who waited for the success of a job that ended without it and without a word to them."""
    for row in slots.failed:
        if conn.execute(_RELEASE_JOB, {"_digest": row.key_digest, "_job": str(row.job_id)}).rowcount:
            _skip_waiting(conn, row.key_digest, now)


def _skip_waiting(conn: Connection, digest: str, now: Micros) -> None:
    """End those who wait for the success of a job that failed."""
    conn.execute(_SKIP_WAITING, {"_line": permit_line_of(digest), "_now": now})
