"""Rooms: what is free at the gates that a transaction has locked.

Rows of `fencepost_limits` are locked before rows of permits, each in the order of the gates' digests, by whoever takes,
refuses or releases: so nobody lies down to wait just after somebody else, freeing room, had looked whom to wake, and no
two transactions wait in a circle.

| gate        | its row says               | what is taken                                                             |
| ----------- | -------------------------- | ------------------------------------------------------------------------- |
| concurrency | slots, where declared      | a permit: see `fencepost.store.permits`                                   |
| semaphore   | capacity                   | a holding, which names the attempt and counts while that attempt runs: no |
|             |                            | lease of its own, so none can leak                                        |
| bucket      | rate, burst, theoretical   | tokens, in the claim's transaction, at the database's clock; nobody gives |
|             | arrival time               | them back, so a crash frees none                                          |

While jobs wait at a bucket its `due_at` says when they are to be looked at again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import BigInteger, and_, bindparam, delete, select, update
from sqlalchemy.engine import Connection

from fencepost.job import Claim, Micros, State
from fencepost.planning.gcra import Bucket
from fencepost.store.demands import Demand, Gate, demands_of, row_demands, stuck_line_of
from fencepost.store.dialects import Dialect
from fencepost.store.permits import Slots, end_sequences, lock_slots, take
from fencepost.store.tables import holdings, jobs, limits, permit_line_of, word
from fencepost.store.waiting import best_waiting_rank, first_waiting, put_aside, wake

__all__ = [
    "BUCKET",
    "RATE",
    "SEMAPHORE",
    "SLOTS",
    "Room",
    "SemaphoreRoom",
    "holders_of",
    "lock_rooms",
    "release_holdings",
]

BUCKET, SEMAPHORE, RATE, SLOTS = "bucket", "semaphore", "rate", "slots"
"""The words in the column `kind`."""

_MOST_WOKEN = 500
_UNKNOWN = object()

_LOCK_LIMITS = (
    select(limits)
    .where(limits.c.digest.in_(bindparam("digests", expanding=True)))
    .order_by(limits.c.digest)
    .with_for_update()
)
_LOCK_SEMAPHORES = _LOCK_LIMITS.where(limits.c.kind == SEMAPHORE)

# The one conditional update of a bucket. Its row is locked, so the count is always 1.
_CHARGE = (
    update(limits)
    .where(limits.c.digest == bindparam("_digest"), limits.c.tat == bindparam("_planned", type_=BigInteger))
    .values(
        tat=bindparam("_tat", type_=BigInteger),
        rate=bindparam("_rate"),
        burst=bindparam("_burst", type_=BigInteger),
        due_at=bindparam("_due_at", type_=BigInteger),
    )
)

# Only what running attempts hold counts, whatever rows have been left behind.
_HOLDERS = (
    select(holdings.c.job_id, holdings.c.lease_token, holdings.c.amount)
    .join(
        jobs,
        and_(
            jobs.c.id == holdings.c.job_id,
            jobs.c.lease_token == holdings.c.lease_token,
            jobs.c.state == word(State.RUNNING),
        ),
    )
    .where(holdings.c.digest == bindparam("digest"))
)
_LET_GO = delete(holdings).where(
    holdings.c.digest == bindparam("digest"),
    holdings.c.job_id == bindparam("job"),
    holdings.c.lease_token == bindparam("token", type_=BigInteger),
)


@dataclass(frozen=True, slots=True)
class Held:
    """What one running attempt holds."""

    job_id: str
    lease_token: int
    amount: int


def holders_of(conn: Connection, digest: str) -> list[Held]:
    """The attempts that hold shares of a semaphore."""
    found = conn.execute(_HOLDERS, {"digest": digest})
    return [Held(str(row.job_id), row.lease_token, row.amount) for row in found]


class Room(ABC):
    """One gate, locked until the transaction ends."""

    looks_again: ClassVar[bool] = False
    """Whether a pass comes back, at its `due_at`, for those who wait here."""

    def __init__(self, dialect: Dialect, conn: Connection, digest: str, now: Micros) -> None:
        self._dialect = dialect
        self._conn = conn
        self._now = now
        self.digest = digest
        self.line = permit_line_of(digest)
        self._passed_over = False
        self._is_closed = False
        self._best: Any = _UNKNOWN

    @abstractmethod
    def fits(self, rank: int, claim: Claim, demand: Demand) -> bool:
        """Whether there is room for what a claimed job with this rank demands."""

    @abstractmethod
    def take(self, claim: Claim, demand: Demand) -> None:
        """Take it. It must fit."""

    def close(self) -> None:
        """Somebody lies down here: those behind in this transaction do not overtake, however little they demand."""
        self._is_closed = True

    def never_fits(self, demand: Demand) -> bool:
        """Whether there will be no room for it before the limit is changed."""
        return False

    def holders(self) -> Sequence[Any]:
        """Where there is not room for all that is wanted, who holds something, as rows with `job_id` and `lease_token`.

        Tokens of a bucket nobody holds.
        """
        return ()

    def refresh(self) -> None:  # noqa: B027 - nobody holds tokens
        """Look again who holds what: leases that had run out were taken back."""

    def write(self, refused: Sequence[Demand]) -> Micros | None:
        """Store what was taken.

        Args:
            refused: the demands of those who lie down here in this transaction.

        Returns:
            The instant at which they are to be looked at, where nobody else tells.
        """
        if self._passed_over:
            self.wake()
        return None

    @abstractmethod
    def wake(self) -> int:
        """Wake the best-ranked of those who wait here, as many as there is room for. Returns how many."""

    def wake_stuck(self) -> int:
        """Let those ask again who asked for more than there ever was."""
        rows = first_waiting(self._conn, stuck_line_of(self.digest), _MOST_WOKEN)
        return wake(self._dialect, self._conn, [row for row in rows if not self.never_fits(self._demand(row))])

    def _demand(self, row: Any) -> Demand:
        """What one who waits here demands of this gate."""
        found = [demand for demand in row_demands(row) if demand.digest == self.digest]
        return found[0] if found else Demand(self.digest, Gate.RESOURCE, "")

    def _is_first(self, rank: int) -> bool:
        """Whether nobody with a better rank waits here: a small demand never overtakes a large one for good."""
        if self._is_closed:
            return False
        if self._best is _UNKNOWN:  # it stays as it is while the gate is locked: asked once a claim, not once a job
            self._best = best_waiting_rank(self._conn, self.line)
        is_first = self._best is None or rank <= self._best
        self._passed_over = self._passed_over or not is_first
        return is_first

    def _wake_within(self, most: int) -> tuple[int, Demand | None]:
        """Wake in rank order while the demands fit within `most`. Returns what they take, and who is first then."""
        left, chosen = most, []
        demand: Demand | None
        for row in self._first_waiting(min(max(most, 0), _MOST_WOKEN) + 1):
            demand = self._demand(row)
            if demand.amount > left:
                break
            left -= demand.amount
            chosen.append(row)
        else:
            demand = None
        wake(self._dialect, self._conn, chosen)
        return most - left, demand

    def _first_waiting(self, most: int) -> list[Any]:
        """The best-ranked of those who wait here.

        Who asks for more than there ever is, since the limit was lowered, goes out of the others' way.
        """
        while True:
            rows = first_waiting(self._conn, self.line, most)
            stuck = [row for row in rows if self.never_fits(self._demand(row))]
            if not stuck:
                return rows
            put_aside(self._dialect, self._conn, stuck, stuck_line_of(self.digest))


class PermitRoom(Room):
    """A concurrency key."""

    def __init__(
        self, dialect: Dialect, conn: Connection, demand: Demand, declared: Any, now: Micros, wanted: int
    ) -> None:
        super().__init__(dialect, conn, demand.digest, now)
        self._key = demand.name
        self._slots = demand.slots if declared is None else declared.capacity
        self._wanted = wanted
        self.tokens: dict[str, int] = {}
        """The fencing tokens that were given, by job id."""
        self._found: Slots
        self.refresh()
        end_sequences(conn, self._found, now)

    def refresh(self) -> None:
        self._found = lock_slots(self._dialect, self._conn, self._key, self._slots, self._now)
        self._free = list(self._found.free)

    def holders(self) -> Sequence[Any]:
        return list(self._found.held.values()) if len(self._free) < self._wanted else ()

    def fits(self, rank: int, claim: Claim, demand: Demand) -> bool:
        return bool(self._free) or claim.id in self._found.held  # a job may hold one from its attempt before

    def take(self, claim: Claim, demand: Demand) -> None:
        row = self._found.held.get(claim.id)
        self.tokens[claim.id] = take(self._conn, claim, self._free.pop(0) if row is None else row)

    def wake(self) -> int:
        return self._wake_within(len(self._free))[0]


class SemaphoreRoom(Room):
    """A semaphore with weights."""

    def __init__(self, dialect: Dialect, conn: Connection, row: Any, now: Micros, wanted: int = 0) -> None:
        super().__init__(dialect, conn, row.digest, now)
        self._wanted = wanted
        self._capacity = row.capacity
        self._taken: list[dict[str, Any]] = []
        self.refresh()

    def refresh(self) -> None:
        self._held = holders_of(self._conn, self.digest)
        self._free = self._capacity - sum(held.amount for held in self._held)

    def holders(self) -> Sequence[Any]:
        return self._held if self._free < self._wanted else ()

    def never_fits(self, demand: Demand) -> bool:
        return demand.amount > int(self._capacity)

    def fits(self, rank: int, claim: Claim, demand: Demand) -> bool:
        return bool(demand.amount <= self._free) and self._is_first(rank)

    def take(self, claim: Claim, demand: Demand) -> None:
        self._free -= demand.amount
        lease = claim.lease
        self._taken.append(
            {"digest": self.digest, "job_id": lease.job_id, "lease_token": lease.token, "amount": demand.amount}
        )

    def write(self, refused: Sequence[Demand]) -> Micros | None:
        if self._taken:
            self._conn.execute(self._dialect.ignoring_conflicts(holdings), self._taken)
        return super().write(refused)

    def wake(self) -> int:
        return self._wake_within(self._free)[0]


class BucketRoom(Room):
    """A token bucket: declared by name, or a rate key's own."""

    looks_again: ClassVar[bool] = True

    def __init__(self, dialect: Dialect, conn: Connection, row: Any, now: Micros) -> None:
        super().__init__(dialect, conn, row.digest, now)
        self._planned = row.tat
        self._due_at: Micros | None = row.due_at
        self._bucket = Bucket(row.rate, row.burst, row.tat)
        self._is_declared = row.declared_at is not None

    def _adopt(self, demand: Demand) -> None:
        """Where only jobs say what the rate is, the one that asks now says it."""
        rate = demand.rate
        if rate is None or self._is_declared or (rate.per_second, rate.burst) == self._numbers:
            return
        self._bucket.change(self._now, rate.per_second, rate.burst)

    @property
    def _numbers(self) -> tuple[float, int]:
        return self._bucket.per_second, self._bucket.burst

    def never_fits(self, demand: Demand) -> bool:
        return demand.amount > self._bucket.burst

    def fits(self, rank: int, claim: Claim, demand: Demand) -> bool:
        self._adopt(demand)
        if demand.amount > self._bucket.tokens(self._now):
            return False
        return not self._is_closed and (self._due_at is None or self._is_first(rank))

    def take(self, claim: Claim, demand: Demand) -> None:
        taken = self._bucket.take(self._now, demand.amount)
        assert taken, "it was asked whether it fits"

    def write(self, refused: Sequence[Demand]) -> Micros | None:
        is_new = self._due_at is None and bool(refused)
        if is_new:
            self._due_at = self._bucket.due_at(self._now, self._bucket.wake_amount(refused[0].amount))
        if is_new or self._bucket.tat != self._planned:
            self._store()
        return self._due_at if is_new else None

    def _store(self) -> None:
        stored = self._conn.execute(
            _CHARGE,
            {
                "_digest": self.digest,
                "_planned": self._planned,
                "_tat": self._bucket.tat,
                "_rate": self._bucket.per_second,
                "_burst": self._bucket.burst,
                "_due_at": self._due_at,
            },
        )
        assert stored.rowcount == 1, "the bucket's row is locked"
        self._planned = self._bucket.tat

    def change(self, per_second: float, burst: int) -> None:
        """Go on with other numbers."""
        self._bucket.change(self._now, per_second, burst)
        self._store()

    def wake(self) -> int:
        there = self._bucket.tokens(self._now)
        woken, head = self._wake_within(there)
        if best_waiting_rank(self._conn, self.line) is None:
            self._due_at = None
        else:
            # As if those who were woken had taken their tokens already.
            ahead = Bucket(*self._numbers, self._bucket.tat)
            ahead.take(self._now, woken)
            first = 1 if head is None else head.amount
            self._due_at = ahead.due_at(self._now, min(ahead.wake_amount(first), ahead.burst))
        self._store()
        return woken


