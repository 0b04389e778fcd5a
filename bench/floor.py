"""The floor: what the database and its driver give to plain SQL, written by hand, on one connection.

No ORM, no query builder, no threads, no validation, no result, no retry: the least that a durable queue has to
do, in the form that is fastest for the driver. The rows are made before the clock starts, so that nothing but
statements and commits is timed. A queue that comes close spends its time in the database; the distance is what
its other promises cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import ClassVar, NamedTuple, Protocol
from uuid import UUID

__all__ = ["OWNER", "QUEUE", "Claimed", "Floor", "Row", "measure"]

INSERT_BATCH = 1000
CLAIM_BATCH = 100
SINGLE_SECONDS = 3.0  # one row a transaction is bound by the disk's flush: some seconds tell its rate

KIND = "bench.handlers.noop"
QUEUE = "default"
OWNER = "floor-1"
MAX_ATTEMPTS = 20


class Row(NamedTuple):
    """The columns that an enqueue sets; the other four (run_at, lease_until, lease_owner, finished_at) are null."""

    id: UUID
    kind: str
    queue: str
    state: str
    priority: str
    payload: str
    rank: int
    attempts: int
    max_attempts: int
    created_at: int


class Claimed(NamedTuple):
    """What a worker needs to run a job: its handler's name, its arguments, and which attempt this is."""

    id: object
    kind: str
    payload: str
    attempts: int


class Floor(Protocol):
    """The statements of one database, on a connection to an empty scratch database."""

    has_bulk_load: ClassVar[bool]
    """There is a faster way in than INSERT, which cannot pass over rows that exist already: COPY."""

    def create(self) -> None:
        """The table of 14 columns and its two indexes: ready jobs by rank, running ones by the lease's end."""
        ...

    def clear(self) -> None:
        """Empty the table."""
        ...

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert a batch in one transaction."""
        ...

    def bulk_load(self, rows: Sequence[Row]) -> None:
        """The same by the bulk protocol."""
        ...

    def claim(self, limit: int, lease_until: int) -> Sequence[Claimed]:
        """Take the best ready jobs, in one transaction, in a way that any number of workers could do at once."""
        ...

    def settle(self, claimed: Sequence[Claimed], finished_at: int) -> int:
        """End a batch in one transaction, if it is still this owner's. The number of jobs for which that held."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def measure(floor: Floor, jobs: int) -> dict[str, float]:
    """Jobs per second of each operation, on an empty database. Closes the connection."""
    rows = _make_rows(jobs)
    figures: dict[str, float] = {}
    with closing(floor):
        floor.create()
        if floor.has_bulk_load:
            figures["floor_bulk_load"] = jobs / _seconds(lambda: _in_batches(floor.bulk_load, rows))
            floor.clear()
        figures["floor_insert"] = jobs / _seconds(lambda: _in_batches(floor.insert, rows))
        figures["floor_drain"] = jobs / _seconds(lambda: _drain(floor, jobs))
        floor.clear()
        figures["floor_insert_single"] = _singles_per_second(floor, rows)
    return figures


def _make_rows(count: int) -> list[Row]:
    now = time.time_ns() // 1000
    return [
        Row(
            id=_uuid7(now // 1000 + number // 4096, number % 4096, number),
            kind=KIND,
            queue=QUEUE,
            state="ready",
            priority="normal",
            payload=json.dumps({"i": number}),
            rank=now + number,
            attempts=0,
            max_attempts=MAX_ATTEMPTS,
            created_at=now,
        )
        for number in range(count)
    ]


def _uuid7(milliseconds: int, counter: int, tail: int) -> UUID:
    # In order of time, as a queue's ids should be: random ones would scatter over the primary key's pages.
    return UUID(int=milliseconds << 80 | 0x7 << 76 | counter << 64 | 0x2 << 62 | tail)


def _in_batches(insert: Callable[[Sequence[Row]], None], rows: Sequence[Row]) -> None:
    for start in range(0, len(rows), INSERT_BATCH):
        insert(rows[start : start + INSERT_BATCH])


def _drain(floor: Floor, expected: int) -> None:
    settled = 0
    now = time.time_ns() // 1000
    while claimed := floor.claim(CLAIM_BATCH, lease_until=now + 30_000_000):
        settled += floor.settle(claimed, finished_at=now)
    if settled != expected:
        raise AssertionError(f"the floor settled {settled} of {expected} jobs")


def _singles_per_second(floor: Floor, rows: Sequence[Row]) -> float:
    start = time.perf_counter()
    done = 0
    for row in rows:
        floor.insert([row])
        done += 1
        if time.perf_counter() - start > SINGLE_SECONDS:
            break
    return done / (time.perf_counter() - start)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
