"""Limits that are declared at run time, and the pass that wakes those who wait for tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, bindparam, delete, func, null, or_, select, update
from sqlalchemy.engine import Connection

from fencepost.job import Micros, Rate, State
from fencepost.planning.gcra import Bucket
from fencepost.store.database import Database
from fencepost.store.demands import Demand, Gate, digest_of, stuck_line_of
from fencepost.store.permits import count_held
from fencepost.store.rooms import BUCKET, RATE, SEMAPHORE, SLOTS, BucketRoom, holders_of, lock_rooms
from fencepost.store.tables import holdings, jobs, limits, permit_line_of, word

__all__ = [
    "Limit",
    "count_free",
    "declare_bucket",
    "declare_capacity",
    "delete_limit",
    "list_limits",
    "next_due",
    "prune_idle",
    "wake_due",
]

# Served by the `due` index: it holds the buckets at which jobs wait.
_NEXT_DUE = select(func.min(limits.c.due_at)).where(limits.c.due_at >= 0)
_DUE = (
    select(limits)
    .where(limits.c.due_at <= bindparam("now", type_=BigInteger))
    .order_by(limits.c.due_at)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
# Served by the `ready` index: those who wait at a gate stand in lines of its own.
_WAITING = (
    select(func.count())
    .select_from(jobs)
    .where(jobs.c.line.in_([bindparam("line", type_=BigInteger), bindparam("stuck", type_=BigInteger)]))
)
# A bucket that is full again says nothing that a new row would not say.
_IDLE_BUCKETS = (
    select(limits.c.digest)
    .where(
        limits.c.kind == RATE,
        limits.c.declared_at.is_(None),
        limits.c.due_at.is_(None),
        limits.c.tat < bindparam("nanos", type_=BigInteger),
    )
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
_LEFT_HOLDINGS = (
    select(holdings.c.digest, holdings.c.job_id, holdings.c.lease_token)
    .outerjoin(jobs, jobs.c.id == holdings.c.job_id)
    .where(or_(jobs.c.id.is_(None), jobs.c.lease_token != holdings.c.lease_token, jobs.c.state != word(State.RUNNING)))
    .limit(bindparam("batch"))
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A declared limit as it stood when it was read.

    Attributes:
        kind: "bucket", "semaphore", "rate" (what a rate key is held to) or "concurrency" (how many slots a key has).
        name: its name, or the key.
        rate: tokens a second, of a bucket or rate.
        burst: how many tokens it holds.
        capacity: of a semaphore; the slots of a concurrency key.
        free: tokens that are there, shares or slots that are free, at this moment.
        waiting: how many jobs wait for it.
    """

    kind: str
    name: str
    rate: float | None
    burst: int | None
    capacity: int | None
    free: int
    waiting: int


def declare_bucket(database: Database, conn: Connection, gate: Gate, name: str, per_second: float, burst: int) -> int:
    """Create a bucket or change it, and wake who may go on. Tokens that were spent stay spent.

    Returns:
        How many were woken.
    """
    now, digest = database.now(conn), digest_of(gate, name)
    kind = RATE if gate is Gate.RATE else BUCKET
    numbers = {"rate": per_second, "burst": burst}
    fresh = {"digest": digest, "kind": kind, "name": name, "declared_at": now, "tat": 0}
    conn.execute(database.dialect.ignoring_conflicts(limits).values(fresh | numbers))
    demand = Demand(digest, gate, name, rate=Rate(name, per_second, burst))
    (room,) = lock_rooms(database.dialect, conn, [demand], now).values()
    if isinstance(room, BucketRoom):
        room.change(per_second, burst)
        _change(conn, digest, declared_at=now)
    else:  # it was a semaphore
        _change(conn, digest, declared_at=now, kind=kind, capacity=None, tat=0, **numbers)
        (room,) = lock_rooms(database.dialect, conn, [demand], now).values()
    return room.wake_stuck() + room.wake()


def declare_capacity(database: Database, conn: Connection, gate: Gate, name: str, capacity: int) -> int:
    """Create a semaphore, or say how many slots a concurrency key has whatever its jobs say, and wake who may go on.

    Returns:
        How many were woken.
    """
    now, digest = database.now(conn), digest_of(gate, name)
    kind = SLOTS if gate is Gate.CONCURRENCY else SEMAPHORE
    values = {"kind": kind, "declared_at": now, "capacity": capacity, "rate": None, "burst": None, "tat": None}
    fresh = {"digest": digest, "name": name}
    conn.execute(database.dialect.ignoring_conflicts(limits).values(fresh | values))
    demand = Demand(digest, gate, name, slots=capacity)
    lock_rooms(database.dialect, conn, [demand], now)
    _change(conn, digest, due_at=None, **values)
    (room,) = lock_rooms(database.dialect, conn, [demand], now).values()
    return room.wake_stuck() + room.wake()


