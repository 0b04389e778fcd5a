"""Settle: J5 and J6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from fencepost.job import Backoff, Claim, Lease, Reason, State
from fencepost.planning.outcome import MAX_ERROR_CHARS, Outcome, Verb
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, claim_one, new, other_stores, overwrite, promote_all, put, row

OUTCOMES = {
    "complete": Outcome(Verb.COMPLETE, result='{"r":1}'),
    "retry": Outcome(Verb.RETRY, error="boom", delay=5 * SECOND),
    "retry at once": Outcome(Verb.RETRY, error="boom", delay=0),
    "release": Outcome(Verb.RELEASE),
    "snooze": Outcome(Verb.SNOOZE, delay=5 * SECOND),
    "reschedule": Outcome(Verb.RESCHEDULE, delay=5 * SECOND),
    "abandon": Outcome(Verb.ABANDON, error="no use"),
    "cancel": Outcome(Verb.CANCEL, error="not wanted"),
    "skip": Outcome(Verb.SKIP),
}
RETURNING = ["retry", "retry at once", "release", "snooze", "reschedule"]
EXPECTED: dict[str, tuple[State, Reason | None, int, str | None]] = {
    "complete": (State.SUCCEEDED, None, 2, "before"),
    "retry": (State.SCHEDULED, Reason.ERROR, 2, "boom"),
    "retry at once": (State.READY, Reason.ERROR, 2, "boom"),
    "release": (State.READY, Reason.RELEASED, 1, "before"),
    "snooze": (State.SCHEDULED, Reason.SNOOZED, 1, "before"),
    "reschedule": (State.SCHEDULED, None, 0, None),
    "abandon": (State.FAILED, Reason.ABANDONED, 2, "no use"),
    "cancel": (State.CANCELLED, Reason.CANCELLED, 2, "not wanted"),
    "skip": (State.SKIPPED, Reason.EXPIRED, 2, "before"),
}
"""State, reason, attempts and last error after the second attempt of a job whose first failed with "before"."""


def second_attempts(store: Store, number: int) -> list[Claim]:
    store.enqueue([new(key=f"u{n}") for n in range(number)])
    for claim in store.claim("me", kinds=["k"], limit=number):
        assert store.retry(claim, "before", after=0)
    return store.claim("me", kinds=["k"], limit=number)


def check(store: Store, clock: VirtualClock, claim: Claim, name: str) -> None:
    stored = row(store, claim.id)
    found = (stored["state"], stored["reason"], stored["attempts"], stored["last_error"])
    assert found == EXPECTED[name]
    assert (stored["lease_owner"], stored["lease_until"], stored["lease_token"]) == (None, None, 2)
    state = EXPECTED[name][0]
    assert (stored["rank"] is not None) == (stored["line"] is not None) == (state is State.READY)
    assert stored["wake_at"] == (clock.now() + 5 * SECOND if state is State.SCHEDULED else None)
    is_final = state not in (State.READY, State.SCHEDULED)
    assert stored["finished_at"] == (clock.now() if is_final else None)
    assert (stored["live_key"] is None) == is_final
    assert stored["result"] == ('{"r":1}' if name == "complete" else None)


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_that_holds_its_lease_is_written_whole(store: Store, clock: VirtualClock, name: str) -> None:
    """J5, J6: alone."""
    (claim,) = second_attempts(store, 1)
    clock.advance(1)
    assert store.settle([(claim, OUTCOMES[name])]) == [True]
    check(store, clock, claim, name)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_group_of_one_outcome_is_written_as_each_alone_would_be(store: Store, clock: VirtualClock, name: str) -> None:
    """J5, J6: in one transaction."""
    claims = second_attempts(store, 7)
    clock.advance(1)
    assert store.settle([(claim, OUTCOMES[name]) for claim in claims]) == [True] * 7
    for claim in claims:
        check(store, clock, claim, name)


def test_a_group_of_all_outcomes_is_written_each_as_it_says(store: Store, clock: VirtualClock) -> None:
    """J5, J6: mixed, and twice of each."""
    names = [*OUTCOMES, *reversed(OUTCOMES)]
    claims = second_attempts(store, len(names))
    clock.advance(1)
    group = [(claim, OUTCOMES[name]) for claim, name in zip(claims, names, strict=True)]
    assert store.settle(group) == [True] * len(names)
    for claim, name in zip(claims, names, strict=True):
        check(store, clock, claim, name)


def _wrong_token(_store: Store, claim: Claim) -> Claim:
    return replace(claim, lease=claim.lease._replace(token=claim.lease.token - 1))


def _wrong_owner(_store: Store, claim: Claim) -> Claim:
    return replace(claim, lease=claim.lease._replace(owner="somebody else"))


def _settled_already(store: Store, claim: Claim) -> Claim:
    assert store.complete(claim, '"first"')
    return claim


def _given_back(store: Store, claim: Claim) -> Claim:
    assert store.release("me", [claim.lease]) == 1
    return claim


def _claimed_again_by_another(store: Store, claim: Claim) -> Claim:
    assert store.retry(claim, "mine", after=0)
    claim_one(store, owner="another")
    return claim


def _claimed_again_by_the_same(store: Store, claim: Claim) -> Claim:
    # A snooze gives the attempt back: the numbers of the two attempts are the same, and only the token differs.
    assert store.snooze(claim, 0)
    assert claim_one(store).attempt == claim.attempt
    return claim


def _ended_by_hand(store: Store, claim: Claim) -> Claim:
    overwrite(store, claim.id, state=State.FAILED, finished_at=1)  # by somebody who left the rest as it stood
    return claim


def _gone(store: Store, claim: Claim) -> Claim:
    return replace(claim, lease=Lease(new().id, "me", 1))


STALE: list[Callable[[Store, Claim], Claim]] = [
    _wrong_token,
    _wrong_owner,
    _settled_already,
    _given_back,
    _claimed_again_by_another,
    _claimed_again_by_the_same,
    _ended_by_hand,
    _gone,
]


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("make_stale", STALE, ids=lambda made: made.__name__.strip("_"))
def test_a_settlement_without_the_lease_writes_nothing(
    store: Store, clock: VirtualClock, make_stale: Callable[[Store, Claim], Claim], name: str
) -> None:
    """J5: whichever way the lease was lost, every column stays as it was."""
    put(store, key="a")
    held = claim_one(store)
    stale = make_stale(store, held)
    clock.advance(1)
    before = row(store, held.id)
    assert store.settle([(stale, OUTCOMES[name])]) == [False]
    assert row(store, held.id) == before


@pytest.mark.parametrize("name", OUTCOMES)
def test_in_a_group_only_the_stale_settlements_write_nothing(store: Store, clock: VirtualClock, name: str) -> None:
    """J5: first, in the middle, last and side by side."""
    claims = second_attempts(store, 8)
    stale = {0, 3, 4, 7}
    for place in stale:
        assert store.snooze(claims[place], 0)
    clock.advance(1)
    before = [row(store, claim.id) for claim in claims]
    answers = store.settle([(claim, OUTCOMES[name]) for claim in claims])
    assert answers == [place not in stale for place in range(8)]
    for place, claim in enumerate(claims):
        if place in stale:
            assert row(store, claim.id) == before[place]
        else:
            check(store, clock, claim, name)


def test_a_mixed_group_with_stale_ones_answers_each_in_its_place(store: Store, clock: VirtualClock) -> None:
    """J5: all outcomes at once, every second one stale."""
    names = [name for name in OUTCOMES for _ in range(2)]
    claims = second_attempts(store, len(names))
    for claim in claims[::2]:
        assert store.release("me", [claim.lease]) == 1
    clock.advance(1)
    before = [row(store, claim.id) for claim in claims]
    answers = store.settle([(claim, OUTCOMES[name]) for claim, name in zip(claims, names, strict=True)])
    assert answers == [False, True] * len(OUTCOMES)
    for place, (claim, name) in enumerate(zip(claims, names, strict=True)):
        if place % 2:
            check(store, clock, claim, name)
        else:
            assert row(store, claim.id) == before[place]


def test_two_attempts_of_one_job_in_one_group_are_told_apart(store: Store) -> None:
    """J5: the earlier, lost one writes nothing although the later one beside it holds."""
    put(store)
    earlier = claim_one(store)
    assert store.snooze(earlier, 0)
    later = claim_one(store)
    assert store.settle([(earlier, OUTCOMES["complete"]), (later, OUTCOMES["abandon"])]) == [False, True]
    assert row(store, later.id)["state"] == State.FAILED
    put(store)
    earlier = claim_one(store)
    assert store.snooze(earlier, 0)
    later = claim_one(store)
    assert store.settle([(later, OUTCOMES["complete"]), (earlier, OUTCOMES["complete"])]) == [True, False]


def test_settlements_made_twice_hold_once(store: Store) -> None:
    """J5, L3: a settlement repeated after a lost answer says that it did not hold, and changes nothing."""
    for name, outcome in OUTCOMES.items():
        put(store)
        claim = claim_one(store)
        assert store.settle([(claim, outcome)]) == [True]
        before = row(store, claim.id)
        assert store.settle([(claim, outcome)]) == [False], name
        assert row(store, claim.id) == before
        store.cancel_job(claim.id)


@pytest.mark.parametrize("name", RETURNING)
def test_an_outcome_that_would_bring_a_job_back_cancels_it_if_that_was_requested(
    store: Store, clock: VirtualClock, name: str
) -> None:
    """J5, J6: alone."""
    (claim,) = second_attempts(store, 1)
    assert store.cancel_job(claim.id)
    assert row(store, claim.id)["state"] == State.RUNNING
    clock.advance(1)
    assert store.settle([(claim, OUTCOMES[name])]) == [True]
    stored = row(store, claim.id)
    assert (stored["state"], stored["reason"], stored["attempts"]) == (State.CANCELLED, Reason.CANCELLED, 2)
    assert (stored["finished_at"], stored["live_key"], stored["rank"]) == (clock.now(), None, None)
    assert (stored["wake_at"], stored["lease_owner"]) == (None, None)
    assert store.cancel_job(claim.id) is False


@pytest.mark.parametrize("name", RETURNING)
def test_in_a_group_only_those_whose_cancellation_was_requested_are_cancelled(
    store: Store, clock: VirtualClock, name: str
) -> None:
    """J5, J6: beside stale ones, which stay as they are."""
    claims = second_attempts(store, 6)
    for claim in claims[:4]:
        assert store.cancel_job(claim.id)
    assert store.complete(claims[1])
    lost = row(store, claims[1].id)
    clock.advance(1)
    assert store.settle([(claim, OUTCOMES[name]) for claim in claims]) == [True, False, True, True, True, True]
    assert [row(store, claim.id)["state"] for claim in claims[:4:2]] == [State.CANCELLED] * 2
    assert row(store, claims[1].id) == lost
    for claim in claims[4:]:
        check(store, clock, claim, name)


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_of_two_attempts_of_a_job_to_be_cancelled_the_one_that_holds_cancels_it(
    store: Store, is_newest_first: bool
) -> None:
    """J5, J6: the stale one beside it in the group neither does nor prevents it."""
    put(store)
    earlier = claim_one(store)
    assert store.snooze(earlier, 0)
    later = claim_one(store)
    assert store.cancel_job(later.id)
    group = [(later, OUTCOMES["retry"]), (earlier, OUTCOMES["snooze"])]
    answers = store.settle(group if is_newest_first else group[::-1])
    assert answers == ([True, False] if is_newest_first else [False, True])
    assert row(store, later.id)["state"] == State.CANCELLED


@pytest.mark.parametrize("name", ["complete", "abandon", "cancel", "skip"])
def test_an_attempt_that_ends_its_job_does_so_although_a_cancellation_was_requested(
    store: Store, clock: VirtualClock, name: str
) -> None:
    """J5: what was done is done."""
    (claim,) = second_attempts(store, 1)
    assert store.cancel_job(claim.id)
    clock.advance(1)
    assert store.settle([(claim, OUTCOMES[name])]) == [True]
    check(store, clock, claim, name)


def test_a_stale_attempt_does_not_cancel_its_successor(store: Store) -> None:
    """J5: the cancellation is the later attempt's to obey."""
    put(store)
    earlier = claim_one(store)
    assert store.snooze(earlier, 0)
    later = claim_one(store)
    assert store.cancel_job(later.id)
    before = row(store, later.id)
    assert store.retry(earlier, "late") is False
    assert row(store, later.id) == before
    assert store.cancel(later)