class AbsentRoom(Room):
    """A resource that nobody has declared: whoever needs it waits until somebody does."""

    def fits(self, rank: int, claim: Claim, demand: Demand) -> bool:
        return False

    def take(self, claim: Claim, demand: Demand) -> None:
        raise AssertionError("there is no such resource")

    def wake(self) -> int:
        return 0


def lock_rooms(dialect: Dialect, conn: Connection, demands: Iterable[Demand], now: Micros) -> dict[str, Room]:
    """Lock gates until the transaction ends, and say what is free at each.

    Args:
        dialect: the database's.
        conn: in a transaction that can write.
        demands: in rank order; the first one at a gate says what the gate is where no row does.
        now: the database's clock.

    Returns:
        The rooms, by the gates' digests.
    """
    first: dict[str, Demand] = {}
    wanted: dict[str, int] = {}
    for demand in demands:
        first.setdefault(demand.digest, demand)
        wanted[demand.digest] = wanted.get(demand.digest, 0) + demand.amount
    rows = _lock_limits(conn, first)
    fresh = [demand for digest, demand in sorted(first.items()) if demand.gate is Gate.RATE and digest not in rows]
    if fresh:
        for demand in fresh:
            assert demand.rate is not None, "a demand of a rate names it"
            values = {"digest": demand.digest, "kind": RATE, "name": demand.name, "tat": 0}
            numbers = {"rate": demand.rate.per_second, "burst": demand.rate.burst}
            conn.execute(dialect.ignoring_conflicts(limits).values(values | numbers))
        rows = _lock_limits(conn, first)
    return {
        digest: _room(dialect, conn, demand, rows.get(digest), now, wanted[digest])
        for digest, demand in sorted(first.items())
    }


