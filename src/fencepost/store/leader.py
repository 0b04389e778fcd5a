"""Who leads: one row with an epoch, taken, renewed and given up by conditional writes; and the fence of its writes.

    nobody ──take──▶ held, epoch n ──renew──▶ held, epoch n
       ▲                │        │
       └───release──────┘        └─ runs out ──take──▶ held, epoch n + 1

The epoch grows at every take and never goes back. Every write of a leader first reads the row in its own transaction,
with a shared lock: while that transaction lasts nobody can take over, and whoever was superseded writes nothing. The
only other who wants the row is the leader's own renewal, which comes between its transactions. A leader that froze in
the middle of one is ended by the server within the length of its lease (`Dialect.bounding_idleness`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, bindparam, null, or_, select, update
from sqlalchemy.engine import Connection

from fencepost.errors import LeadershipLost
from fencepost.job import Micros
from fencepost.store.database import Database
from fencepost.store.rows import instant
from fencepost.store.tables import ONE, leader, passes

__all__ = [
    "Lead",
    "Leader",
    "Pass",
    "PassRecord",
    "PassReport",
    "fenced",
    "find_leader",
    "is_open_to",
    "list_passes",
    "record_passes",
    "release_lead",
    "take_lead",
]

T = TypeVar("T")

_NAME = "planner"


class Pass(StrEnum):
    """What a leader does over and over."""

    MATERIALISE = "materialise"
    PROMOTE = "promote"
    PERMITS = "permits"
    RECLAIM = "reclaim"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True)
class Lead:
    """The right to lead, as whoever holds it knows it.

    Attributes:
        holder: whose.
        epoch: greater than that of every lead before it.
        lease: microseconds for which it was taken or renewed.
    """

    holder: str
    epoch: int
    lease: Micros


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's row, for people. `holder` and `since` are None where the last one gave it up."""

    holder: str | None
    epoch: int
    since: datetime | None
    renewed_at: datetime
    expires_at: datetime

    def is_leading(self, now: datetime) -> bool:
        """Whether somebody leads at this instant of the database's clock."""
        return self.holder is not None and self.expires_at > now


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a leader has to say of a pass: how long ago it succeeded, and how many rows it moved under this epoch."""

    name: str
    ago: Micros
    moved: int


@dataclass(frozen=True, slots=True)
class PassRecord:
    """When a pass last succeeded, under which epoch, and how many rows it moved under that epoch."""

    name: str
    succeeded_at: datetime
    epoch: int
    moved: int


_IS_OURS = leader.c.name == _NAME
_ROW = select(leader).where(_IS_OURS)
# A renewal from the future tells that the clock was set back: without it a dead leader would lead until the clock has
# caught up. One that lives loses at most a lease by it.
_IS_OPEN: ColumnElement[bool] = or_(
    leader.c.holder.is_(None), leader.c.expires_at <= bindparam("_now"), leader.c.renewed_at > bindparam("_now")
)
_IS_HELD = (
    _IS_OURS
    & (leader.c.holder == bindparam("_holder"))
    & (leader.c.epoch == bindparam("_epoch"))
    & (leader.c.expires_at > bindparam("_now"))
)
# The count is 1 while the lead holds. One that ran out is not renewed, even if nobody took it: it is taken anew.
_RENEW = update(leader).where(_IS_HELD).values(renewed_at=bindparam("_now"), expires_at=bindparam("_until"))
# The count is 1 for the one of any number of takers who gets it.
_TAKE = (
    update(leader)
    .where(_IS_OURS, leader.c.epoch == bindparam("_epoch"), _IS_OPEN)
    .values(
        epoch=leader.c.epoch + ONE,
        holder=bindparam("_holder"),
        since=bindparam("_now"),
        renewed_at=bindparam("_now"),
        expires_at=bindparam("_until"),
    )
)
_RELEASE = (
    update(leader)
    .where(_IS_OURS, leader.c.holder == bindparam("_holder"), leader.c.epoch == bindparam("_epoch"))
    .values(holder=null(), since=null(), expires_at=0)
)
_FENCE = select(leader.c.epoch).where(_IS_HELD).with_for_update(read=True)


def is_open_to(database: Database, conn: Connection, holder: str) -> bool:
    """Whether `take_lead` would have something to write: nobody else holds the lead."""
    row = conn.execute(_ROW).first()
    return row is None or row.holder == holder or _is_open(row, database.now(conn))


def _is_open(row: Any, now: Micros) -> bool:
    return row.holder is None or row.expires_at <= now or row.renewed_at > now


def take_lead(database: Database, conn: Connection, holder: str, lease: Micros) -> Lead | None:
    """Take the lead if nobody has it, or renew one's own, by one conditional write. None: somebody else leads.

    Repeated after a lost answer it finds its own lead and renews it.
    """
    row = conn.execute(_ROW).first()
    if row is None:
        values = {"name": _NAME, "epoch": 0, "renewed_at": 0, "expires_at": 0}
        conn.execute(database.dialect.ignoring_conflicts(leader).values(values))
        row = conn.execute(_ROW).one()
    now = database.now(conn)
    values = {"_holder": holder, "_epoch": row.epoch, "_now": now, "_until": now + lease}
    if row.holder == holder and row.expires_at > now:
        return Lead(holder, row.epoch, lease) if conn.execute(_RENEW, values).rowcount == 1 else None
    if _is_open(row, now) and conn.execute(_TAKE, values).rowcount == 1:
        return Lead(holder, row.epoch + 1, lease)
    return None


def release_lead(conn: Connection, lead: Lead) -> bool:
    """Give the lead up: the next who looks gets it at once. Returns whether it was still held."""
    return conn.execute(_RELEASE, {"_holder": lead.holder, "_epoch": lead.epoch}).rowcount == 1


def fenced(database: Database, conn: Connection, lead: Lead, work: Callable[[Connection], T]) -> T:
    """Do `work` in this transaction if the lead holds, and keep others from taking it until the transaction ends.

    Raises:
        LeadershipLost: it does not; nothing was written.
    """
    with database.dialect.bounding_idleness(conn, lead.lease / 1_000_000):
        now = database.now(conn)
        if conn.execute(_FENCE, {"_holder": lead.holder, "_epoch": lead.epoch, "_now": now}).first() is None:
            raise LeadershipLost(
                f"{lead.holder} does not lead any more: its lead of epoch {lead.epoch} has run out or passed to "
                "another planner. Nothing was written."
            )
        return work(conn)


def find_leader(conn: Connection) -> Leader | None:
    """The leader's row as it stands, or None where nobody has ever led."""
    row = conn.execute(_ROW).first()
    if row is None:
        return None
    return Leader(row.holder, row.epoch, instant(row.since), _at(row.renewed_at), _at(row.expires_at))


def record_passes(database: Database, conn: Connection, epoch: int, reports: Iterable[PassReport]) -> None:
    """Write down when passes last succeeded."""
    now = database.now(conn)
    for report in sorted(reports, key=lambda report: report.name):
        values = {
            "name": report.name,
            "succeeded_at": now - report.ago,
            "epoch": epoch,
            "moved": report.moved,
        }
        conn.execute(database.dialect.upsert(passes, values, key="name"))


def list_passes(conn: Connection) -> list[PassRecord]:
    """When each pass last succeeded, by name."""
    return [
        PassRecord(row.name, _at(row.succeeded_at), row.epoch, row.moved)
        for row in conn.execute(select(passes).order_by(passes.c.name))
    ]


def _at(micros: Micros) -> datetime:
    found = instant(micros)
    assert found is not None
    return found
