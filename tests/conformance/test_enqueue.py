"""Enqueue and identity: J1, J2, J9, J11 and L3."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fencepost
from fencepost.job import EnqueueResult, Hold, OnConflict, Priority, Reason, State
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, new, other_stores, overwrite, promote_all, put, row, rows

RACERS = 6


def test_of_racing_enqueues_of_one_identity_one_creates_the_job_and_all_name_it(store: Store) -> None:
    """J1: never an error, never two."""
    with other_stores(store, RACERS) as others:
        for turn in range(5):
            results = at_once([partial(put, other, key=f"u{turn}") for other in others])
            assert [result.created for result in results].count(True) == 1
            assert len({result.id for result in results}) == 1
    assert len(rows(store)) == 5


def test_racing_bulk_enqueues_of_the_same_identities_in_any_order_create_each_once(store: Store) -> None:
    """J1: the order in which a batch names its identities makes no deadlock that a caller would see."""
    keys = [f"u{i}" for i in range(40)]
    shuffled = random.Random(7)
    batches = [[new(key=key) for key in shuffled.sample(keys, len(keys))] for _ in range(4)]
    with other_stores(store, len(batches)) as others:
        answers = at_once([partial(other.enqueue, batch) for other, batch in zip(others, batches, strict=True)])
    holders = {held["dedup_key"]: held["id"] for held in rows(store)}
    assert sorted(holders) == sorted(keys)
    for batch, results in zip(batches, answers, strict=True):
        assert [result.id for result in results] == [holders[job.options.key or ""] for job in batch]
    created = [result.id for results in answers for result in results if result.created]
    assert sorted(created) == sorted(holders.values())


def test_the_same_identity_twice_in_one_call_is_one_job(store: Store) -> None:
    """J1: within a batch, the first creates and the later ones name it."""
    first, other, second = store.enqueue([new(key="a"), new(), new(key="a")])
    assert first.created
    assert other.created
    assert not second.created
    assert second.id == first.id
    assert len(rows(store)) == 2


def test_an_identity_is_of_one_kind(store: Store) -> None:
    """J1: the same key of another kind is another identity, and no key is none."""
    results = [put(store, "a", key="x"), put(store, "b", key="x"), put(store, "a"), put(store, "a")]
    assert all(result.created for result in results)


@pytest.mark.parametrize(
    ("one", "two"),
    [("a", "A"), ("e", "é"), ("a", "a "), ("ss", "ß"), ("é", "e\u0301"), ("x" * 512, "x" * 511 + "y"), ("😀", "😁")],
)
def test_keys_are_compared_byte_for_byte(store: Store, one: str, two: str) -> None:
    """J1, J11: whatever the database's collation takes for equal."""
    first, second, again = put(store, key=one), put(store, key=two), put(store, key=one)
    assert first.created
    assert second.created
    assert again.id == first.id
    assert not again.created
    assert (row(store, first.id)["dedup_key"], row(store, second.id)["dedup_key"]) == (one, two)


def test_kind_and_key_do_not_run_into_each_other(store: Store) -> None:
    """J1: ("ab", "c") and ("a", "bc") are two identities."""
    assert put(store, "ab", key="c").created
    assert put(store, "a", key="bc").created


def test_results_come_in_the_order_of_the_jobs_whatever_their_shape(store: Store) -> None:
    """J1: one result a job, in order, although jobs of one shape are inserted together."""
    held = put(store, key="held").id
    batch = [
        new("a"),
        new("b", delay=60 * SECOND),
        new("a", key="held"),
        new("k", key="held"),
        new("c", tags=("x",), tenant="t"),
        new("a", priority=Priority.HIGH),
        new("k", key="free"),
    ]
    results = store.enqueue(batch)
    assert [result.id for result in results] == [held if job is batch[3] else job.id for job in batch]
    assert [result.created for result in results] == [job is not batch[3] for job in batch]


def test_a_bulk_of_several_batches_is_stored_whole_and_runs_in_its_order(app: fencepost.App) -> None:
    """J11: more than one transaction's worth of rows and of bytes."""
    store = app.store
    batch = [new(arguments=f'{{"n":{n},"pad":"{"x" * (9_000 if n % 3 else 0)}"}}') for n in range(1_500)]
    results = store.enqueue(batch)
    assert [result.id for result in results] == [job.id for job in batch]
    assert all(result.created for result in results)
    claimed = [claim for _ in range(3) for claim in store.claim("me", kinds=["k"], limit=500)]
    assert [(claim.id, claim.arguments) for claim in claimed] == [(job.id, job.arguments) for job in batch]


