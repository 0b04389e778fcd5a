"""Random histories of several workers against a small model of what a queue is.

The model knows nothing of SQL, ranks or indexes: a list of jobs, each with its state, and for each call what it must
answer. After every step the tables are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fencepost.errors import InvalidTransition
from fencepost.job import Claim, EnqueueResult, Hold, NewJob, OnConflict, Priority
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, clear, new, rows

OWNERS = st.sampled_from(["w1", "w2", "w3"])
PAUSES = st.sampled_from([0, 0, 5, 60])
PLACE = st.integers(0, 200)
LEASE = 30
FINAL = ("succeeded", "failed", "cancelled", "skipped")
WAITING = ("ready", "scheduled")
RETURNING = (Verb.RETRY, Verb.RELEASE, Verb.SNOOZE, Verb.RESCHEDULE)


@dataclass
class ModelJob:
    """One job as the promises have it."""

    built: NewJob
    arguments: str
    priority: Priority
    hold: Hold
    max_attempts: int
    created: int
    run_at: int
    state: str = "ready"
    since: int = 0
    """The instant that decides its place among ready jobs of its priority."""
    wakes: int | None = None
    attempts: int = 0
    token: int = 0
    owner: str | None = None
    until: int | None = None
    holds: bool = False
    is_cancelled: bool = False
    ended: int | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    def wait(self, due: int, now: int) -> None:
        self.owner = self.until = None
        if due > now:
            self.state, self.wakes = "scheduled", due
        else:
            self.state, self.since, self.wakes = "ready", due, None

    def end(self, state: str, now: int) -> None:
        self.state, self.ended, self.holds = state, now, False
        self.owner = self.until = self.wakes = None

    def attempt_ended(self, verb: Verb, delay: int, now: int) -> None:
        """What the table of outcomes says."""
        is_spent = self.attempts >= self.max_attempts
        match verb:
            case Verb.COMPLETE:
                self.end("succeeded", now)
            case Verb.ABANDON:
                self.end("failed", now)
            case Verb.CANCEL:
                self.end("cancelled", now)
            case Verb.SKIP:
                self.end("skipped", now)
            case Verb.RETRY | Verb.RECLAIM if is_spent:
                self.end("failed", now)
            case _ if self.is_cancelled:
                self.end("cancelled", now)
            case Verb.RETRY:
                self.wait(now + delay, now)
            case Verb.RECLAIM:
                self.wait(min(self.run_at, now), now)
            case Verb.RELEASE:
                self.attempts -= 1
                self.wait(min(self.run_at, now), now)
            case Verb.SNOOZE:
                self.attempts -= 1
                self.wait(now + delay, now)
            case Verb.RESCHEDULE:
                self.attempts = 0
                self.run_at = now + delay
                self.wait(now + delay, now)


class Queue(RuleBasedStateMachine):
    """Drives a store and the model side by side."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        super().__init__()
        clear(store)
        self.store = store
        self.clock = clock
        self.jobs: dict[str, ModelJob] = {}
        self.built: list[NewJob] = []
        self.claims: list[Claim] = []

    @property
    def now(self) -> int:
        return self.clock.now()

    def holder(self, key: str | None) -> ModelJob | None:
        return next((job for job in self.jobs.values() if key and job.holds and job.built.options.key == key), None)

    def known(self, place: int) -> ModelJob | None:
        return list(self.jobs.values())[place % len(self.jobs)] if self.jobs else None

    def held(self, claim: Claim) -> ModelJob | None:
        job = self.jobs.get(claim.id)
        is_held = job is not None and (job.state, job.owner, job.token) == (
            "running",
            claim.lease.owner,
            claim.lease.token,
        )
        return job if is_held else None

    def chosen(self, places: list[int]) -> list[Claim]:
        """Claims of any age; the newest are likelier to hold."""
        distinct = {place % len(self.claims) for place in places} if self.claims else set()
        return [self.claims[-1 - place] for place in sorted(distinct)]

    # What producers do

    @rule(
        key=st.sampled_from([None, "a", "b"]),
        hold=st.sampled_from(Hold),
        on_conflict=st.sampled_from(OnConflict),
        delay=PAUSES,
        priority=st.sampled_from([Priority.HIGH, Priority.NORMAL]),
        max_attempts=st.integers(1, 3),
    )
    def enqueue(
        self, key: str | None, hold: Hold, on_conflict: OnConflict, delay: int, priority: Priority, max_attempts: int
    ) -> None:
        job = new(
            arguments=str(len(self.built)),
            key=key,
            hold=hold,
            on_conflict=on_conflict,
            delay=delay * SECOND or None,
            priority=priority,
            max_attempts=max_attempts,
        )
        self.built.append(job)
        holder = self.holder(key)
        if holder is None:
            expected = EnqueueResult(job.id, created=True)
            due = self.now + delay * SECOND
            made = ModelJob(job, job.arguments, priority, hold, max_attempts, self.now, due, holds=key is not None)
            made.wait(due, self.now)
            self.jobs[job.id] = made
        elif on_conflict is OnConflict.KEEP or holder.state == "running":
            expected = EnqueueResult(holder.built.id, created=False)
        else:
            expected = EnqueueResult(holder.built.id, created=False, replaced=True)
            due = self.now + delay * SECOND
            holder.arguments, holder.priority, holder.hold = job.arguments, priority, hold
            holder.max_attempts, holder.attempts = max_attempts, 0
            holder.run_at = due if delay else holder.created
            holder.wait(due, self.now)
        assert self.store.enqueue([job]) == [expected]

    @rule(place=PLACE)
    def enqueue_once_more(self, place: int) -> None:
        """L3: the same built job again, whatever became of it."""
        stored = [job for job in self.built if job.id in self.jobs]
        if not stored:
            return
        job = stored[place % len(stored)]
        assert self.store.enqueue([job]) == [EnqueueResult(job.id, created=True)]

    # What workers do

    @rule(owner=OWNERS, limit=st.integers(1, 4))
    def claim(self, owner: str, limit: int) -> None:
        claims = self.store.claim(owner, kinds=["k"], limit=limit, lease=LEASE)
        ready = [job for job in self.jobs.values() if job.state == "ready"]
        order = sorted((job.priority is Priority.NORMAL, job.since) for job in ready)[:limit]
        taken = [self.jobs[claim.id] for claim in claims]
        assert [(job.priority is Priority.NORMAL, job.since) for job in taken] == order
        assert len({claim.id for claim in claims}) == len(claims)
        for claim, job in zip(claims, taken, strict=True):
            assert job.state == "ready"
            job.state, job.owner, job.until = "running", owner, self.now + LEASE * SECOND
            job.attempts += 1
            job.token += 1
            job.holds = job.holds and job.hold is Hold.LIVE
            assert (claim.arguments, claim.attempt, claim.max_attempts) == (
                job.arguments,
                job.attempts,
                job.max_attempts,
            )
            assert (claim.lease.owner, claim.lease.token) == (owner, job.token)
        self.claims += claims

    @rule(
        group=st.lists(
            st.tuples(
                st.integers(0, 15),
                st.sampled_from([Verb.COMPLETE, *RETURNING, Verb.ABANDON, Verb.CANCEL, Verb.SKIP]),
                PAUSES,
            ),
            min_size=1,
            max_size=4,
        )
    )
    def settle(self, group: list[tuple[int, Verb, int]]) -> None:
        """J5: of a group with stale ones in it, exactly those that hold their lease are written."""
        settlements: dict[int, tuple[Claim, Outcome]] = {}
        for place, verb, delay in group:
            if self.claims:
                claim = self.claims[-1 - place % len(self.claims)]
                settlements[id(claim)] = (claim, Outcome(verb, error="e", delay=delay * SECOND))
        expected = []
        for claim, outcome in settlements.values():
            job = self.held(claim)
            expected.append(job is not None)
            if job is not None:
                job.attempt_ended(outcome.verb, outcome.delay or 0, self.now)
        assert self.store.settle(list(settlements.values())) == expected

    @rule(owner=OWNERS, places=st.lists(st.integers(0, 15), max_size=4))
    def heartbeat(self, owner: str, places: list[int]) -> None:
        claims = self.chosen(places)
        renewed: set[str] = set()
        cancelled: set[str] = set()
        for claim in claims:
            job = self.held(claim)
            if job is not None and job.owner == owner:
                job.until = self.now + LEASE * SECOND
                renewed.add(claim.id)
                cancelled |= {claim.id} if job.is_cancelled else set()
        beat = self.store.heartbeat(owner, [claim.lease for claim in claims], lease=LEASE)
        assert (set(beat.renewed), set(beat.cancelled)) == (renewed, cancelled)

    @rule(owner=OWNERS, places=st.none() | st.lists(st.integers(0, 15), max_size=3))
    def release(self, owner: str, places: list[int] | None) -> None:
        claims = None if places is None else self.chosen(places)
        given = 0
        for job in self.jobs.values():
            is_named = claims is None or any(self.held(claim) is job for claim in claims)
            if job.state == "running" and job.owner == owner and is_named:
                job.attempt_ended(Verb.RELEASE, 0, self.now)
                given += 1
        assert self.store.release(owner, None if claims is None else [claim.lease for claim in claims]) == given

    # What the planner and people do

    @rule()
    def reclaim(self) -> None:
        dead = [job for job in self.jobs.values() if job.until is not None and job.until <= self.now]
        for job in dead:
            job.attempt_ended(Verb.RECLAIM, 0, self.now)
        assert self.store.reclaim_expired() == len(dead)

    @rule()
    def promote(self) -> None:
        due = [job for job in self.jobs.values() if job.wakes is not None and job.wakes <= self.now]
        for job in due:
            job.wait(job.wakes or 0, self.now)
        assert self.store.promote_due() == len(due)

    @rule(age=st.sampled_from([0, 60]))
    def prune(self, age: int) -> None:
        old = [id_ for id_, job in self.jobs.items() if job.ended is not None and job.ended < self.now - age * SECOND]
        for job_id in old:
            del self.jobs[job_id]
        assert self.store.prune(age, batch=2) == len(old)

    @rule(place=PLACE)
    def cancel(self, place: int) -> None:
        job = self.known(place)
        if job is None:
            return
        expected = not job.is_final
        if job.state in WAITING:
            job.end("cancelled", self.now)
        elif job.until is not None and job.until > self.now and not job.is_cancelled:
            job.until -= (job.until - self.now) // 3
        job.is_cancelled = job.is_cancelled or expected
        assert self.store.cancel_job(job.built.id) is expected

    @rule(place=PLACE)
    def retry(self, place: int) -> None:
        job = self.known(place)
        if job is None:
            return
        if job.state in ("succeeded", "ready", "scheduled", "running"):
            with pytest.raises(InvalidTransition):
                self.store.retry_job(job.built.id)
            return
        key = job.built.options.key
        holder = self.holder(key)
        if holder is not None:
            assert self.store.retry_job(job.built.id) == EnqueueResult(holder.built.id, created=False)
            return
        job.attempts, job.ended, job.is_cancelled, job.holds = 0, None, False, key is not None
        job.run_at = self.now
        job.wait(self.now, self.now)
        assert self.store.retry_job(job.built.id) == EnqueueResult(job.built.id, created=True)

    @rule(seconds=st.sampled_from([0.000001, 1, 10, LEASE, 61]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # What must be true after each

    @invariant()
    def the_tables_are_as_the_model(self) -> None:
        found = {stored["id"]: self.shape(stored) for stored in rows(self.store)}
        assert found == {
            job_id: {
                "state": job.state,
                "attempts": job.attempts,
                "max_attempts": job.max_attempts,
                "token": job.token,
                "owner": job.owner,
                "until": job.until,
                "wakes": job.wakes,
                "ended": job.ended,
                "holds": job.holds,
                "is_cancelled": job.is_cancelled,
                "arguments": job.arguments,
                "is_ranked": job.state == "ready",
            }
            for job_id, job in self.jobs.items()
        }

    @invariant()
    def live_jobs_are_found_and_counted(self) -> None:
        """J1, J9: an identity has at most one holder, and that one is found."""
        live = [job for job in self.jobs.values() if not job.is_final]
        assert self.store.count_live("k") == len(live)
        for key in ("a", "b"):
            holders = [job for job in self.jobs.values() if job.holds and job.built.options.key == key]
            assert len(holders) <= 1
            found = self.store.find_live("k", key)
            assert (None if found is None else found.id) == (holders[0].built.id if holders else None)

    @staticmethod
    def shape(stored: Any) -> dict[str, Any]:
        return {
            "state": stored["state"],
            "attempts": stored["attempts"],
            "max_attempts": stored["max_attempts"],
            "token": stored["lease_token"],
            "owner": stored["lease_owner"],
            "until": stored["lease_until"],
            "wakes": stored["wake_at"],
            "ended": stored["finished_at"],
            "holds": stored["live_key"] is not None,
            "is_cancelled": stored["cancel_requested_at"] is not None,
            "arguments": stored["arguments"],
            "is_ranked": stored["rank"] is not None,
        }


def test_random_histories_of_several_workers_keep_every_promise(store: Store, clock: VirtualClock) -> None:
    """J1 to J10 together: states, attempts, identities and answers are those of the model after every step."""
    is_cheap = store.database.dialect.name == "sqlite"
    bounded = settings(
        max_examples=25 if is_cheap else 10,
        stateful_step_count=40,
        deadline=None,
        # On a server a smaller history is not worth the minutes that its search takes.
        phases=[phase for phase in Phase if is_cheap or phase not in (Phase.shrink, Phase.explain)],
        suppress_health_check=list(HealthCheck),
    )
    machine: Any = lambda: Queue(store, clock)  # noqa: E731 - Hypothesis asks for a class or a function like one
    run_state_machine_as_test(machine, settings=bounded)
