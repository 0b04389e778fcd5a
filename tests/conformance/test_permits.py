"""Permits: S6, S7, S8, S11 and the overlap policies, on every database."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import URL, delete, select

from fencepost.job import BusyPolicy, Claim, Concurrency, Options, Priority, Reason, State
from fencepost.schedule import Every, NewSchedule, Overlap
from fencepost.store import Database, Store
from fencepost.store.tables import jobs, permits
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, job, new, overwrite, put, states

LEASE = 30


def constrained(
    store: Store, key: str = "k", slots: int = 1, busy: BusyPolicy = BusyPolicy.QUEUE, **options: Any
) -> str:
    """Enqueue a job with a concurrency key; its id."""
    return put(store, concurrency=Concurrency(key, slots, busy), **options).id


def claim_all(store: Store, owner: str = "me") -> list[Claim]:
    return store.claim(owner, kinds=["k"], limit=100, lease=LEASE)


def in_turn(store: Store, clock: VirtualClock, number: int, **options: Any) -> list[str]:
    """Jobs of one key, enqueued one after the other."""
    ids = []
    for _ in range(number):
        ids.append(constrained(store, **options))
        clock.advance(1)
    return ids


def test_a_claimed_job_has_its_permit_from_the_claim_on(store: Store, clock: VirtualClock) -> None:
    """S6: there is no instant at which it runs without; the other in the same batch does not run."""
    first, second = in_turn(store, clock, 2)
    (claim,) = claim_all(store)
    assert claim.id == first
    assert claim.fencing_token is not None
    with store.database.reading() as conn:
        (row,) = conn.execute(select(permits)).fetchall()
    assert (str(row.job_id), row.lease_token, row.token) == (first, claim.lease.token, claim.fencing_token)
    assert states(store, first, second) == ["running", "blocked"]


def test_a_job_that_is_blocked_has_spent_no_attempt(store: Store, clock: VirtualClock) -> None:
    """S6: busy under `queue`: it waits as it was."""
    _, second = in_turn(store, clock, 2)
    claim_all(store)
    blocked = job(store, second)
    assert (blocked.attempts, blocked.lease_owner, blocked.lease_until) == (0, None, None)
    assert claim_all(store) == []


def test_a_job_that_may_not_overlap_is_recorded_as_skipped(store: Store, clock: VirtualClock) -> None:
    """S7: under `skip`, when it is due and not behind the others."""
    _, second = in_turn(store, clock, 2, busy=BusyPolicy.SKIP)
    claim_all(store)
    skipped = job(store, second)
    assert (skipped.state, skipped.reason) == (State.SKIPPED, Reason.SINGLETON)


def test_a_retry_waits_for_the_permit_even_where_a_first_attempt_would_be_skipped(
    store: Store, clock: VirtualClock
) -> None:
    """S7: work that has begun is not dropped."""
    first, second = in_turn(store, clock, 2, busy=BusyPolicy.SKIP)
    (claim,) = claim_all(store)
    assert store.retry(claim, "again", after=5)
    third = constrained(store, busy=BusyPolicy.SKIP)
    (other,) = claim_all(store)
    assert other.id == third
    clock.advance(5)
    store.promote_due()
    assert claim_all(store) == []
    assert states(store, first, second, third) == ["blocked", "skipped", "running"]
    assert store.complete(other)
    assert [again.id for again in claim_all(store)] == [first]


def test_a_settlement_wakes_the_best_ranked_that_waits(store: Store, clock: VirtualClock) -> None:
    """S7: in the same transaction, and only one."""
    first, low, normal = in_turn(store, clock, 3)
    high = constrained(store, priority=Priority.HIGH)
    (claim,) = store.claim("me", kinds=["k"], limit=1, lease=LEASE)
    assert claim.id == high
    assert claim_all(store) == []
    assert states(store, first, low, normal, high) == ["blocked", "blocked", "blocked", "running"]
    assert store.complete(claim)
    assert states(store, first, low, normal, high) == ["ready", "blocked", "blocked", "succeeded"]
    (second,) = claim_all(store)
    assert second.fencing_token == (claim.fencing_token or 0) + 1


@pytest.mark.parametrize("verb", ["complete", "retry", "snooze", "abandon", "cancel", "reschedule", "release"])
def test_every_end_of_an_attempt_frees_its_permit(store: Store, clock: VirtualClock, verb: str) -> None:
    """S6: whatever becomes of the job."""
    first, second = in_turn(store, clock, 2)
    (claim,) = claim_all(store)
    match verb:
        case "complete":
            assert store.complete(claim)
        case "retry":
            assert store.retry(claim, "again", after=60)
        case "snooze":
            assert store.snooze(claim, 60)
        case "abandon":
            assert store.abandon(claim, "no")
        case "cancel":
            assert store.cancel(claim)
        case "reschedule":
            assert store.reschedule(claim, after=60)
        case "release":
            assert store.release("me") == 1
    woken = {claim.id for claim in claim_all(store)}
    assert len(woken) == 1
    assert woken <= {first, second}


def test_an_expired_permit_is_taken_over_with_a_greater_token(store: Store, clock: VirtualClock) -> None:
    """S6: and the superseded holder can neither renew, settle nor release."""
    (first,) = in_turn(store, clock, 1)
    (old,) = claim_all(store)
    clock.advance(LEASE + 1)
    second = constrained(store)
    (new,) = claim_all(store, "other")
    assert new.id == second
    assert new.fencing_token == (old.fencing_token or 0) + 1
    assert store.heartbeat("me", [old.lease], lease=LEASE).renewed == frozenset()
    assert not store.complete(old)
    assert store.release("me") == 0
    assert states(store, first, second) == ["ready", "running"]
    third = constrained(store)
    assert claim_all(store, "third") == []
    assert states(store, first, second, third) == ["blocked", "running", "blocked"]


def test_a_heartbeat_extends_the_lease_and_the_permit(store: Store, clock: VirtualClock) -> None:
    """S8: past the first lease the key is still taken; it is one lease, so neither can end without the other."""
    in_turn(store, clock, 1)
    (holder,) = claim_all(store)
    clock.advance(LEASE - 5)
    assert store.heartbeat("me", [holder.lease], lease=LEASE).renewed == {holder.id}
    second = constrained(store)
    clock.advance(LEASE - 5)
    assert claim_all(store, "other") == []
    assert states(store, second) == ["blocked"]
    clock.advance(6)
    assert store.reclaim_expired() == 1
    assert {claim.id for claim in claim_all(store, "other")} <= {holder.id, second}


def test_distinct_keys_never_contend(store: Store) -> None:
    """S7: nor does a key keep jobs without one waiting."""
    ids = {constrained(store, key=f"key {number}") for number in range(20)} | {put(store).id}
    assert {claim.id for claim in claim_all(store)} == ids


def test_a_key_with_n_slots_admits_n(store: Store, clock: VirtualClock) -> None:
    """S7: and not one more, however often it is asked."""
    ids = in_turn(store, clock, 7, slots=3)
    running = claim_all(store)
    assert [claim.id for claim in running] == ids[:3]
    assert claim_all(store) == []
    assert all(claim.fencing_token is not None for claim in running)
    for claim in running[:2]:
        assert store.complete(claim)
    assert len(claim_all(store)) == 2
    assert Counter(states(store, *ids)) == {"succeeded": 2, "running": 3, "blocked": 2}


def test_a_key_that_is_given_more_slots_admits_more_at_once(store: Store, clock: VirtualClock) -> None:
    """S7: jobs with the greater number are admitted beside the holder that came before."""
    in_turn(store, clock, 1)
    claim_all(store)
    ids = in_turn(store, clock, 3, slots=3)
    assert [claim.id for claim in claim_all(store)] == ids[:2]
    assert states(store, *ids) == ["running", "running", "blocked"]


def test_those_who_wait_are_woken_when_the_holders_row_is_gone(store: Store, clock: VirtualClock) -> None:
    """S7: slots never leak: a permit whose attempt is over is free, whatever its row says."""
    first, second = in_turn(store, clock, 2)
    claim_all(store)
    with store.transaction() as conn:
        conn.execute(delete(jobs).where(jobs.c.id == first))
    assert store.wake_freed() == 1
    assert [claim.id for claim in claim_all(store)] == [second]


def test_a_keys_token_grows_even_after_its_rows_were_pruned(store: Store, clock: VirtualClock) -> None:
    """S6: a new row starts from the clock."""
    in_turn(store, clock, 1)
    (first,) = claim_all(store)
    assert store.complete(first)
    with store.transaction() as conn:
        conn.execute(delete(permits))
    clock.advance(1)
    constrained(store)
    (second,) = claim_all(store)
    assert second.fencing_token is not None
    assert first.fencing_token is not None
    assert second.fencing_token > first.fencing_token


def test_jobs_that_wait_for_a_permit_are_not_read_by_claims(store: Store, clock: VirtualClock) -> None:
    """S7: a saturated key stands in nobody's way, and is no line of ready jobs."""
    in_turn(store, clock, 3)
    claim_all(store)
    assert not store.has_ready(["k"], None)
    plain = put(store).id
    assert [claim.id for claim in claim_all(store)] == [plain]


