"""What a handler may know and say of the job it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from sqlalchemy.engine import Connection

from fencepost.codec import clean_text
from fencepost.errors import InvalidTransition, LeaseLost
from fencepost.job import Claim
from fencepost.planning.outcome import Outcome, Verb
from fencepost.registry import Handler
from fencepost.store import Store
from fencepost.store.rows import instant
from fencepost.store.tables import NOTE_CHARS

__all__ = ["AttemptLink", "JobContext", "lease_lost_text"]

T = TypeVar("T")


class AttemptLink(Protocol):
    """How a context reaches the worker that runs its attempt."""

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop."""
        ...

    def report(self, fraction: float, note: str | None) -> None:
        """Pass progress on."""
        ...

    def settled(self, *, has_result: bool) -> None:
        """Say that the handler has settled the job itself, with a result or without."""
        ...


class JobContext:
    """The running attempt, passed to a handler that has a parameter annotated with this type.

    Attributes:
        id: the job's id.
        kind, queue, tags, tenant: as it was enqueued.
        attempt: 1 for the first.
        max_attempts: how many there may be.
        deadline: an aware datetime in UTC, or None.
        scheduled_for: the instant of the schedule that this job is for, an aware datetime in UTC; None for a job
            without a schedule. Being the same at every attempt, it serves to make work idempotent.
        schedule: the name of the schedule whose occurrence this is; None for a job without a schedule.
        trigger: schedule, manual or backfill; None for a job without a schedule.
        fencing_token: of its permit, if its schedule has an overlap policy: grows each time the permit is taken, so
            that outside systems can refuse a superseded holder; None otherwise.
        lease_token: grows with every attempt of this job, so that outside systems can refuse a stale one.
    """

    def __init__(self, claim: Claim, handler: Handler, store: Store, link: AttemptLink) -> None:
        self.id = claim.id
        self.kind = claim.kind
        self.queue = claim.queue
        self.attempt = claim.attempt
        self.max_attempts = claim.max_attempts
        self.tags = claim.tags
        self.tenant = claim.tenant
        self.lease_token = claim.lease.token
        self.fencing_token = claim.fencing_token
        self.deadline: datetime | None = instant(claim.deadline)
        self.scheduled_for: datetime | None = instant(claim.scheduled_for)
        self.schedule = claim.schedule
        self.trigger = claim.trigger
        self._claim = claim
        self._handler = handler
        self._store = store
        self._link = link
        self._result: str | None = None
        self._has_transaction = False

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: cancelled by somebody, timed out, superseded, or its worker stops.

        An async handler is also cancelled and a process killed; a plain function on a thread has to look.
        """
        return self._link.cancelled

    @property
    def previous_success(self) -> datetime | None:
        """The newest earlier instant of this schedule whose occurrence succeeded, for incremental work.

        An aware datetime in UTC; None: there is none (any more), or the job has no schedule. Asks the database.
        """
        schedule, scheduled_for = self._claim.schedule, self._claim.scheduled_for
        if schedule is None or scheduled_for is None:
            return None
        return instant(self._store.previous_success(schedule, scheduled_for))

    @cached_property
    def dependencies(self) -> Mapping[str, Any]:
        """What the jobs that this one waited for returned, as plain JSON values, by their names in the workflow or ids.

        None of one that returned nothing or did not succeed; one that was deleted is not in it. Asks the database,
        once.
        """
        found = self._store.results_of_predecessors(self.id)
        return MappingProxyType({name: None if text is None else json.loads(text) for name, text in found})

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far the job has come. Costs nothing here: a thread of the worker writes the newest report.

        Args:
            fraction: from 0 to 1.
            note: a few words; at most 500 characters are kept.

        Raises:
            ValueError: a fraction out of range.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress goes from 0 to 1, not {fraction!r}")
        self._link.report(fraction, None if note is None else clean_text(note)[:NOTE_CHARS])

    def set_result(self, value: Any) -> None:
        """Name the result that `transaction()` stores with the completion, inside its block or before.

        What the handler returns comes too late for that commit.

        Raises:
            EncodingError: a value that cannot be stored.
        """
        self._result = self._handler.result.encode(value)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction on fencepost's database whose commit also completes this job: exactly once, or not at all.

        If the lease is gone when the block ends, everything in it is rolled back. After the block the job is
        settled: what the handler returns or raises later changes nothing, so name the job's result with `set_result`.
        On SQLite keep the block short, since it
        keeps every other writer out; and in an async handler use `run_transaction`, which does not block the loop.

        Raises:
            LeaseLost: the lease passed to somebody else. Let it pass; nothing was written.
            InvalidTransition: this attempt has, or had, such a transaction already.
        """
        if self._has_transaction:
            raise InvalidTransition(
                f"Job {self.id} has its transaction already: an attempt is completed by one `ctx.transaction()`. Do "
                "all of its work in one block, and pass its connection to helpers."
            )
        self._has_transaction = True
        try:
            with self._store.transaction() as conn:
                yield conn
                keep = self._result if self._claim.keep_result else None
                if not self._store.settle_within(conn, self._claim, Outcome(Verb.COMPLETE, result=keep)):
                    raise LeaseLost(lease_lost_text(self._claim))
        except BaseException:  # raised on; rolled back, so the handler may try once more
            self._has_transaction = False
            raise
        self._link.settled(has_result=keep is not None or not self._claim.keep_result)

    async def run_transaction(self, work: Callable[[Connection], T]) -> T:
        """`transaction()` for async handlers: runs `work(connection)` on a thread and returns what that returns.

        The job's result is what `set_result` was given, inside `work` or before.

        Raises:
            LeaseLost: the lease passed to somebody else; nothing was written.
        """

        def run() -> T:
            with self.transaction() as conn:
                return work(conn)

        return await asyncio.to_thread(run)

    def __repr__(self) -> str:
        return f"<JobContext {self.kind} {self.id} attempt {self.attempt} of {self.max_attempts}>"


def lease_lost_text(claim: Claim) -> str:
    """What is said, once, of an attempt whose lease was gone when it ended."""
    return (
        f"Job {claim.id} ({claim.kind}) was not settled: its lease had passed on, this attempt ({claim.attempt}) holds "
        f"token {claim.lease.token}. What it returned was discarded. If handlers outlast their lease, look for what "
        "kept the heartbeat from the database: a frozen process, a lost connection, a C extension that holds the GIL."
    )