def delete_limit(conn: Connection, gate: Gate, name: str) -> bool:
    """Remove a declared limit. Returns whether there was one.

    What its jobs name themselves (a rate, a number of slots) counts again; who needs a resource waits until it is back.
    """
    digest = digest_of(gate, name)
    declared = (limits.c.digest == digest, limits.c.declared_at.is_not(None))
    if gate is Gate.RATE:  # the tokens that were spent stay spent
        return conn.execute(update(limits).where(*declared).values(declared_at=null())).rowcount == 1
    return conn.execute(delete(limits).where(*declared)).rowcount == 1


def _change(conn: Connection, digest: str, **values: Any) -> None:
    conn.execute(update(limits).where(limits.c.digest == digest).values(values))


def list_limits(database: Database, conn: Connection) -> list[Limit]:
    """What is declared, by kind and name."""
    now = database.now(conn)
    rows = conn.execute(
        select(limits).where(limits.c.declared_at.is_not(None)).order_by(limits.c.kind, limits.c.name)
    ).fetchall()
    return [_limit(conn, row, now) for row in rows]


def count_free(conn: Connection, demand: Demand, row: Any, now: Micros) -> int:
    """How much is free at a gate, without locking it: for people, nothing is decided by it.

    Args:
        conn: any connection.
        demand: of somebody who asks there.
        row: of the gate, or None.
        now: the database's clock.
    """
    if demand.gate is Gate.CONCURRENCY:
        slots: int = demand.slots if row is None else row.capacity
        return max(0, slots - count_held(conn, demand.name))
    match None if row is None else row.kind:
        case "bucket" | "rate":
            return max(0, Bucket(row.rate, row.burst, row.tat).tokens(now))
        case "semaphore":
            capacity: int = row.capacity
            return max(0, capacity - sum(held.amount for held in holders_of(conn, demand.digest)))
        case _:
            return 0


def _limit(conn: Connection, row: Any, now: Micros) -> Limit:
    lines = {"line": permit_line_of(row.digest), "stuck": stuck_line_of(row.digest)}
    waiting = conn.execute(_WAITING, lines).scalar_one()
    gate = {SLOTS: Gate.CONCURRENCY, RATE: Gate.RATE}.get(row.kind, Gate.RESOURCE)
    free = count_free(conn, Demand(row.digest, gate, row.name), row, now)
    kind = Gate.CONCURRENCY.value if row.kind == SLOTS else row.kind
    return Limit(kind, row.name, row.rate, row.burst, row.capacity, free, waiting)


def next_due(conn: Connection) -> Micros | None:
    """The earliest instant at which `wake_due` will have something to do."""
    found = conn.execute(_NEXT_DUE).scalar()
    return None if found is None else int(found)


def wake_due(database: Database, conn: Connection, *, batch: int) -> tuple[int, Micros | None, Micros]:
    """Wake those who wait at buckets whose tokens have come, best-ranked first, as many as there are tokens.

    Returns:
        How many were woken, the next instant at which somebody is to be, or None, and the database's clock.
    """
    now = database.now_and_pin(conn)
    due = conn.execute(_DUE, {"now": now, "batch": batch}).fetchall()
    woken = sum(BucketRoom(database.dialect, conn, row, now).wake() for row in due)
    return woken, next_due(conn), now


def prune_idle(database: Database, conn: Connection, *, batch: int) -> int:
    """Delete rows that say nothing any more: of rate keys that nobody has used for a while, of attempts that are over.

    Returns:
        How many were deleted.
    """
    now = database.now_and_pin(conn)
    idle = [row.digest for row in conn.execute(_IDLE_BUCKETS, {"nanos": now * 1000, "batch": batch})]
    if idle:
        conn.execute(delete(limits).where(limits.c.digest.in_(idle)))
    left = conn.execute(_LEFT_HOLDINGS, {"batch": batch}).fetchall()
    for row in left:
        conn.execute(delete(holdings).where(*_same(row)))
    return len(idle) + len(left)


def _same(row: Any) -> tuple[ColumnElement[bool], ...]:
    return (
        holdings.c.digest == row.digest,
        holdings.c.job_id == row.job_id,
        holdings.c.lease_token == row.lease_token,
    )
