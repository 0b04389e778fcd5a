"""Leases after the claim: heartbeat, release, reclaim, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, and_, bindparam, func, literal, select, update
from sqlalchemy.engine import Connection

from fencepost.job import Claim, Lease, Micros
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store.database import Database
from fencepost.store.dialects import Dialect
from fencepost.store.guard import held_by
from fencepost.store.rows import CLAIM_COLUMNS, UNREADABLE, claim_from_row
from fencepost.store.settle import CANCEL_REQUESTED, settle, undecodable
from fencepost.store.tables import jobs

__all__ = ["Heartbeat", "has_expired", "heartbeat", "leases_of", "reclaim_expired", "release", "report_progress"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a heartbeat found.

    Attributes:
        renewed: ids whose lease was extended. An id that was asked for and is not here was lost, or settled.
        cancelled: ids of those whose cancellation somebody has requested.
    """

    renewed: frozenset[str]
    cancelled: frozenset[str]


_RENEW_NAMES = ("_id", "_lease_token", "_lease_owner", "_lease_until")


def _renew_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Served by the primary key. The count is the leases that still hold."""
    return (
        update(jobs)
        .where(match, held_by(value("_lease_owner"), value("_lease_token")))
        .values(lease_until=value("_lease_until"))
    )


# Served by the `lease` index: it holds the running jobs alone, of which there are never more than workers run.
_HELD_BY_OWNER = jobs.c.lease_until.is_not(None) & (jobs.c.lease_owner == bindparam("owner"))
_LEASES_OF = select(jobs.c.id, jobs.c.lease_token).where(_HELD_BY_OWNER)


def leases_of(conn: Connection, owner: str) -> list[Lease]:
    """All leases that `owner` holds, by the database's word."""
    return [Lease(str(row.id), owner, row.lease_token) for row in conn.execute(_LEASES_OF, {"owner": owner})]


def heartbeat(dialect: Dialect, conn: Connection, leases: Sequence[Lease], until: Micros) -> Heartbeat:
    """Extend leases to `until`, in one statement.

    It renews the leases that it is given and no others: a claim whose answer was lost with its connection
    is known to nobody, and must run out although its owner lives on.
    """
    if not leases:
        return Heartbeat(frozenset(), frozenset())
    rows = sorted((lease.job_id, lease.token, lease.owner, until) for lease in leases)
    held = dialect.update_rows(conn, _renew_rows, _RENEW_NAMES, rows)
    renewed = frozenset(row[0] for row, answer in zip(rows, held, strict=True) if answer)
    cancelled = conn.execute(CANCEL_REQUESTED, {"ids": list(renewed)}) if renewed else ()
    return Heartbeat(renewed, frozenset(str(row.id) for row in cancelled))


def _running(criterion: ColumnElement[bool]) -> Select[Any]:
    # Arguments may be large and are not needed to give a job back.
    columns = [literal("").label(name) if name == "arguments" else jobs.c[name] for name in CLAIM_COLUMNS]
    return select(jobs.c.lease_owner, *columns).where(criterion)


_RUNNING_OF = _running(_HELD_BY_OWNER)
_EARLIEST_EXPIRY = select(func.min(jobs.c.lease_until)).where(jobs.c.lease_until.is_not(None))
_EXPIRED = (
    _running(jobs.c.lease_until <= bindparam("now"))
    .order_by(jobs.c.lease_until)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
_EXPIRED_OF = _running(and_(jobs.c.lease_until <= bindparam("now"), jobs.c.id.in_(bindparam("ids", expanding=True))))


def release(
    database: Database,
    conn: Connection,
    owner: str,
    leases: Iterable[Lease] | None = None,
    *,
    is_unbegun: bool = False,
) -> int:
    """Give attempts back unspent: `owner`'s own and only those (J8). They are ready at once.

    Args:
        database: where.
        conn: in a transaction that can write.
        owner: who gives back.
        leases: which; None: all that it holds.
        is_unbegun: none of their handlers has begun, so that fixed starts are still to be kept.
    """
    now = database.now_and_pin(conn)
    wanted = None if leases is None else {(lease.job_id, lease.token) for lease in leases if lease.owner == owner}
    giving = [
        (claim, outcome or Outcome(Verb.RELEASE, is_unbegun=is_unbegun))
        for claim, outcome in _claims(conn.execute(_RUNNING_OF, {"owner": owner}).fetchall(), now)
        if wanted is None or (claim.id, claim.lease.token) in wanted
    ]
    return sum(settle(database.dialect, conn, giving, now))


def has_expired(database: Database, conn: Connection) -> bool:
    """Whether `reclaim_expired` has something to do."""
    earliest = conn.execute(_EARLIEST_EXPIRY).scalar()
    return earliest is not None and earliest <= database.now(conn)


def reclaim_expired(database: Database, conn: Connection, *, batch: int) -> int:
    """Take back leases that have run out (J7): ready again, or failed when the attempts are spent.

    Returns:
        How many were taken back; `batch` or more may be left when it equals `batch`.
    """
    now = database.now_and_pin(conn)
    rows = conn.execute(_EXPIRED, {"now": now, "batch": batch}).fetchall()
    dead = [(claim, outcome or _lease_expired(claim)) for claim, outcome in _claims(rows, now)]
    return sum(settle(database.dialect, conn, dead, now, expired_by=now)) if dead else 0


def reclaim_these(database: Database, conn: Connection, held: Sequence[Lease], now: Micros) -> int:
    """Take back, of these attempts, those whose lease has run out: somebody waits for what they hold."""
    wanted = {(lease.job_id, lease.token) for lease in held}
    rows = conn.execute(_EXPIRED_OF, {"now": now, "ids": [lease.job_id for lease in held]}).fetchall()
    dead = [
        (claim, outcome or _lease_expired(claim))
        for claim, outcome in _claims(rows, now)
        if (claim.id, claim.lease.token) in wanted
    ]
    return sum(settle(database.dialect, conn, dead, now, expired_by=now)) if dead else 0


def _claims(rows: Sequence[Any], now: Micros) -> Iterable[tuple[Claim, Outcome | None]]:
    for owner, *row in rows:
        row[0] = str(row[0])
        try:
            yield claim_from_row(row, owner, now), None
        except UNREADABLE as error:
            yield undecodable(row, owner, now, error)


def _lease_expired(claim: Claim) -> Outcome:
    return Outcome(
        Verb.RECLAIM,
        error=f"The lease of attempt {claim.attempt} ran out: its worker {claim.lease.owner} was killed, froze, or "
        "lost the database.",
    )


_PROGRESS_NAMES = ("_id", "_lease_token", "_lease_owner", "_progress", "_progress_note")


def _progress_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Served by the primary key."""
    return (
        update(jobs)
        .where(match, held_by(value("_lease_owner"), value("_lease_token")))
        .values(progress=value("_progress"), progress_note=value("_progress_note"))
    )


def report_progress(dialect: Dialect, conn: Connection, reports: Sequence[tuple[Lease, float, str | None]]) -> None:
    """Store how far running jobs have come: a fraction from 0 to 1, and a note."""
    rows = sorted(
        (lease.job_id, lease.token, lease.owner, round(fraction * 10_000), note) for lease, fraction, note in reports
    )
    dialect.update_rows(conn, _progress_rows, _PROGRESS_NAMES, rows)
