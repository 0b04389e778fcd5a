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

from sqlalchemy import BigInteger, ColumnElement, Update, bindparam, func, null, select, update
from sqlalchemy.engine import Connection

from fencepost.job import FINAL_STATES, BusyPolicy, Claim, Micros, Reason, State
from fencepost.store.dialects import Dialect
from fencepost.store.guard import held_by
from fencepost.store.tables import ONE, jobs, line_of_row, permit_digest_of, permit_line_of, permits, word

__all__ = ["Slots", "block_rows", "count_free", "lock_slots", "release_permits", "take", "waiting_keys", "wake_waiting"]

_KEY_ROWS = select(permits).where(permits.c.key_digest == bindparam("digest")).order_by(permits.c.slot)
_LOCKED_KEY_ROWS = _KEY_ROWS.with_for_update()

_HOLDERS = select(jobs.c.id, jobs.c.lease_token, jobs.c.state, jobs.c.permit_policy).where(
    jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.finished_at.is_(None)
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

# Served by the `ready` index: those who wait for a key stand in its own line, in rank order.
_FIRST_WAITING = (
    select(jobs.c.id, jobs.c.queue, jobs.c.kind, jobs.c.labels)
    .where(jobs.c.line == bindparam("line"), jobs.c.rank.is_not(None))
    .order_by(jobs.c.rank)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_WAKE = (
    update(jobs)
    .where(jobs.c.id == bindparam("_id"), jobs.c.state == word(State.BLOCKED))
    .values(state=word(State.READY), line=bindparam("_line", type_=BigInteger))
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
        live_key=null(),
        finished_at=bindparam("_now", type_=BigInteger),
    )
)
_LAST_WAITING_LINE = select(func.max(jobs.c.line)).where(jobs.c.line < bindparam("above"))
_WAITING_MEMBER = select(jobs.c.permit_key, jobs.c.permit_slots).where(jobs.c.line == bindparam("line")).limit(1)


def block_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Turn a claim into waiting for a permit: the attempt is not spent, the token stays. Guarded by the lease."""
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
    """

    free: Sequence[Any]
    held: Mapping[str, Any]


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
    named = [str(row.job_id) for row in found.values() if row.job_id is not None]
    holders = {str(row.id): row for row in conn.execute(_HOLDERS, {"ids": named})} if named else {}
    held, free = {}, []
    for slot, row in sorted(found.items()):
        if row.job_id is not None and _still_holds(holders.get(str(row.job_id)), row.lease_token):
            held[str(row.job_id)] = row
        elif slot < slots:
            free.append(row)
    # Slots beyond the present number may still be held: they count until their attempts end.
    return Slots(free[: max(0, slots - len(held))], held)


def count_free(conn: Connection, key: str, slots: int) -> int:
    """How many of a key's permits are free, without locking them: for people, nothing is decided by it."""
    rows = conn.execute(_KEY_ROWS, {"digest": permit_digest_of(key)}).fetchall()
    named = [str(row.job_id) for row in rows if row.job_id is not None]
    holders = {str(row.id): row for row in conn.execute(_HOLDERS, {"ids": named})} if named else {}
    held = sum(_still_holds(holders.get(str(row.job_id)), row.lease_token) for row in rows if row.job_id is not None)
    return max(0, slots - held)


def _still_holds(job: Any, token: int) -> bool:
    if job is None:
        return False
    if job.permit_policy == BusyPolicy.QUEUE_ON_SUCCESS:
        return True
    return bool(job.state == State.RUNNING and job.lease_token == token)


def take(conn: Connection, claim: Claim, row: Any) -> int:
    """Give a free slot to an attempt. Returns its fencing token."""
    lease = claim.lease
    values = {"_digest": row.key_digest, "_slot": row.slot, "_token": row.token}
    taken = conn.execute(_TAKE, values | {"_job": lease.job_id, "_lease_token": lease.token}).rowcount
    assert taken == 1, "the key's rows are locked"
    token = int(row.token) + 1
    conn.execute(_NAME_ON_JOB, {"_id": lease.job_id, "_slot": row.slot, "_token": token})
    return token


def release_permits(conn: Connection, ended: Iterable[tuple[Claim, State]], now: Micros) -> None:
    """Free the permits of attempts that were settled in this transaction, and wake who waits for them.

    Args:
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
        values = {"_digest": digest, "_job": claim.lease.job_id, "_lease_token": claim.lease.token}
        if conn.execute(_RELEASE, values).rowcount != 1:
            continue
        if in_sequence and state is not State.SUCCEEDED:
            conn.execute(_SKIP_WAITING, {"_line": permit_line_of(digest), "_now": now})
        wake_waiting(conn, digest, 1)


def wake_waiting(conn: Connection, digest: str, most: int) -> int:
    """Make the best-ranked of the jobs that wait for a key ready. Returns how many."""
    waiting = conn.execute(_FIRST_WAITING, {"line": permit_line_of(digest), "most": most}).fetchall()
    return sum(conn.execute(_WAKE, {"_id": str(row.id), "_line": line_of_row(row)}).rowcount for row in waiting)


def waiting_keys(conn: Connection) -> list[tuple[str, int]]:
    """The keys for which jobs wait, each with its number of slots: a loose scan, a step a key."""
    keys: list[tuple[str, int]] = []
    above = 0
    while True:
        line = conn.execute(_LAST_WAITING_LINE, {"above": above}).scalar()
        if line is None:
            return keys
        above = line
        member = conn.execute(_WAITING_MEMBER, {"line": line}).first()
        if member is not None and member.permit_key is not None:
            keys.append((member.permit_key, member.permit_slots))