def _lock_limits(conn: Connection, digests: Collection[str]) -> dict[str, Any]:
    return {row.digest: row for row in conn.execute(_LOCK_LIMITS, {"digests": sorted(digests)})}


def _room(dialect: Dialect, conn: Connection, demand: Demand, row: Any, now: Micros, wanted: int) -> Room:
    if demand.gate is Gate.CONCURRENCY:
        return PermitRoom(dialect, conn, demand, row, now, wanted)
    match None if row is None else row.kind:
        case "bucket" | "rate":
            return BucketRoom(dialect, conn, row, now)
        case "semaphore":
            return SemaphoreRoom(dialect, conn, row, now, wanted)
        case _:
            return AbsentRoom(dialect, conn, demand.digest, now)


def release_holdings(dialect: Dialect, conn: Connection, ended: Iterable[Claim], now: Micros) -> None:
    """Give back the shares of attempts that were settled in this transaction, and wake who waits for them."""
    found = [
        (demand.digest, claim)
        for claim in ended
        for demand in demands_of(None, claim.limits)
        if demand.gate is Gate.RESOURCE
    ]
    if not found:
        return
    semaphores = conn.execute(_LOCK_SEMAPHORES, {"digests": sorted({digest for digest, _ in found})}).fetchall()
    for row in semaphores:
        gone = 0
        for claim in (claim for digest, claim in found if digest == row.digest):
            lease = claim.lease
            gone += conn.execute(_LET_GO, {"digest": row.digest, "job": lease.job_id, "token": lease.token}).rowcount
        if gone:
            SemaphoreRoom(dialect, conn, row, now).wake()