def test_retry_keeps_the_count_and_fails_the_job_when_none_is_left(store: Store, clock: VirtualClock) -> None:
    """J6: by the job's backoff, with the error of each attempt in the history."""
    job_id = put(store, max_attempts=3, backoff=(2.0, 4.0, 8.0)).id
    for attempt, pause in ((1, 2), (2, 4)):
        claim = claim_one(store)
        assert claim.attempt == attempt
        assert store.retry(claim, f"Traceback\n  line\nError: e{attempt}")
        assert row(store, job_id)["wake_at"] == clock.now() + pause * SECOND
        clock.advance(pause)
        assert store.promote_due() == 1
    assert store.retry(claim_one(store), "Error: e3")
    job = store.get(job_id)
    assert job is not None
    assert (job.state, job.reason, job.attempts) == (State.FAILED, Reason.ATTEMPTS_EXHAUSTED, 3)
    assert job.last_error == "Error: e3"
    assert [(entry.attempt, entry.error, entry.reason, entry.worker) for entry in job.history] == [
        (1, "Error: e1", Reason.ERROR, "me"),
        (2, "Error: e2", Reason.ERROR, "me"),
        (3, "Error: e3", Reason.ATTEMPTS_EXHAUSTED, "me"),
    ]


def test_snoozes_spend_no_attempt_and_do_not_lengthen_the_backoff(store: Store, clock: VirtualClock) -> None:
    """J6: ten of them, then two failures 2 s and 4 s apart, then success, with three attempts allowed throughout."""
    job_id = put(store, max_attempts=3, backoff=(2.0, 4.0, 8.0)).id
    starts = 0
    for _ in range(10):
        claim = claim_one(store)
        starts += 1
        assert (claim.attempt, claim.max_attempts) == (1, 3)
        assert store.snooze(claim, 1)
        assert row(store, job_id)["wake_at"] == clock.now() + SECOND
        clock.advance(1)
        assert promote_all(store) == 1
    for pause in (2, 4):
        claim = claim_one(store)
        starts += 1
        assert store.retry(claim, "boom")
        assert row(store, job_id)["wake_at"] == clock.now() + pause * SECOND
        clock.advance(pause)
        assert promote_all(store) == 1
    assert store.complete(claim_one(store))
    job = store.get(job_id)
    assert job is not None
    assert (starts + 1, job.state, job.attempts, job.max_attempts) == (13, State.SUCCEEDED, 3, 3)
    assert [entry.reason for entry in job.history].count(Reason.SNOOZED) == 10


