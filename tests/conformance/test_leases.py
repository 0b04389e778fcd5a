"""Leases after the claim: J7 and J8."""

from __future__ import annotations

import threading

import pytest

import fencepost
from fencepost.job import Reason, State
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, claim_one, new, put, row, statements


def test_a_heartbeat_renews_the_leases_it_names_in_one_statement(store: Store, clock: VirtualClock) -> None:
    """J7: those, and no others of the same owner."""
    store.enqueue([new() for _ in range(5)])
    claims = store.claim("me", kinds=["k"], limit=5, lease=30)
    before = row(store, claims[4].id)
    clock.advance(20)
    with statements(store) as sent:
        beat = store.heartbeat("me", [claim.lease for claim in claims[:4]], lease=30)
    assert beat.renewed == {claim.id for claim in claims[:4]}
    assert beat.cancelled == frozenset()
    assert sum(statement.startswith("UPDATE") for statement in sent) == 1
    assert {row(store, claim.id)["lease_until"] for claim in claims[:4]} == {clock.now() + 30 * SECOND}
    assert row(store, claims[4].id) == before


def test_a_heartbeat_without_leases_renews_nothing(store: Store) -> None:
    """J7."""
    put(store)
    claim = claim_one(store)
    before = row(store, claim.id)
    assert store.heartbeat("me", []).renewed == frozenset()
    assert row(store, claim.id) == before


def test_a_heartbeat_that_names_none_renews_all_that_the_owner_holds(store: Store, clock: VirtualClock) -> None:
    """J7: and nothing of another owner's."""
    store.enqueue([new() for _ in range(3)])
    mine = store.claim("me", kinds=["k"], limit=2)
    theirs = claim_one(store, owner="they")
    before = row(store, theirs.id)
    clock.advance(5)
    assert store.heartbeat("me").renewed == {claim.id for claim in mine}
    assert row(store, theirs.id) == before


def test_a_heartbeat_with_a_lease_that_passed_on_renews_nothing(store: Store) -> None:
    """J5, J7: wrong token, wrong owner, settled, and the successor's lease under the same owner."""
    store.enqueue([new() for _ in range(4)])
    old_token, foreign, settled, kept = store.claim("me", kinds=["k"], limit=4)
    assert store.snooze(old_token, 0)
    successor = claim_one(store)
    assert successor.id == old_token.id
    assert store.complete(settled)
    before = [row(store, claim.id) for claim in (old_token, foreign, settled)]
    stranger = foreign.lease._replace(owner="you")
    beat = store.heartbeat("me", [old_token.lease, stranger, settled.lease, kept.lease], lease=99)
    assert beat.renewed == {kept.id}
    assert [row(store, claim.id) for claim in (old_token, foreign, settled)] == before


def test_a_heartbeat_tells_which_attempts_are_to_stop(store: Store) -> None:
    """J7: cancelling a running job reaches its worker with the renewal."""
    store.enqueue([new(), new()])
    wanted, unwanted = store.claim("me", kinds=["k"], limit=2)
    assert store.cancel_job(unwanted.id)
    beat = store.heartbeat("me", [wanted.lease, unwanted.lease])
    assert beat.renewed == {wanted.id, unwanted.id}
    assert beat.cancelled == {unwanted.id}


def test_only_expired_leases_are_reclaimed_and_the_count_stays(store: Store, clock: VirtualClock) -> None:
    """J7: at the instant of expiry, not before."""
    store.enqueue([new(), new()])
    short = claim_one(store, lease=10)
    long = claim_one(store, lease=20)
    clock.advance(9.999999)
    assert store.reclaim_expired() == 0
    before = row(store, long.id)
    clock.advance(0.000001)
    assert store.reclaim_expired() == 1
    assert row(store, long.id) == before
    stored = row(store, short.id)
    assert (stored["state"], stored["reason"], stored["attempts"]) == (State.READY, Reason.LEASE_EXPIRED, 1)
    assert (stored["lease_owner"], stored["lease_until"]) == (None, None)
    assert "me" in stored["last_error"]
    again = claim_one(store, owner="you")
    assert (again.id, again.attempt, again.lease.token) == (short.id, 2, 2)