def test_a_cancelled_holder_frees_its_permit(store: Store, clock: VirtualClock) -> None:
    """S11: when its worker hears of it at its heartbeat."""
    first, second = in_turn(store, clock, 2)
    (claim,) = claim_all(store)
    assert store.cancel_job(first)
    assert store.heartbeat("me", [claim.lease], lease=LEASE).cancelled == {first}
    assert store.cancel(claim)
    assert states(store, first, second) == ["cancelled", "ready"]


def test_a_cancelled_holder_whose_worker_is_dead_frees_its_permit_within_two_heartbeats(
    store: Store, clock: VirtualClock
) -> None:
    """S11: the lease ends sooner once a cancellation was requested; asking twice does not shorten it again."""
    first, second = in_turn(store, clock, 2)
    claim_all(store)
    assert store.cancel_job(first)
    assert store.cancel_job(first)
    clock.advance(LEASE / 3)
    assert store.reclaim_expired() == 0
    clock.advance(LEASE / 3)
    assert store.reclaim_expired() == 1
    assert states(store, first, second) == ["cancelled", "ready"]


def test_a_waiting_job_can_be_cancelled(store: Store, clock: VirtualClock) -> None:
    """It leaves the key's line, and the next one is woken in its place."""
    first, second, third = in_turn(store, clock, 3)
    (claim,) = claim_all(store)
    assert store.cancel_job(second)
    assert store.complete(claim)
    assert states(store, first, second, third) == ["succeeded", "cancelled", "ready"]