def test_a_delay_that_a_retry_names_takes_the_place_of_the_backoff(store: Store, clock: VirtualClock) -> None:
    """J6."""
    job_id = put(store, backoff=Backoff(base=1000, jitter=0)).id
    assert store.retry(claim_one(store), "e", after=7.5)
    assert row(store, job_id)["wake_at"] == clock.now() + 7_500_000


def test_the_default_backoff_lies_between_nothing_and_its_bound(store: Store, clock: VirtualClock) -> None:
    """J6: full jitter."""
    for _ in range(10):
        job_id = put(store).id
        assert store.retry(claim_one(store), "e")
        wake_at = row(store, job_id)["wake_at"]
        assert wake_at is None or clock.now() <= wake_at <= clock.now() + 2 * SECOND
        store.cancel_job(job_id)


def test_reschedule_uses_the_row_once_more_as_if_it_were_new(store: Store, clock: VirtualClock) -> None:
    """J6: the count is zeroed, the error cleared; identity and token stay."""
    job_id = put(store, key="a", max_attempts=1).id
    for token in (1, 2, 3):
        claim = claim_one(store)
        assert (claim.attempt, claim.lease.token) == (1, token)
        assert store.reschedule(claim, after=60)
        stored = row(store, job_id)
        assert (stored["attempts"], stored["last_error"], stored["reason"]) == (0, None, None)
        assert stored["run_at"] == stored["wake_at"] == clock.now() + 60 * SECOND
        assert not put(store, key="a").created
        clock.advance(60)
        assert store.promote_due() == 1