def test_a_renewed_lease_is_not_reclaimed(store: Store, clock: VirtualClock) -> None:
    """J7."""
    put(store)
    claim = claim_one(store, lease=10)
    for _ in range(5):
        clock.advance(9)
        assert store.heartbeat("me", [claim.lease], lease=10).renewed == {claim.id}
        assert store.reclaim_expired() == 0
    assert store.complete(claim)


def test_reclaim_goes_on_in_batches(store: Store, clock: VirtualClock) -> None:
    """J7."""
    store.enqueue([new() for _ in range(7)])
    store.claim("me", kinds=["k"], limit=7, lease=1)
    clock.advance(1)
    assert [store.reclaim_expired(batch=3) for _ in range(4)] == [3, 3, 1, 0]


def test_a_reclaimed_job_takes_its_old_place_in_the_queue(store: Store, clock: VirtualClock) -> None:
    """J7: what its dead worker had begun is not put behind what came later."""
    first = put(store).id
    claim_one(store, lease=5)
    clock.advance(1)
    later = put(store).id
    clock.advance(5)
    assert store.reclaim_expired() == 1
    assert [claim.id for claim in store.claim("you", kinds=["k"], limit=5)] == [first, later]


def test_a_reclaimed_job_with_a_requested_cancellation_is_cancelled(store: Store, clock: VirtualClock) -> None:
    """J7: it does not come back only to be cancelled again."""
    put(store, key="a")
    claim = claim_one(store, lease=5)
    assert store.cancel_job(claim.id)
    clock.advance(5)
    assert store.reclaim_expired() == 1
    stored = row(store, claim.id)
    assert (stored["state"], stored["live_key"]) == (State.CANCELLED, None)


def test_the_allowed_attempts_are_frozen_at_enqueue(app: fencepost.App) -> None:
    """J7: a later change of the handler's options does not reach back."""

    def handler() -> None: ...

    job = app.job(kind="k", max_attempts=2)(handler)
    early = job.enqueue()
    app.job(kind="k", max_attempts=9)(handler)
    late = app.enqueue("k")
    claims = {claim.id: claim for claim in app.store.claim("me", kinds=["k"], limit=5)}
    assert (claims[early.id].max_attempts, claims[late.id].max_attempts) == (2, 9)


def test_a_claim_whose_answer_was_lost_comes_back_although_its_owner_lives_on(
    store: Store, clock: VirtualClock
) -> None:
    """J7: the owner renews what it knows of, and it never heard of this one."""
    lost, known = put(store).id, put(store).id
    claim_one(store, lease=30)  # the connection broke after the commit: nobody has read this answer
    claim = claim_one(store, lease=30)
    assert claim.id == known
    for _ in range(3):
        clock.advance(10)
        assert store.heartbeat("me", [claim.lease], lease=30).renewed == {known}
    assert store.reclaim_expired() == 1
    again = claim_one(store)
    assert (again.id, again.attempt) == (lost, 2)
    assert store.complete(claim)
    assert store.complete(again)


def test_when_the_same_owner_claims_again_its_earlier_attempt_settles_nothing(
    store: Store, clock: VirtualClock
) -> None:
    """J5, J7: a worker whose lease ran out under it claims the job anew; the token tells its two attempts apart."""
    put(store)
    earlier = claim_one(store, lease=5)
    clock.advance(5)
    assert store.reclaim_expired() == 1
    later = claim_one(store)
    before = row(store, later.id)
    assert store.complete(earlier, "stale") is False
    assert store.retry(earlier, "stale") is False
    assert store.heartbeat("me", [earlier.lease]).renewed == frozenset()
    assert store.release("me", [earlier.lease]) == 0
    assert row(store, later.id) == before
    assert store.complete(later, "fresh")