def test_under_queue_on_success_a_job_keeps_its_permit_until_it_is_final(store: Store, clock: VirtualClock) -> None:
    """S7: through its retries."""
    first, second = in_turn(store, clock, 2, busy=BusyPolicy.QUEUE_ON_SUCCESS)
    (claim,) = claim_all(store)
    assert store.retry(claim, "again", after=10)
    assert claim_all(store) == []
    assert states(store, first, second) == ["scheduled", "blocked"]
    clock.advance(10)
    store.promote_due()
    (again,) = claim_all(store)
    assert again.id == first
    assert again.fencing_token == (claim.fencing_token or 0) + 1
    assert store.complete(again)
    assert [claim.id for claim in claim_all(store)] == [second]


def test_under_queue_on_success_a_failure_skips_those_who_wait(store: Store, clock: VirtualClock) -> None:
    """S7: what is due later starts afresh."""
    first, second, third = in_turn(store, clock, 3, busy=BusyPolicy.QUEUE_ON_SUCCESS)
    (claim,) = claim_all(store)
    assert store.abandon(claim, "broken")
    assert states(store, first, second, third) == ["failed", "skipped", "skipped"]
    assert job(store, second).reason == Reason.DEPENDENCY_FAILED
    later = constrained(store, busy=BusyPolicy.QUEUE_ON_SUCCESS)
    assert [claim.id for claim in claim_all(store)] == [later]


def test_an_expired_deadline_takes_no_permit(store: Store, clock: VirtualClock) -> None:
    """A job that will not run holds nobody up."""
    expired = constrained(store, deadline=clock.now() + SECOND)
    clock.advance(2)
    waiting = constrained(store)
    assert [claim.id for claim in claim_all(store)] == [waiting]
    assert states(store, expired) == ["skipped"]


@pytest.mark.parametrize("slots", [1, 3])
def test_racing_workers_never_exceed_a_keys_slots_and_leave_nobody_waiting(url: URL, slots: int) -> None:
    """S7: many claim and settle at once; at the end every job has run, so no wake-up was lost."""
    store = Store(Database(url), migrates=False)
    number, workers = 60, 6
    store.enqueue([new(concurrency=Concurrency(f"key {job % 2}", slots)) for job in range(number)])
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []
    lock = threading.Lock()

    def work(owner: str) -> None:
        while len(done) < number:
            for claim in store.claim(owner, kinds=["k"], limit=2, lease=60):
                assert claim.concurrency is not None
                key = claim.concurrency.key
                with lock:
                    running[key] += 1
                    most[key] = max(most[key], running[key])
                with lock:
                    running[key] -= 1
                assert store.complete(claim)
                with lock:
                    done.append(claim.id)

    with ThreadPoolExecutor(workers) as threads:
        for future in [threads.submit(work, f"worker {i}") for i in range(workers)]:
            future.result(60)
    assert len(done) == len(set(done)) == number
    assert all(count <= slots for count in most.values())
    store.close()


