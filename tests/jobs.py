"""What tests that drive the store by hand have in common: jobs to enqueue, and the rows that they become."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, delete, event, select, update
from sqlalchemy.engine import Connection

from fencepost.ids import new_id
from fencepost.job import Claim, EnqueueResult, Job, NewJob, Options
from fencepost.store import Database, Store
from fencepost.store.tables import jobs, metadata
from tests import databases

T = TypeVar("T")

SECOND = 1_000_000
"""In the microseconds of `Options`."""

MINUTE = 60 * SECOND


def new(kind: str = "k", arguments: str = "{}", **options: Any) -> NewJob:
    """A job as `build()` returns it."""
    return NewJob(new_id(), kind, arguments, Options(**options))


def put(store: Store, kind: str = "k", arguments: str = "{}", **options: Any) -> EnqueueResult:
    """Enqueue one job."""
    (result,) = store.enqueue([new(kind, arguments, **options)])
    return result


def claim_one(store: Store, kind: str = "k", owner: str = "me", **asked: Any) -> Claim:
    """Claim the one job there is to claim."""
    (claim,) = store.claim(owner, kinds=[kind], **asked)
    return claim


def claimed_ids(store: Store, limit: int = 100, **asked: Any) -> list[str]:
    """Claim all there is, in rank order. The jobs' ids."""
    asked.setdefault("kinds", ["k"])
    return [claim.id for claim in store.claim("me", limit=limit, **asked)]


def job(store: Store, job_id: str) -> Job:
    """A job as people see it."""
    found = store.get(job_id)
    assert found is not None
    return found


def states(store: Store, *ids: str) -> list[str]:
    """Where jobs stand."""
    return [str(job(store, job_id).state) for job_id in ids]


def row(store: Store, job_id: str) -> Mapping[str, Any]:
    """A job's row as it stands in the table."""
    return store.database.read(
        lambda conn: dict(conn.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one())
    )


def rows(store: Store) -> list[Mapping[str, Any]]:
    """All jobs' rows, in the order of their ids."""
    query = select(jobs).order_by(jobs.c.id)
    return store.database.read(lambda conn: [dict(found) for found in conn.execute(query).mappings()])


def overwrite(store: Store, job_id: str, **values: Any) -> None:
    """Write into a row what no function of the store would write."""
    store.database.write(lambda conn: conn.execute(update(jobs).where(jobs.c.id == job_id).values(values)))


def clear(store: Store) -> None:
    """Empty all tables: for properties, which run many examples in one test."""

    def work(conn: Connection) -> None:
        for table in metadata.sorted_tables:
            conn.execute(delete(table))

    store.database.write(work)


def promote_all(store: Store) -> int:
    """Run the promotion pass until nothing moves."""
    total = 0
    while moved := store.promote_due():
        total += moved
    return total


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements that the store sends while the block runs, transaction control left out."""
    sent: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    engine = store.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def empty_database(name: str, folder: Path) -> Iterator[URL]:
    """A database without tables, of one's own."""
    if name == "sqlite":
        yield databases.sqlite_url(folder, "empty.db")
    else:
        with databases.scratch_database(name) as url:
            yield url


@contextmanager
def other_stores(store: Store, number: int) -> Iterator[list[Store]]:
    """Stores on the same database and clock with connections of their own, as other processes have."""
    others = [Store(Database(store.database.url, clock=store.database._clock), migrates=False) for _ in range(number)]
    try:
        yield others
    finally:
        for other in others:
            other.close()


def at_once(calls: Sequence[Callable[[], T]], *, seconds: float = 60) -> list[T]:
    """Run calls on threads that start together; their answers in order, or the first one's exception."""
    barrier = threading.Barrier(len(calls))
    answers: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int, call: Callable[[], T]) -> None:
        try:
            barrier.wait(seconds)
            answers[place] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=entry, daemon=True) for entry in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if errors:
        raise errors[0]
    return [answers[place] for place in range(len(calls))]