def test_abandon_is_final_whatever_attempts_are_left(store: Store) -> None:
    """J6: and says why."""
    job_id = put(store, max_attempts=20).id
    assert store.abandon(claim_one(store), "hopeless", reason=Reason.UNDECODABLE)
    job = store.get(job_id)
    assert job is not None
    assert (job.state, job.reason, job.last_error, job.attempts) == (
        State.FAILED,
        Reason.UNDECODABLE,
        "hopeless",
        1,
    )


def test_a_flood_of_an_error_keeps_its_head_and_its_tail(store: Store) -> None:
    """J6, J11: and the history its last line."""
    job_id = put(store).id
    assert store.retry(claim_one(store), "HEAD " + "x" * 1_000_000 + "\nTAIL", after=0)
    job = store.get(job_id)
    assert job is not None
    assert job.last_error is not None
    assert len(job.last_error) <= MAX_ERROR_CHARS
    assert job.last_error.startswith("HEAD ")
    assert job.last_error.endswith("\nTAIL")
    assert job.history[0].error == "TAIL"


def test_the_history_keeps_the_newest_attempts(store: Store) -> None:
    """J6: a job that snoozes for ever does not grow for ever."""
    job_id = put(store).id
    for _ in range(60):
        assert store.snooze(claim_one(store), 0)
    job = store.get(job_id)
    assert job is not None
    assert len(job.history) == 50