def scheduled(overlap: Overlap, **definition: Any) -> NewSchedule:
    return replace(NewSchedule("s", "k", "{}", Options(), Every(SECOND)), overlap=overlap, grace=0, **definition)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (Overlap.ALLOW, {"running": 3}),
        (Overlap.SKIP, {"running": 1, "skipped": 2}),
        (Overlap.QUEUE, {"running": 1, "blocked": 2}),
        (Overlap.QUEUE_ON_SUCCESS, {"running": 1, "blocked": 2}),
    ],
)
def test_an_occurrence_that_outlasts_its_period_meets_the_next_by_its_policy(
    store: Store, clock: VirtualClock, overlap: Overlap, expected: dict[str, int]
) -> None:
    """S7: each instant has its row, whatever became of it."""
    store.save_schedule(scheduled(overlap))
    for _ in range(3):
        clock.advance(1)
        store.materialise_due()
        claim_all(store)
    assert Counter(str(found.state) for found in store.list_occurrences(schedule="s")) == expected


def test_schedules_may_share_a_key(store: Store, clock: VirtualClock) -> None:
    """S7: the key is counted, not the schedule."""
    for name in ("a", "b"):
        store.save_schedule(replace(scheduled(Overlap.SKIP, permit_key="shared"), name=name))
    clock.advance(1)
    store.materialise_due()
    assert len(claim_all(store)) == 1


def test_under_skip_instants_are_skipped_until_a_dead_workers_lease_ends_and_then_it_recovers(
    store: Store, clock: VirtualClock
) -> None:
    """S6, S7: the worker was killed in the middle of an occurrence."""
    store.save_schedule(scheduled(Overlap.SKIP, timing=Every(10 * SECOND)))
    clock.advance(10)
    store.materialise_due()
    (dead,) = claim_all(store, "dead")
    clock.advance(10)
    store.materialise_due()
    assert claim_all(store) == []
    clock.advance(LEASE)
    store.materialise_due()
    recovered = claim_all(store)
    assert len(recovered) == 1
    found = Counter(str(occurrence.state) for occurrence in store.list_occurrences(schedule="s"))
    assert found["skipped"] >= 1
    assert not store.complete(dead)


def test_under_queue_on_success_a_holder_that_is_cancelled_while_it_waits_for_its_retry_skips_those_behind_it(
    store: Store, clock: VirtualClock
) -> None:
    """S7: as if it had failed while it ran."""
    first, second = in_turn(store, clock, 2, busy=BusyPolicy.QUEUE_ON_SUCCESS)
    (claim,) = claim_all(store)
    assert store.retry(claim, "boom", after=60)
    assert claim_all(store) == []
    assert store.cancel_job(first)
    assert states(store, first, second) == ["cancelled", "skipped"]
    assert job(store, second).reason == Reason.DEPENDENCY_FAILED


def test_under_queue_on_success_a_holder_that_cannot_be_decoded_any_more_skips_those_behind_it(
    store: Store, clock: VirtualClock
) -> None:
    """S7, L6."""
    first, second = in_turn(store, clock, 2, busy=BusyPolicy.QUEUE_ON_SUCCESS)
    (claim,) = claim_all(store)
    assert store.retry(claim, "boom", after=1)
    assert claim_all(store) == []
    overwrite(store, first, options="[")
    clock.advance(1)
    store.promote_due()
    store.wake_freed()
    assert claim_all(store) == []
    assert states(store, first, second) == ["failed", "skipped"]
    assert job(store, second).reason == Reason.DEPENDENCY_FAILED


def test_a_retry_by_hand_waits_where_a_first_attempt_would_be_skipped(store: Store, clock: VirtualClock) -> None:
    """S7, S10."""
    first = constrained(store, busy=BusyPolicy.SKIP)
    (claim,) = claim_all(store)
    assert store.abandon(claim, "boom")
    clock.advance(1)
    second = constrained(store, busy=BusyPolicy.SKIP)
    (running,) = claim_all(store)
    store.retry_job(first)
    assert claim_all(store) == []
    assert states(store, first, second) == ["blocked", "running"]
    assert store.complete(running)
    assert [one.id for one in claim_all(store)] == [first]
