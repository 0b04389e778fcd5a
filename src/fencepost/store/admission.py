"""Admission: a claimed job that needs permits, tokens or shares starts with all of them, or does not start (S6).

It happens in the transaction of the claim, so there is no instant at which an attempt runs without them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from fencepost.job import BusyPolicy, Claim, Lease, Micros, Reason
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import leases
from fencepost.store.database import Database
from fencepost.store.demands import Demand, Gate, demands_of, row_demands, stuck_line_of
from fencepost.store.permits import block_rows
from fencepost.store.rooms import PermitRoom, Room, lock_rooms
from fencepost.store.settle import settle
from fencepost.store.tables import permit_line_of
from fencepost.store.waiting import waiting_member

__all__ = ["Admission", "admit", "wake_line"]

_BLOCK_NAMES = ("_id", "_lease_token", "_lease_owner", "_line", "_rank")


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of claimed jobs that need something to start.

    Attributes:
        admitted: the ids of those that may.
        fencing_tokens: of their permits, by job id.
        due_at: when somebody is to be woken who lies down now, at the earliest; None: others will see to it.
    """

    admitted: frozenset[str]
    fencing_tokens: dict[str, int]
    due_at: Micros | None


def admit(database: Database, conn: Connection, claims: Sequence[tuple[int, Claim]], now: Micros) -> Admission:
    """Give claimed jobs what they need, best rank first, and take the claims back of those for whom something lacks.

    Args:
        database: where.
        conn: the claim's transaction.
        claims: each with the rank that it had, in rank order.
        now: the database's clock.
    """
    wanting = [(rank, claim, demands_of(claim.concurrency, claim.limits)) for rank, claim in claims]
    rooms = lock_rooms(database.dialect, conn, (demand for _, _, demands in wanting for demand in demands), now)
    _reclaim_expired(database, conn, rooms, now)
    admitted: set[str] = set()
    refused: list[tuple[int, Claim, list[Demand], Demand]] = []
    for rank, claim, demands in wanting:
        lacking = [demand for demand in demands if not rooms[demand.digest].fits(rank, claim, demand)]
        if lacking:
            waits_at = _where_to_wait(lacking)
            if not rooms[waits_at.digest].never_fits(waits_at):
                rooms[waits_at.digest].close()
            refused.append((rank, claim, demands, waits_at))
            continue
        for demand in demands:
            rooms[demand.digest].take(claim, demand)
        admitted.add(claim.id)
    waiting = _refuse(database, conn, rooms, refused, now)
    dues = [room.write(waiting[digest]) for digest, room in rooms.items()]
    _pass_on(rooms, refused)
    tokens: dict[str, int] = {}
    for room in rooms.values():
        if isinstance(room, PermitRoom):
            tokens |= room.tokens
    return Admission(frozenset(admitted), tokens, min((due for due in dues if due is not None), default=None))


def _reclaim_expired(database: Database, conn: Connection, rooms: dict[str, Room], now: Micros) -> None:
    """What an attempt holds whose lease has run out is free: it is taken back on the spot."""
    holding = [room for room in rooms.values() if room.holders()]
    held = [Lease(str(row.job_id), "", row.lease_token) for room in holding for row in room.holders()]
    if held and leases.reclaim_these(database, conn, held, now):
        for room in holding:
            room.refresh()


def _where_to_wait(lacking: Sequence[Demand]) -> Demand:
    # A busy concurrency key first: its policy may say that the job does not wait at all.
    return min(lacking, key=lambda demand: (demand.gate is not Gate.CONCURRENCY, demand.digest))


def _refuse(
    database: Database,
    conn: Connection,
    rooms: dict[str, Room],
    refused: Sequence[tuple[int, Claim, list[Demand], Demand]],
    now: Micros,
) -> dict[str, list[Demand]]:
    """Skip or block refused jobs. Returns the demands of those that wait now, by gate."""
    skipped: list[tuple[Claim, Outcome]] = []
    blocked = []
    waiting: dict[str, list[Demand]] = defaultdict(list)
    for rank, claim, _, demand in refused:
        policy = None if claim.concurrency is None else claim.concurrency.busy
        if demand.gate is Gate.CONCURRENCY and policy is BusyPolicy.SKIP and _is_new(claim):
            skipped.append((claim, Outcome(Verb.SKIP, reason=Reason.SINGLETON)))
            continue
        room = rooms[demand.digest]
        is_stuck = room.never_fits(demand)
        line = stuck_line_of(demand.digest) if is_stuck else room.line
        blocked.append((claim.id, claim.lease.token, claim.lease.owner, line, rank))
        if not is_stuck:
            waiting[demand.digest].append(demand)
    if skipped:
        settle(database.dialect, conn, skipped, now)
    if blocked:
        database.dialect.update_rows(conn, block_rows, _BLOCK_NAMES, sorted(blocked))
    return waiting


def _is_new(claim: Claim) -> bool:
    """Whether nothing has become of it yet. A retry by hand counts its attempts anew, and keeps its history."""
    return claim.attempt == 1 and claim.reason is None and claim.history is None


def _pass_on(rooms: dict[str, Room], refused: Sequence[tuple[int, Claim, list[Demand], Demand]]) -> None:
    """Who was woken at one gate and lacked something at another passes the wake-up on, or the room would lie idle."""
    idle = {
        demand.digest: None for _, _, demands, lacked in refused for demand in demands if demand.digest != lacked.digest
    }
    for digest in idle:
        if not rooms[digest].looks_again:
            rooms[digest].wake()


def wake_line(database: Database, conn: Connection, line: int) -> int:
    """Wake those who wait in a line, as far as there is room: what a release does at once, made good if it did not.

    Needed when a limit was raised, a holder's row is gone, or a woken job was cancelled before it could take its place.
    """
    now = database.now_and_pin(conn)
    member = waiting_member(conn, line)
    if member is None:
        return 0
    for demand in row_demands(member):
        is_stuck = line == stuck_line_of(demand.digest)
        if not is_stuck and line != permit_line_of(demand.digest):
            continue
        (room,) = lock_rooms(database.dialect, conn, [demand], now).values()
        return room.wake_stuck() if is_stuck else room.wake()
    return 0
