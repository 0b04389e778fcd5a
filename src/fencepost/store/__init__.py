"""The store: the only place with SQL, and the face of it for custom workers.

`Store` opens a transaction for each call, retries what may pass, and leaves the statements to one module a
concern: enqueue, claim, settle, leases, promote, control, retention, listing, workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import exc
from sqlalchemy.engine import Connection

from fencepost.codec import ResultCodec
from fencepost.errors import ConfigurationError, FencepostError
from fencepost.ids import new_id
from fencepost.job import DEFAULT_LEASE_SECONDS, Claim, EnqueueResult, Job, Lease, Micros, NewJob, Reason
from fencepost.labels import NO_LABELS, LabelSet, check_labels
from fencepost.planning.fixed_start import StartFigures
from fencepost.planning.outcome import Outcome, Verb
from fencepost.planning.retention import Final, Rules
from fencepost.queue import QueueSettings
from fencepost.schedule import NewSchedule, Schedule
from fencepost.store import (
    bounds,
    control,
    dependencies,
    leader,
    leases,
    limits,
    listing,
    queues,
    retention,
    schedules,
    schema,
    turns,
    workers,
)
from fencepost.store.admission import wake_line
from fencepost.store.batches import BUCKET_BATCH, ENQUEUE_BATCH, GATE_BATCH, PASS_BATCH, PRUNE_BATCH, SCHEDULE_BATCH
from fencepost.store.claim import claim, ready_lines
from fencepost.store.database import Clock, Database
from fencepost.store.demands import Gate
from fencepost.store.figures import ScheduleFigures, schedule_figures
from fencepost.store.leader import Lead, Leader, Pass, PassRecord, PassReport
from fencepost.store.leases import Heartbeat
from fencepost.store.limits import Limit
from fencepost.store.listing import QueueCounts
from fencepost.store.promote import Due, is_due, next_wake, promote_due
from fencepost.store.repetition import stand_as_settled
from fencepost.store.settle import settle
from fencepost.store.starts import start_figures
from fencepost.store.tables import NAME_CHARS
from fencepost.store.waiting import waiting_lines
from fencepost.store.workers import WorkerRecord
from fencepost.timing import micros

__all__ = [
    "DEFAULT_LEADER_LEASE_SECONDS",
    "Clock",
    "Database",
    "Gate",
    "Heartbeat",
    "Lead",
    "Leader",
    "Limit",
    "Pass",
    "PassRecord",
    "PassReport",
    "QueueCounts",
    "ScheduleFigures",
    "Store",
    "WorkerRecord",
]

logger = logging.getLogger("fencepost.store")

T = TypeVar("T")

_RESULT = ResultCodec(Any, "complete")

_MOST_LEVELS = 50  # of skips in one pass, which then goes on in the next

DEFAULT_LEADER_LEASE_SECONDS = 5.0  # renewed at every third of it: two renewals may fail


class Store:
    """All that fencepost asks of its database. Thread-safe; usable after a fork.

    Args:
        database: where.
        migrates: whether missing or old tables are created at the first use.
    """

    def __init__(self, database: Database, *, migrates: bool) -> None:
        self.database = database
        self._migrates = migrates
        self._schema_checked = False
        self._lead: Lead | None = None
        self._looked_at = 0

    def ensure_schema(self) -> None:
        """Check the tables' version once, and create or upgrade them where that was asked for.

        Raises:
            SchemaError: tables are missing, old, or newer than this build.
        """
        if not self._schema_checked:
            schema.ensure(self.database, migrates=self._migrates)
            self._schema_checked = True
            self.learn_queues()

    @property
    def is_checked(self) -> bool:
        """Whether the schema has been checked, and the queues' settings been read."""
        return self._schema_checked

    def migrate(self) -> bool:
        """Create or upgrade the tables; see `fencepost.store.schema.migrate`."""
        changed = schema.migrate(self.database)
        self._schema_checked = True
        self.learn_queues()
        return changed

    def schema_status(self) -> schema.SchemaStatus:
        """The schema's revision, against what this build knows."""
        return schema.status(self.database)

    def _write(self, work: Callable[[Connection], T]) -> T:
        self.ensure_schema()
        lead = self._lead
        if lead is None:
            return self.database.write(work)
        return self.database.write(lambda conn: leader.fenced(self.database, conn, lead, work))

    @property
    def _looks_first(self) -> bool:
        # The fence locks a row, so that even a pass with nothing to do would have a commit to make.
        return self.database.dialect.looks_first or self._lead is not None

    def _read(self, work: Callable[[Connection], T]) -> T:
        self.ensure_schema()
        return self.database.read(work)

    def now(self) -> Micros:
        """The database's clock: microseconds since the Unix epoch."""
        return self.database.read(self.database.now)

    # Enqueue

    def enqueue(self, new: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs in transactions of at most 1,000 jobs and 4 MiB, each committed before the next.

        Returns:
            One result per job, in order.

        Raises:
            StoreUnavailable: the database could not be asked. Jobs of earlier batches are stored; enqueueing the
                same `NewJob` objects again is harmless.
        """
        results: list[EnqueueResult] = []
        for batch in _batches(new, self.database.dialect.max_statement_bytes):
            results += self._write(
                lambda conn, batch=batch: dependencies.place_jobs(  # type: ignore[misc]
                    self.database.dialect, conn, [batch], self.database.now_and_pin(conn), fair=self._fair
                )
            )
        return results

    def enqueue_within(self, conn: Connection, new: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs in the application's own transaction, which commits or rolls back when it likes.

        A deadlock or a serialisation failure is raised as it comes: only the application can repeat its transaction.
        """
        results: list[EnqueueResult] = []
        for batch in _batches(new, self.database.dialect.max_statement_bytes):
            now = self.database.now(conn)
            results += dependencies.place_jobs(
                self.database.dialect, conn, [batch], now, shared_transaction=True, fair=self._fair
            )
        return results

    def enqueue_together(self, new: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs that wait for each other, all of them in one transaction, or none.

        Raises:
            DependencyError: one waits for a job that is not there, for itself, or in a circle.
            StoreUnavailable: the database could not be asked. Enqueueing the same objects again is harmless.
        """
        dialect = self.database.dialect
        parts = list(_batches(new, dialect.max_statement_bytes))
        return self._write(
            lambda conn: dependencies.place_jobs(dialect, conn, parts, self.database.now_and_pin(conn), fair=self._fair)
        )

    def enqueue_together_within(self, conn: Connection, new: Sequence[NewJob]) -> list[EnqueueResult]:
        """`enqueue_together` in the application's own transaction."""
        dialect = self.database.dialect
        parts = list(_batches(new, dialect.max_statement_bytes))
        now = self.database.now(conn)
        return dependencies.place_jobs(dialect, conn, parts, now, shared_transaction=True, fair=self._fair)

    @property
    def _fair(self) -> frozenset[str]:
        return self.database.known_queues.fair

    def enqueue_bounded(self, queue: str, new: Sequence[NewJob]) -> bounds.Placed:
        """Store jobs of one queue with a bound, as far as it lets them, in one transaction.

        Args:
            queue: theirs.
            new: at most 1,000 of them.

        Raises:
            QueueFull: nothing was stored: they do not fit, and the queue's overflow rejects.
        """
        declared = self.database.known_queues.bounded.get(queue)
        placed = self._write(lambda conn: bounds.place(self.database, conn, queue, new, declared))
        bounds.report_shed(queue, placed)
        return placed

    def enqueue_bounded_within(self, conn: Connection, queue: str, new: Sequence[NewJob]) -> list[EnqueueResult]:
        """`enqueue_bounded` for jobs that are stored in the application's own transaction.

        The bound is looked at in a short transaction of our own before; nothing shared is locked in the application's.
        So what it has inserted and not committed is not counted, and transactions that run at once may together exceed
        the bound. On SQLite, where it is the only writer, all happens in it and the bound holds. Nothing waits inside
        it: `overflow="wait"` rejects.

        Raises:
            QueueFull: nothing was stored.
        """
        declared = self.database.known_queues.bounded.get(queue)
        if self.database.dialect.writes_alone:
            placed = bounds.place(self.database, conn, queue, new, declared, is_shared=True)
            bounds.report_shed(queue, placed)
            return placed.results
        shed = self._write(lambda own: bounds.make_room(self.database, own, queue, new, declared))
        bounds.report_shed(queue, bounds.Placed([], shed, False, 0))
        return self.enqueue_within(conn, new)

    # Queues

    def learn_queues(self) -> None:
        """Read the queues' settings, as this process then knows them."""
        self.database.known_queues.learn(self.database.read(queues.load_settings))

    def configure_queue(self, name: str, settings: QueueSettings) -> None:
        """Write a queue's settings."""
        self._write(lambda conn: queues.save_settings(self.database, conn, name, settings))
        self.database.known_queues.written(name, settings)

    def queue_settings(self, name: str) -> QueueSettings | None:
        """A queue's settings as they stand in the database; None: it was never given any."""
        return self._read(queues.load_settings).get(name)

    def set_weight(self, queue: str, tenant: str, weight: float | None) -> None:
        """Give a tenant its weight in a queue; None: the default."""
        self._write(lambda conn: queues.set_weight(self.database, conn, queue, tenant, weight))

    def weights(self, queue: str) -> Mapping[str, float]:
        """The weights that were set in a queue, by tenant."""
        return self._read(lambda conn: queues.weights_of(conn, queue))

    # Claim and lease

    def claim(
        self,
        owner: str,
        *,
        kinds: Collection[str],
        queues: Collection[str] | None = None,
        limit: int = 1,
        lease: float | timedelta = DEFAULT_LEASE_SECONDS,
        labels: Mapping[str, str] | None = None,
    ) -> list[Claim]:
        """Claim up to `limit` ready jobs, best rank first.

        Args:
            owner: a name of your own for the holder of the leases, unique to this process.
            kinds: what you can run. Without any, nothing is asked and nothing returned.
            queues: where to look; None: all queues.
            limit: how many at most.
            lease: seconds (or timedelta) until the jobs come back unless a heartbeat renews them; default 30.
            labels: what you have, `{"gpu": "a100"}`; jobs that need others are left alone. None: nothing.

        Raises:
            ConfigurationError: an argument that cannot be.
            StoreUnavailable: the database could not be asked.
        """
        if isinstance(kinds, str) or isinstance(queues, str):
            raise ConfigurationError("kinds and queues are collections of names, not one name: kinds=['mail']")
        if not owner or len(owner) > NAME_CHARS:
            raise ConfigurationError(f"owner is a name of 1 to {NAME_CHARS} characters, not {owner!r}")
        if not kinds or limit < 1:
            return []
        self.ensure_schema()
        return claim(
            self.database,
            owner,
            kinds=frozenset(kinds),
            queues=None if queues is None else frozenset(queues),
            limit=limit,
            lease=micros(lease, "lease"),
            labels=_label_set(labels),
        )

    def heartbeat(
        self,
        owner: str,
        held: Iterable[Lease] | None = None,
        *,
        lease: float | timedelta = DEFAULT_LEASE_SECONDS,
    ) -> Heartbeat:
        """Renew leases in one statement.

        Args:
            owner: whose.
            held: those you know that you hold. None: all that the database says `owner` holds, which also keeps
                alive a claim whose answer you never received; a worker passes what it knows.
            lease: seconds (or timedelta) from now.
        """
        extension = micros(lease, "lease")

        def renew(conn: Connection) -> Heartbeat:
            until = self.database.now_and_pin(conn) + extension
            known = leases.leases_of(conn, owner) if held is None else [own for own in held if own.owner == owner]
            return leases.heartbeat(self.database.dialect, conn, known, until)

        return self._write(renew)

    def release(self, owner: str, held: Iterable[Lease] | None = None, *, is_unbegun: bool = False) -> int:
        """Give back `owner`'s leases (all, or those named) without spending the attempts: ready at once.

        With `is_unbegun` no handler of theirs has begun, and fixed starts are still to be kept.
        """
        kept = None if held is None else list(held)
        return self._write(lambda conn: leases.release(self.database, conn, owner, kept, is_unbegun=is_unbegun))

    def report_progress(self, reports: Sequence[tuple[Lease, float, str | None]]) -> None:
        """Store how far running jobs have come, while their leases hold."""
        if not reports:
            return

        def work(conn: Connection) -> None:
            self.database.now_and_pin(conn)
            leases.report_progress(self.database.dialect, conn, reports)

        self._write(work)

    # Settle

    def settle(self, settlements: Sequence[tuple[Claim, Outcome]], *, is_repetition: bool = False) -> list[bool]:
        """End or return attempts in one transaction. For each, whether its lease held; if not, nothing was written.

        Args:
            settlements: attempts and what became of them.
            is_repetition: whether this very call was made before and raised, so that it may have been written, and
                only the answer lost: a job that stands as it would have left it then counts as settled by it.
        """
        if not settlements:
            return []
        may_be_ours = [is_repetition] * len(settlements)

        def work(conn: Connection) -> list[bool]:
            now = self.database.now_and_pin(conn)
            held = settle(self.database.dialect, conn, settlements, now)
            doubtful = [place for place, answer in enumerate(held) if may_be_ours[place] and not answer]
            for place, answer in enumerate(held):
                may_be_ours[place] |= answer  # if this run's commit loses its answer
            if doubtful:
                standing = stand_as_settled(conn, [settlements[place] for place in doubtful], now)
                for place, stands in zip(doubtful, standing, strict=True):
                    held[place] = stands
            return held

        return self._write(work)

    def settle_within(self, conn: Connection, claim: Claim, outcome: Outcome) -> bool:
        """Settle in a transaction that is open already, so that its rows and the settlement commit together."""
        (held,) = settle(self.database.dialect, conn, [(claim, outcome)], self.database.now(conn))
        return held

    def _settle_one(self, claim: Claim, outcome: Outcome) -> bool:
        (held,) = self.settle([(claim, outcome)])
        return held

    def complete(self, claim: Claim, result: Any = None) -> bool:
        """The job succeeded; `result` is any plain JSON value. Returns whether the lease held.

        Raises:
            EncodingError: a result that JSON cannot carry unchanged; nothing was settled.
        """
        return self._settle_one(claim, Outcome(Verb.COMPLETE, result=_RESULT.encode(result)))

    def retry(self, claim: Claim, error: str | None = None, *, after: float | timedelta | None = None) -> bool:
        """The attempt failed: again after `after` seconds (None: the job's backoff), or failed if none is left."""
        delay = None if after is None else micros(after, "after")
        return self._settle_one(claim, Outcome(Verb.RETRY, error=error, delay=delay))

    def reschedule(self, claim: Claim, *, after: float | timedelta = 0) -> bool:
        """Use the same row once more, `after` seconds from now, with its attempts and its error cleared."""
        return self._settle_one(claim, Outcome(Verb.RESCHEDULE, delay=micros(after, "after")))

    def snooze(self, claim: Claim, after: float | timedelta) -> bool:
        """Come back in `after` seconds without spending the attempt."""
        return self._settle_one(claim, Outcome(Verb.SNOOZE, delay=micros(after, "after")))

    def abandon(self, claim: Claim, error: str, *, reason: Reason = Reason.ABANDONED) -> bool:
        """The job failed for good, whatever attempts are left."""
        return self._settle_one(claim, Outcome(Verb.ABANDON, error=error, reason=reason))

    def cancel(self, claim: Claim, error: str | None = None) -> bool:
        """The job ends as cancelled."""
        return self._settle_one(claim, Outcome(Verb.CANCEL, error=error))

    # Housekeeping

    def promote_due(self, *, batch: int = PASS_BATCH) -> int:
        """Make due jobs ready, and those whose predecessors have ended, and give the next turns in fair queues.

        Returns:
            How many moved; call again while it returns `batch` or more.
        """
        moved = 0
        for _ in range(_MOST_LEVELS):  # whoever is skipped may have successors
            if self._looks_first and not self._read(lambda conn: is_due(self.database, conn)):
                break
            due = self._write(lambda conn: promote_due(self.database, conn, batch=batch))
            moved += due.moved
            if not due.waiting and not due.ended:
                break
            moved += self._follow(due, batch)
        return moved + self.give_turns(batch=batch)

    def _follow(self, due: Due, batch: int) -> int:
        moved = 0
        if due.waiting:
            moved += self._write(lambda conn: dependencies.attach(self.database, conn, due.waiting))
        is_more = bool(due.ended)
        while is_more:
            passed, is_more = self._write(
                lambda conn: dependencies.pass_on(self.database, conn, due.ended, batch=batch)
            )
            moved += passed
        return moved

    def give_turns(self, *, batch: int = PASS_BATCH) -> int:
        """Make the jobs of fair queues ready whose tenants' turn it is, at most `batch` a queue. Returns how many."""
        given, backlogged = 0, False
        if self._read(turns.has_waiting):
            waiting = self._read(lambda conn: turns.waiting_lines(self.database, conn))
            for queue, lines in sorted(waiting.items()):
                ready, is_left = self._write(
                    lambda conn, queue=queue, lines=lines: turns.give_turns(  # type: ignore[misc]
                        self.database, conn, queue, lines, batch=batch
                    )
                )
                given += ready
                backlogged |= is_left
        self.database.turns_wait = backlogged
        return given

    @property
    def turns_wait(self) -> bool:
        """Whether jobs were left waiting for their turn at the last pass: the next one should not be long in coming."""
        return self.database.turns_wait

    def next_wake(self) -> Micros | None:
        """The earliest instant at which a job becomes due, or None."""
        return self._read(next_wake)

    def reclaim_expired(self, *, batch: int = PASS_BATCH) -> int:
        """Take back leases that ran out. Returns how many; call again while it returns `batch`."""
        if self._looks_first and not self._read(lambda conn: leases.has_expired(self.database, conn)):
            return 0
        return self._write(lambda conn: leases.reclaim_expired(self.database, conn, batch=batch))

    def wake_due(self, *, batch: int = BUCKET_BATCH) -> int:
        """Wake those who wait at buckets whose tokens have come. Returns how many; see also `Database.on_due`."""

        def look(conn: Connection) -> tuple[Micros | None, Micros]:
            return limits.next_due(conn), self.database.now(conn)

        due_at, now = self._read(look)
        if due_at is None:
            return 0
        if due_at > now:
            self.database.tell_due(due_at - now)
            return 0
        woken, due_at, now = self._write(lambda conn: limits.wake_due(self.database, conn, batch=batch))
        if due_at is not None:
            self.database.tell_due(due_at - now)
        return woken

    def next_due(self) -> Micros | None:
        """The earliest instant at which somebody is to be woken who waits for tokens, or None."""
        return self._read(limits.next_due)

    def wake_freed(self, *, batch: int = GATE_BATCH) -> int:
        """Wake jobs that wait for something that is free: what a release does at once, made good if it was not.

        A call looks at some of the gates at which jobs wait, the next one at those after them.
        """
        lines = self._read(lambda conn: waiting_lines(conn, self._looked_at, batch))
        self._looked_at = lines[-1] if len(lines) == batch else 0
        return sum(self._write(lambda conn, line=line: wake_line(self.database, conn, line)) for line in lines)  # type: ignore[misc]

    # Limits

    def declare_bucket(self, gate: Gate, name: str, per_second: float, burst: int) -> int:
        """Create or change a bucket; see `fencepost.store.limits.declare_bucket`."""
        return self._write(lambda conn: limits.declare_bucket(self.database, conn, gate, name, per_second, burst))

    def declare_capacity(self, gate: Gate, name: str, capacity: int) -> int:
        """Create or change a semaphore or a key's slots; see `fencepost.store.limits.declare_capacity`."""
        return self._write(lambda conn: limits.declare_capacity(self.database, conn, gate, name, capacity))

    def delete_limit(self, gate: Gate, name: str) -> bool:
        """Remove a declared limit. Returns whether there was one."""
        return self._write(lambda conn: limits.delete_limit(conn, gate, name))

    def list_limits(self) -> list[Limit]:
        """What is declared, by kind and name."""
        return self._read(lambda conn: limits.list_limits(self.database, conn))

    def prune(self, older_than: float | timedelta, *, batch: int = PRUNE_BATCH) -> int:
        """Delete final jobs that ended more than `older_than` (seconds or timedelta) ago, a batch a transaction.

        Returns:
            How many were deleted.
        """
        age = micros(older_than, "older_than")
        cutoff = self._read(self.database.now) - age
        total = 0
        while True:
            gone = self._write(lambda conn: retention.prune_batch(conn, cutoff, batch=batch))
            total += gone
            if gone < batch:
                break
        while self._write(lambda conn: limits.prune_idle(self.database, conn, batch=batch)) >= batch:
            pass
        return total

    def final_jobs(self, before: retention.Place, *, batch: int = PRUNE_BATCH) -> list[Final]:
        """Up to `batch` final jobs that ended before a place (instant and id), the newest first."""
        return self._read(lambda conn: retention.final_jobs(conn, before, batch=batch))

    def delete_final(self, ids: Sequence[str], until: Micros) -> int:
        """Delete these jobs, in one transaction, if they are still final and ended by `until`. Returns how many."""
        return self._write(lambda conn: retention.delete_final(conn, ids, until))

    def save_retention(self, rules: Rules) -> int:
        """Keep rules for whoever leads; see `fencepost.store.retention.save_retention`."""
        if all(self.retention_rules().get(queue, {}) == of_queue for queue, of_queue in rules.items()):
            return 0
        return self._write(lambda conn: retention.save_retention(self.database, conn, rules))

    def retention_rules(self) -> Rules:
        """What is kept of final jobs, by queue and state."""
        return self._read(retention.retention_rules)

    def has_ready(
        self, kinds: Collection[str], queues: Collection[str] | None, labels: Mapping[str, str] | None = None
    ) -> bool:
        """Whether a claim of these kinds in these queues (None: all) with these labels would find something."""
        wanted, has = None if queues is None else frozenset(queues), _label_set(labels)
        return bool(self._read(lambda conn: ready_lines(self.database, conn, frozenset(kinds), wanted, has)))

    # Leadership

    def lead(self, holder: str, *, lease: float | timedelta = DEFAULT_LEADER_LEASE_SECONDS) -> Lead | None:
        """Take the lead if nobody has it, or renew one's own. Nothing is written while somebody else leads.

        Args:
            holder: a name of your own, unique to this planner.
            lease: seconds (or timedelta) until somebody else may take it unless it is renewed; default 5.

        Returns:
            The lead, or None while somebody else has it. Its epoch is greater than before if it had to be taken anew:
            it had run out meanwhile.

        Raises:
            ConfigurationError: an argument that cannot be.
            StoreUnavailable: the database could not be asked.
        """
        if not holder or len(holder) > NAME_CHARS:
            raise ConfigurationError(f"holder is a name of 1 to {NAME_CHARS} characters, not {holder!r}")
        span = micros(lease, "lease")
        if not self._read(lambda conn: leader.is_open_to(self.database, conn, holder)):
            return None
        return self._write(lambda conn: leader.take_lead(self.database, conn, holder, span))

    def release_lead(self, lead: Lead) -> bool:
        """Give the lead up, so that another gets it at once. Returns whether it was still held."""
        return self._write(lambda conn: leader.release_lead(conn, lead))

    def fenced(self, lead: Lead) -> Store:
        """This store, every write of which first makes sure in its own transaction that `lead` holds.

        A write of it that comes too late raises LeadershipLost and has written nothing.
        """
        other = copy(self)
        other._lead = lead
        return other

    def leader(self) -> Leader | None:
        """Who leads, or led last; None where nobody ever has."""
        return self._read(leader.find_leader)

    def record_passes(self, lead: Lead, reports: Sequence[PassReport]) -> None:
        """Write down when a leader's passes last succeeded."""
        self._write(lambda conn: leader.record_passes(self.database, conn, lead.epoch, reports))

    def list_passes(self) -> list[PassRecord]:
        """When each pass last succeeded, by name."""
        return self._read(leader.list_passes)

    # Schedules

    def save_schedule(self, new: NewSchedule) -> schedules.Saved:
        """Create a schedule or bring it in step; see `fencepost.store.schedules.save_schedule`."""
        return self._write(lambda conn: schedules.save_schedule(self.database, conn, new))

    def pause_undeclared(self, modules: Collection[str], declared: Collection[str]) -> list[str]:
        """Pause what these modules declare no more; see `fencepost.store.schedules.pause_undeclared`."""
        return self._write(lambda conn: schedules.pause_undeclared(self.database, conn, modules, declared))

    def recheck_schedules(self) -> list[str]:
        """Plan again what this version can decode. Returns the names of those that it cannot."""
        return self._write(schedules.recheck_undecodable)

    def pause_schedule(self, name: str) -> bool:
        """Stop planning a schedule; its history stays. Returns whether it was being planned.

        Raises:
            ScheduleNotFound: no such schedule.
        """
        return self._write(lambda conn: schedules.pause_by_operator(self.database, conn, name))

    def resume_schedule(self, name: str) -> bool:
        """Plan a paused schedule again, from now on. Returns whether it was paused."""
        return self._write(lambda conn: schedules.resume_schedule(self.database, conn, name))

    def delete_schedule(self, name: str) -> None:
        """Remove a schedule and its cursor; its occurrences stay."""
        self._write(lambda conn: schedules.delete_schedule(conn, name))

    def delete_occurrences(self, name: str, *, keep: int, batch: int = PRUNE_BATCH) -> int:
        """Delete a schedule's final occurrences beyond the newest `keep`, a batch a transaction. Returns how many."""
        total = 0
        while True:
            gone = self._write(lambda conn: schedules.delete_occurrences(conn, name, keep=keep, batch=batch))
            total += gone
            if gone < batch:
                return total

    def get_schedule(self, name: str) -> Schedule | None:
        """One schedule, or None."""
        return self._read(lambda conn: schedules.get_schedule(conn, name))

    def list_schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return self._read(schedules.list_schedules)

    def trigger_schedule(self, name: str, arguments: str | None = None) -> EnqueueResult:
        """Make an occurrence for this moment; see `fencepost.store.schedules.trigger_schedule`."""
        job_id = new_id()  # here, so that a repetition after a lost answer makes the same one
        return self._write(lambda conn: schedules.trigger_schedule(self.database, conn, name, arguments, job_id))

    def backfill_schedule(self, name: str, first: Micros, last: Micros) -> list[str]:
        """Make the occurrences of a past range; see `fencepost.store.schedules.backfill`."""
        ids: dict[Micros, str] = {}
        return self._write(lambda conn: schedules.backfill(self.database, conn, name, first, last, ids))

    def materialise_due(self, *, batch: int = SCHEDULE_BATCH) -> int:
        """Plan the schedules whose cursor has come, one transaction a schedule.

        Returns:
            How many were due; more may be when it equals `batch`.
        """
        due = self._read(lambda conn: schedules.due_schedules(conn, self.database.now(conn), batch=batch))
        for row in due:
            self._materialise(row)
        return len(due)

    def _materialise(self, row: Any) -> None:
        try:
            self._write(lambda conn: schedules.materialise(self.database, conn, row))
        except (FencepostError, exc.SQLAlchemyError):
            raise  # of the database, or of the lead
        except Exception as error:  # a fault of this one must not keep the others from being planned
            logger.exception("The schedule %r could not be planned, and is left out until it can be.", row.name)
            text = f"It could not be planned: {type(error).__name__}: {error}. Save it anew, or upgrade fencepost."
            self._write(lambda conn: schedules.set_error(conn, row, text))

    def next_plan_at(self) -> Micros | None:
        """The earliest instant at which a schedule is to be planned, or None."""
        return self._read(schedules.next_plan_at)

    def schedule_figures(self, name: str | None = None) -> list[ScheduleFigures]:
        """How the occurrences of all schedules stand, by name, or of one; in one read."""
        return self._read(lambda conn: schedule_figures(conn, self.database.now(conn), name))

    def start_figures(self, since: Micros) -> StartFigures:
        """What became of the fixed starts of jobs that ended since then."""
        return self._read(lambda conn: start_figures(conn, since))

    def previous_success(self, name: str, before: Micros) -> Micros | None:
        """The newest instant before `before` whose occurrence succeeded, or None."""
        return self._read(lambda conn: schedules.previous_success(conn, name, before))

    # People

    def get(self, job_id: str) -> Job | None:
        """One job whole, or None."""
        return self._read(lambda conn: listing.get_job(conn, job_id))

    def result_text(self, job_id: str) -> str | None:
        """The stored result of a job as JSON text, or None."""
        return self._read(lambda conn: listing.result_text(conn, job_id))

    def results_of_predecessors(self, job_id: str) -> list[tuple[str, str | None]]:
        """What the jobs that a job waited for returned, as JSON text, each under its name, or else its id."""
        return self._read(lambda conn: dependencies.results_of(conn, job_id))

    def list_jobs(self, **filters: Any) -> list[Job]:
        """A page of jobs, newest first; see `fencepost.store.listing.list_jobs`."""
        return self._read(lambda conn: listing.list_jobs(conn, **filters))

    def list_occurrences(self, **filters: Any) -> list[Job]:
        """A page of occurrences, newest first; see `fencepost.store.listing.list_occurrences`."""
        return self._read(lambda conn: listing.list_occurrences(conn, **filters))

    def find_live(self, kind: str, key: str) -> Job | None:
        """The live job that holds the identity `(kind, key)`, or None."""
        return self._read(lambda conn: listing.find_live(conn, kind, key))

    def count_live(self, kind: str) -> int:
        """How many jobs of `kind` wait or run."""
        return self._read(lambda conn: listing.count_live(conn, kind))

    def states_of(self, ids: Sequence[str]) -> dict[str, str]:
        """The states of jobs, by id."""
        return self._read(lambda conn: listing.states_of(conn, ids)) if ids else {}

    def queue_counts(self) -> list[QueueCounts]:
        """Every queue that has live jobs, is paused or has settings."""
        return self._read(listing.queue_counts)

    def cancel_job(self, job_id: str) -> bool:
        """Cancel a job by its id; see `fencepost.store.control.cancel_job`."""
        return self._write(lambda conn: control.cancel_job(self.database, conn, job_id))

    def retry_job(self, job_id: str) -> EnqueueResult:
        """Make a final job ready again; see `fencepost.store.control.retry_job`."""
        return self._write(lambda conn: control.retry_job(self.database, conn, job_id))

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Pause or resume a queue."""
        self._write(lambda conn: control.set_paused(self.database, conn, queue, paused=paused))

    def record_worker(self, values: dict[str, Any]) -> None:
        """Write a worker's row."""
        dialect = self.database.dialect
        self._write(lambda conn: workers.record_worker(dialect, conn, values, self.database.now(conn)))

    def forget_worker(self, owner: str) -> None:
        """Remove a worker that stopped."""
        self._write(lambda conn: workers.forget_worker(conn, owner))

    def forget_silent_workers(self, older_than: float | timedelta = timedelta(days=1)) -> int:
        """Remove workers that stopped reporting more than `older_than` (seconds or timedelta) ago. Returns how many."""
        age = micros(older_than, "older_than")
        return self._write(lambda conn: workers.forget_silent_workers(conn, self.database.now(conn) - age))

    def list_workers(self) -> list[WorkerRecord]:
        """All recorded workers."""
        return self._read(workers.list_workers)

    def transaction(self) -> AbstractContextManager[Connection]:
        """A write transaction on the database, for the application's own rows."""
        self.ensure_schema()
        return self.database.transaction()

    def close(self) -> None:
        """Close the pool's connections."""
        self.database.close()


def _label_set(labels: Mapping[str, str] | None) -> LabelSet:
    return frozenset(check_labels(labels).items()) if labels is not None else NO_LABELS


def _batches(new: Sequence[NewJob], most_bytes: int) -> Iterable[Sequence[NewJob]]:
    start, size = 0, 0
    for place, job in enumerate(new):
        length = len(job.arguments)
        if place > start and (place - start >= ENQUEUE_BATCH or size + length > most_bytes):
            yield new[start:place]
            start, size = place, 0
        size += length
    if start < len(new):
        yield new[start:]