def test_nothing_to_enqueue_asks_nothing(store: Store) -> None:
    """J1: no jobs, no statement, no result."""
    assert store.enqueue([]) == []


def test_a_running_job_holds_its_identity_and_a_settled_one_releases_it_at_once(store: Store) -> None:
    """J2."""
    first = put(store, key="a").id
    claim = claim_one(store)
    assert put(store, key="a").id == first
    assert store.complete(claim)
    second = put(store, key="a")
    assert second.created
    assert second.id != first


@pytest.mark.parametrize("verb", [Verb.COMPLETE, Verb.ABANDON, Verb.CANCEL, Verb.SKIP])
def test_every_final_outcome_releases_the_identity(store: Store, verb: Verb) -> None:
    """J2: whatever the end."""
    put(store, key="a")
    assert store.settle([(claim_one(store), Outcome(verb, error="e"))]) == [True]
    assert put(store, key="a").created


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.SNOOZE, Verb.RESCHEDULE, Verb.RELEASE])
@pytest.mark.parametrize("delay", [0, 60 * SECOND])
def test_a_job_that_comes_back_keeps_its_identity(store: Store, verb: Verb, delay: int) -> None:
    """J2: it is live, ready or scheduled."""
    first = put(store, key="a").id
    assert store.settle([(claim_one(store), Outcome(verb, error="e", delay=delay))]) == [True]
    assert put(store, key="a") == fencepost.job.EnqueueResult(first, created=False)


def test_cancelling_or_expiring_a_waiting_job_releases_its_identity(store: Store, clock: VirtualClock) -> None:
    """J2: final without having run."""
    store.cancel_job(put(store, key="a").id)
    late = put(store, key="a", deadline=clock.now() + SECOND)
    assert late.created
    clock.advance(2)
    assert store.claim("me", kinds=["k"]) == []
    assert put(store, key="a").created


def test_a_queued_hold_ends_for_good_when_the_job_first_starts(store: Store) -> None:
    """J2: a retry of the started job runs without the identity, beside the newer holder."""
    first = put(store, key="a", hold=Hold.QUEUED)
    assert not put(store, key="a", hold=Hold.QUEUED).created
    claim = claim_one(store)
    second = put(store, key="a", hold=Hold.QUEUED)
    assert second.created
    assert store.retry(claim, "again", after=0)
    assert {claim.id for claim in store.claim("me", kinds=["k"], limit=5)} == {first.id, second.id}


def test_while_queued_a_burst_leads_to_one_more_run_that_sees_the_last_value(store: Store) -> None:
    """J2: what came while the first was running is not lost with it, and is one job."""
    values = [put(store, arguments='"v1"', key="acct-7", hold=Hold.QUEUED)]
    running = claim_one(store)
    values += [
        put(store, arguments=f'"v{n}"', key="acct-7", hold=Hold.QUEUED, on_conflict=OnConflict.REPLACE)
        for n in (2, 3, 4)
    ]
    assert [value.created for value in values] == [True, True, False, False]
    assert running.arguments == '"v1"'
    assert store.complete(running)
    last = claim_one(store)
    assert last.arguments == '"v4"'
    assert store.complete(last)
    assert store.claim("me", kinds=["k"]) == []


def test_replacing_with_a_delay_debounces(store: Store, clock: VirtualClock) -> None:
    """J1: ten calls 200 ms apart with a delay of a second are one run, a second after the tenth, with its payload."""
    for n in range(10):
        put(store, arguments=f"{n}", key="a", delay=SECOND, on_conflict=OnConflict.REPLACE)
        promote_all(store)
        assert store.claim("me", kinds=["k"]) == []
        clock.advance(0.2)
    clock.advance(0.799999)
    assert store.promote_due() == 0
    clock.advance(0.000001)
    assert store.promote_due() == 1
    assert claim_one(store).arguments == "9"
    assert len(rows(store)) == 1