def test_a_group_is_all_or_nothing(store: Store, clock: VirtualClock) -> None:
    """J5, L1: one transaction, so no half of a group is acknowledged."""
    claims = second_attempts(store, 3)
    before = [row(store, claim.id) for claim in claims]
    updates: list[str] = []

    def refuse_the_second(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        updates.extend([statement] if statement.startswith("UPDATE") else [])
        if len(updates) > 1:
            raise ConnectionAbortedError("between two statements")

    event.listen(store.database.engine, "before_cursor_execute", refuse_the_second)
    with pytest.raises(ConnectionAbortedError):
        store.settle([(claims[0], OUTCOMES["complete"]), (claims[1], OUTCOMES["retry"])])
    event.remove(store.database.engine, "before_cursor_execute", refuse_the_second)
    assert [row(store, claim.id) for claim in claims] == before


def test_a_settlement_in_a_transaction_of_the_handler_commits_or_rolls_back_with_it(store: Store) -> None:
    """J5: exactly once for effects in the same database."""
    put(store)
    claim = claim_one(store)
    before = row(store, claim.id)

    class Undo(Exception):
        pass

    def attempt(fails: bool) -> bool:
        with store.transaction() as conn:
            held = store.settle_within(conn, claim, OUTCOMES["complete"])
            if fails:
                raise Undo
            return held

    with pytest.raises(Undo):
        attempt(True)
    assert row(store, claim.id) == before
    assert attempt(False)
    assert not attempt(False)


def test_the_settlement_of_one_worker_leaves_all_other_jobs_alone(store: Store) -> None:
    """J5."""
    claims = second_attempts(store, 3)
    with other_stores(store, 1) as (other,):
        before = [row(store, claim.id) for claim in claims[1:]]
        assert other.complete(claims[0])
    assert [row(store, claim.id) for claim in claims[1:]] == before


def test_no_settlements_ask_the_database_nothing(store: Store) -> None:
    """J5."""
    assert store.settle([]) == []


def test_progress_is_written_only_while_the_lease_holds(store: Store) -> None:
    """J5: the same predicate."""
    job_id = put(store).id
    claim = claim_one(store)
    store.report_progress([(claim.lease, 0.5, "half")])
    job = store.get(job_id)
    assert job is not None
    assert (job.progress, job.progress_note) == (0.5, "half")
    assert store.snooze(claim, 0)
    later = claim_one(store)
    before = row(store, job_id)
    reports: list[Any] = [(claim.lease, 0.9, "late"), (later.lease._replace(owner="x"), 0.9, "foreign")]
    store.report_progress(reports)
    assert row(store, job_id) == before
