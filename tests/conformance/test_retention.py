"""Retention: J10."""

from __future__ import annotations

import pytest

from fencepost.job import State
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, new, other_stores, put, rows, statements

DAY = 86_400


def test_only_final_jobs_that_ended_before_the_cutoff_are_deleted(store: Store, clock: VirtualClock) -> None:
    """J10: the age counts from the end, not from the beginning."""
    old = []
    for verb in (Verb.COMPLETE, Verb.ABANDON, Verb.CANCEL, Verb.SKIP):
        old.append(put(store).id)
        assert store.settle([(claim_one(store), Outcome(verb, error="e"))]) == [True]
    long_lived = put(store).id
    claim = claim_one(store, lease=30 * DAY)
    clock.advance(7 * DAY)
    assert store.complete(claim)
    assert store.prune(7 * DAY) == 0, "exactly as old as the cutoff is not older"
    clock.advance(0.000001)
    assert store.prune(7 * DAY) == len(old)
    assert [found["id"] for found in rows(store)] == [long_lived]


def test_a_live_job_is_not_old_however_long_it_waits(store: Store, clock: VirtualClock) -> None:
    """J10: scheduled for next year, ready for a month, running for a week."""
    waiting = {put(store, delay=365 * DAY * SECOND).id, put(store).id}
    running = claim_one(store, lease=365 * DAY)
    clock.advance(60 * DAY)
    assert store.prune(0) == 0
    assert {found["id"] for found in rows(store)} == waiting
    assert running.id in waiting


def test_a_final_job_that_was_retried_is_live_again_and_stays(store: Store, clock: VirtualClock) -> None:
    """J10."""
    job_id = put(store).id
    assert store.abandon(claim_one(store), "e")
    clock.advance(30 * DAY)
    assert store.retry_job(job_id).created
    assert store.prune(1) == 0
    assert store.states_of([job_id]) == {job_id: State.READY}


def test_pruning_goes_in_bounded_batches(store: Store, clock: VirtualClock) -> None:
    """J10: one transaction a batch, until all is done."""
    store.enqueue([new() for _ in range(23)])
    claims = store.claim("me", kinds=["k"], limit=23)
    assert all(store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims]))
    clock.advance(10)
    with statements(store) as sent:
        assert store.prune(1, batch=10) == 23
    assert sum(statement.startswith("DELETE") for statement in sent) == 3
    assert rows(store) == []


def test_two_that_prune_at_once_delete_each_job_once(store: Store, clock: VirtualClock) -> None:
    """J10: their counts add up."""
    store.enqueue([new() for _ in range(60)])
    claims = store.claim("me", kinds=["k"], limit=60)
    assert all(store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims]))
    clock.advance(10)
    with other_stores(store, 2) as (one, two):
        counts = at_once([lambda: one.prune(1, batch=7), lambda: two.prune(1, batch=7)])
    # Each passes over what the other is deleting, and may find nothing while the other's last batch is open.
    assert sum(counts) + store.prune(1) == 60
    assert rows(store) == []


@pytest.mark.parametrize("age", [0, 1])
def test_pruning_an_empty_table_deletes_nothing(store: Store, age: int) -> None:
    """J10."""
    assert store.prune(age) == 0