def test_keeping_leaves_the_holder_as_it_is(store: Store) -> None:
    """J1: the default."""
    first = put(store, arguments="1", key="a", queue="one", tags=("x",))
    before = row(store, first.id)
    result = put(store, arguments="2", key="a", queue="two", tags=("y",), priority=Priority.HIGH)
    assert (result.id, result.created, result.replaced) == (first.id, False, False)
    assert row(store, first.id) == before


def test_replacing_gives_a_waiting_holder_everything_new_but_its_id(store: Store, clock: VirtualClock) -> None:
    """J1: arguments, options and time; what is not asked for anew goes back to its default."""
    first = put(store, arguments="1", key="a", queue="one", tags=("x",), tenant="t", timeout_seconds=5.0)
    clock.advance(1)
    wanted = new(
        arguments="2", key="a", queue="two", priority=Priority.HIGH, max_attempts=3, on_conflict=OnConflict.REPLACE
    )
    (result,) = store.enqueue([wanted])
    assert (result.id, result.created, result.replaced) == (first.id, False, True)
    assert store.claim("me", kinds=["k"], queues=["one"]) == []
    claim = claim_one(store, queues=["two"])
    assert (claim.arguments, claim.priority, claim.max_attempts) == ("2", Priority.HIGH, 3)
    assert (claim.tags, claim.tenant, claim.timeout_seconds) == ((), None, None)


def test_replacing_a_job_that_waits_for_its_retry_gives_it_a_fresh_start(store: Store) -> None:
    """J1: the new arguments did not fail; they have all their attempts."""
    put(store, key="a")
    assert store.retry(claim_one(store), "broken", after=60)
    assert put(store, arguments="2", key="a", on_conflict=OnConflict.REPLACE).replaced
    claim = claim_one(store)
    job = store.get(claim.id)
    assert job is not None
    assert (claim.arguments, claim.attempt, job.last_error, claim.reason) == ("2", 1, None, None)


def test_replacing_leaves_a_running_holder_alone(store: Store) -> None:
    """J1, J2: an attempt does not have its arguments changed under it."""
    put(store, arguments="1", key="a")
    claim = claim_one(store)
    before = row(store, claim.id)
    result = put(store, arguments="2", key="a", on_conflict=OnConflict.REPLACE)
    assert (result.id, result.created, result.replaced) == (claim.id, False, False)
    assert row(store, claim.id) == before


def test_replacing_races_with_a_claim_and_no_attempt_sees_half_of_it(store: Store) -> None:
    """J1, J3: either the claim has the new arguments, or the holder was left alone or a new job was made."""
    with other_stores(store, 2) as (one, two):
        for turn in range(15):
            put(store, arguments='"old"', key=f"u{turn}")
            calls: list[Callable[[], Any]] = [
                partial(put, one, arguments='"new"', key=f"u{turn}", on_conflict=OnConflict.REPLACE),
                partial(two.claim, "me", kinds=["k"]),
            ]
            result, claims = at_once(calls)
            (claim,) = claims or two.claim("me", kinds=["k"])  # it passes over a row that is being replaced
            assert result == fencepost.job.EnqueueResult(claim.id, created=False, replaced=claim.arguments == '"new"')
            assert store.complete(claim)


def test_enqueueing_the_same_built_job_again_stores_it_once(store: Store) -> None:
    """L3: a commit whose answer was lost may be repeated, whatever became of the job since."""
    plain, keyed = new(), new(key="a")
    first = store.enqueue([plain, keyed])
    assert store.enqueue([plain, keyed]) == first
    for claim in store.claim("me", kinds=["k"], limit=5):
        assert store.enqueue([plain, keyed]) == first
        assert store.complete(claim)
    assert store.enqueue([plain, keyed]) == first
    assert {found["state"] for found in rows(store)} == {State.SUCCEEDED}
    assert len(rows(store)) == 2


def test_a_repeated_enqueue_whose_identity_has_passed_on_does_not_come_back(store: Store) -> None:
    """L3, J1: the first try's job has ended and a newer one holds the identity."""
    late = new(key="a")
    store.enqueue([late])
    assert store.complete(claim_one(store))
    newer = put(store, key="a")
    (again,) = store.enqueue([late])
    assert not any(found["id"] == late.id and found["live_key"] for found in rows(store))
    assert len(rows(store)) == 2
    assert again.id in (late.id, newer.id)


