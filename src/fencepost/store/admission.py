"""Admission: a claimed job with a concurrency key starts with a permit, or does not start (S6).

It happens in the transaction of the claim, so there is no instant at which an attempt runs without its permit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from fencepost.job import BusyPolicy, Claim, Lease, Micros, Reason
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import leases
from fencepost.store.database import Database
from fencepost.store.permits import block_rows, lock_slots, take, waiting_keys, wake_waiting
from fencepost.store.settle import settle
from fencepost.store.tables import permit_digest_of, permit_line_of

__all__ = ["admit", "wake_freed"]

_BLOCK_NAMES = ("_id", "_lease_token", "_lease_owner", "_line", "_rank")


def admit(database: Database, conn: Connection, claims: Sequence[tuple[int, Claim]], now: Micros) -> dict[str, int]:
    """Give permits to claimed jobs that need one, best rank first, and take the claims back of those that get none.

    Args:
        database: where.
        conn: the claim's transaction.
        claims: each with the rank that it had.
        now: the database's clock.

    Returns:
        The fencing tokens of those that may start, by job id.
    """
    by_key: dict[str, list[tuple[int, Claim]]] = defaultdict(list)
    for rank, claim in claims:
        assert claim.concurrency is not None, "only constrained jobs are admitted"
        by_key[claim.concurrency.key].append((rank, claim))
    tokens: dict[str, int] = {}
    # Keys in one order everywhere: two transactions that need the same keys never wait in a circle.
    for key in sorted(by_key, key=permit_digest_of):
        wanting = by_key[key]
        first = wanting[0][1].concurrency
        assert first is not None
        slots = lock_slots(database.dialect, conn, key, first.slots, now)
        if len(slots.free) < len(wanting):
            expired = [Lease(job_id, "", row.lease_token) for job_id, row in slots.held.items()]
            if expired and leases.reclaim_these(database, conn, expired, now):
                slots = lock_slots(database.dialect, conn, key, first.slots, now)
        free = iter(slots.free)
        for _, claim in wanting:
            row = slots.held.get(claim.id) or next(free, None)  # a job may hold one from its attempt before
            if row is not None:
                tokens[claim.id] = take(conn, claim, row)
        _refuse(database, conn, [entry for entry in wanting if entry[1].id not in tokens], now)
    return tokens


def _refuse(database: Database, conn: Connection, refused: Sequence[tuple[int, Claim]], now: Micros) -> None:
    skipped: list[tuple[Claim, Outcome]] = []
    blocked = []
    for rank, claim in refused:
        assert claim.concurrency is not None
        if claim.concurrency.busy is BusyPolicy.SKIP and claim.attempt == 1:
            skipped.append((claim, Outcome(Verb.SKIP, reason=Reason.SINGLETON)))
        else:
            line = permit_line_of(permit_digest_of(claim.concurrency.key))
            blocked.append((claim.id, claim.lease.token, claim.lease.owner, line, rank))
    if skipped:
        settle(database.dialect, conn, skipped, now)
    if blocked:
        database.dialect.update_rows(conn, block_rows, _BLOCK_NAMES, sorted(blocked))


def wake_freed(database: Database, conn: Connection) -> int:
    """Wake those who wait for keys that have free permits: what a release does at once, made good if it was not.

    Needed when a key was given more slots, or a holder's row is gone.
    """
    now = database.now_and_pin(conn)
    woken = 0
    for key, slots in sorted(waiting_keys(conn), key=lambda entry: permit_digest_of(entry[0])):
        free = lock_slots(database.dialect, conn, key, slots, now).free
        if free:
            woken += wake_waiting(conn, permit_digest_of(key), len(free))
    return woken