def test_an_expired_lease_that_nobody_took_back_still_settles(store: Store, clock: VirtualClock) -> None:
    """J5, J7: a worker that was late, but whose job nobody else has begun, did the work."""
    put(store)
    claim = claim_one(store, lease=5)
    clock.advance(60)
    assert store.complete(claim)
    assert store.reclaim_expired() == 0


def test_a_release_gives_back_the_owners_own_leases_unspent(store: Store, clock: VirtualClock) -> None:
    """J8: and only those; they are ready at once, in their old place."""
    ids = [put(store).id for _ in range(4)]
    mine = store.claim("me", kinds=["k"], limit=3)
    theirs = claim_one(store, owner="they")
    before = row(store, theirs.id)
    assert store.release("me") == 3
    assert row(store, theirs.id) == before
    assert store.release("me") == 0
    again = store.claim("next", kinds=["k"], limit=5)
    assert [(claim.id, claim.attempt, claim.reason) for claim in again] == [
        (job_id, 1, Reason.RELEASED) for job_id in ids[:3]
    ]
    assert not any(store.complete(claim) for claim in mine)


def test_a_release_of_named_leases_leaves_the_others_running(store: Store) -> None:
    """J8: neither another's lease nor one that has passed on is given back by naming it."""
    store.enqueue([new() for _ in range(4)])
    named, kept, passed_on = store.claim("me", kinds=["k"], limit=3)
    theirs = claim_one(store, owner="they")
    assert store.snooze(passed_on, 0)
    successor = claim_one(store, owner="me")
    assert store.release("me", [named.lease, passed_on.lease, theirs.lease]) == 1
    assert row(store, named.id)["state"] == State.READY
    for claim in (kept, successor, theirs):
        assert row(store, claim.id)["state"] == State.RUNNING


def test_a_release_that_names_two_attempts_of_one_job_gives_back_the_one_that_holds(store: Store) -> None:
    """J8: in whatever order, and a heartbeat renews it."""
    put(store)
    earlier = claim_one(store)
    assert store.snooze(earlier, 0)
    later = claim_one(store)
    for is_newest_first in (False, True):
        leases = sorted([earlier.lease, later.lease], key=lambda lease: lease.token, reverse=is_newest_first)
        assert store.heartbeat("me", leases).renewed == {later.id}
        assert store.release("me", leases) == 1
        earlier, later = later, claim_one(store)


def test_a_release_cancels_what_was_to_be_cancelled(store: Store) -> None:
    """J8."""
    put(store)
    claim = claim_one(store)
    assert store.cancel_job(claim.id)
    assert store.release("me") == 1
    assert row(store, claim.id)["state"] == State.CANCELLED


def test_a_stopped_worker_hands_back_what_it_runs_and_a_restart_continues_at_once(app: fencepost.App) -> None:
    """J8: through the worker itself: the handler that did not end in time gives its job back, unspent."""
    started, finish = threading.Event(), threading.Event()

    @app.job(kind="slow")
    def slow() -> str:
        started.set()
        finish.wait(30)
        return "done"

    handle = slow.enqueue()
    other = new("elsewhere")
    app.store.enqueue([other])
    foreign = claim_one(app.store, "elsewhere", owner="they")
    worker = app.worker(grace=0.01, poll=0.02)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert started.wait(30)
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    job = handle.job()
    assert (job.state, job.attempts, job.reason) == (State.READY, 0, Reason.RELEASED)
    assert app.jobs.get(foreign.id).state is State.RUNNING
    finish.set()
    app.run_worker(burst=True)
    job = handle.job()
    assert (job.state, job.attempts, job.result) == (State.SUCCEEDED, 1, "done")


@pytest.mark.parametrize("lease", [-1, float("nan"), "soon"])
def test_a_lease_that_cannot_be_is_refused(store: Store, lease: float) -> None:
    """J7."""
    with pytest.raises(fencepost.ConfigurationError, match="lease"):
        store.claim("me", kinds=["k"], lease=lease)