def test_find_live_and_count_live_see_what_waits_and_runs_and_nothing_that_has_ended(store: Store) -> None:
    """J9."""
    scheduled = put(store, key="scheduled", delay=60 * SECOND).id
    put(store, key="other", kind="other")
    running = put(store, key="running").id
    claim = claim_one(store)
    ready = put(store, key="ready").id
    for key, job_id in (("scheduled", scheduled), ("running", running), ("ready", ready)):
        found = store.find_live("k", key)
        assert found is not None
        assert (found.id, found.state) == (job_id, key)
    assert store.count_live("k") == 3
    assert store.find_live("k", "other") is None
    assert store.complete(claim)
    assert store.find_live("k", "running") is None
    assert store.count_live("k") == 2
    for waiting in (scheduled, ready):
        assert store.cancel_job(waiting)
    assert store.count_live("k") == 0
    assert store.count_live("other") == 1


def test_find_live_sees_a_blocked_job(store: Store) -> None:
    """J9: a job that waits for another is live."""
    job_id = put(store, key="a").id
    overwrite(store, job_id, state=State.BLOCKED, line=None, rank=None)
    found = store.find_live("k", "a")
    assert found is not None
    assert found.state is State.BLOCKED


def test_a_retried_job_takes_its_identity_again_unless_a_newer_one_holds_it(store: Store) -> None:
    """J1: by the index, as an enqueue would."""
    first = put(store, key="a")
    store.abandon(claim_one(store), "no")
    newer = put(store, key="a")
    before = row(store, first.id)
    assert store.retry_job(first.id) == fencepost.job.EnqueueResult(newer.id, created=False)
    assert row(store, first.id) == before
    assert store.cancel_job(newer.id)
    assert store.retry_job(first.id) == fencepost.job.EnqueueResult(first.id, created=True)
    assert not put(store, key="a").created
    claim = claim_one(store)
    assert (claim.id, claim.attempt) == (first.id, 1)


def test_a_retried_job_that_held_its_identity_only_while_queued_holds_it_again_until_it_starts(store: Store) -> None:
    """J1, J2: it waits once more, so what is enqueued meanwhile is the same work."""
    first = put(store, key="a", hold=Hold.QUEUED)
    store.abandon(claim_one(store), "no")
    assert store.retry_job(first.id).created
    assert not put(store, key="a", hold=Hold.QUEUED).created
    claim_one(store)
    assert put(store, key="a", hold=Hold.QUEUED).created


def test_only_failed_cancelled_and_skipped_jobs_are_retried(store: Store) -> None:
    """J6: a live or succeeded one is refused, an unknown one is not found."""
    job_id = put(store).id
    for settle in (None, store.complete):
        with pytest.raises(fencepost.InvalidTransition, match=job_id):
            store.retry_job(job_id)
        if settle is not None:
            continue
        claim = claim_one(store)
        with pytest.raises(fencepost.InvalidTransition, match="running"):
            store.retry_job(job_id)
        assert store.complete(claim)
    with pytest.raises(fencepost.JobNotFound):
        store.retry_job(new().id)


def test_a_retried_job_starts_afresh(store: Store, clock: VirtualClock) -> None:
    """J6: its attempts, its deadline and a cancellation requested before are gone; its history is not."""
    job_id = put(store, max_attempts=2, deadline=clock.now() + 10 * SECOND).id
    claim = claim_one(store)
    assert store.cancel_job(job_id)
    assert store.retry(claim, "e1")
    clock.advance(60)
    assert store.retry_job(job_id).created
    claim = claim_one(store)
    job = store.get(job_id)
    assert job is not None
    assert (claim.attempt, claim.max_attempts, claim.deadline) == (1, 2, None)
    assert (job.cancel_requested, job.finished_at, [entry.reason for entry in job.history]) == (
        False,
        None,
        [Reason.CANCELLED],
    )


def test_repeating_a_replacing_enqueue_leaves_the_newer_holder_alone(store: Store) -> None:
    """L3: its job was stored and has ended; what holds the identity now is newer work."""
    older = new(key="a", on_conflict=OnConflict.REPLACE, arguments='{"from": "older"}')
    store.enqueue([older])
    assert store.complete(claim_one(store))
    newer = new(key="a", on_conflict=OnConflict.REPLACE, arguments='{"from": "newer"}')
    store.enqueue([newer])
    assert store.enqueue([older]) == [EnqueueResult(older.id, created=True)]
    assert row(store, newer.id)["arguments"] == '{"from": "newer"}'
