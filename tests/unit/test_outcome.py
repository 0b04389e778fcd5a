"""The state table, row by row: J4, J6, J7 as a pure function."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.job import Backoff, Priority, Reason, State
from fencepost.planning.outcome import (
    MAX_ERROR_CHARS,
    MAX_HISTORY,
    MAX_HISTORY_ERROR_CHARS,
    Change,
    Outcome,
    Verb,
    bounded_error,
    next_state,
    waiting,
)
from fencepost.planning.rank import rank, urgent_at
from tests.unit.attempts import attempt

NOW = 5_000_000_000
SECOND = 1_000_000
DECIDED = [verb for verb in Verb if verb is not Verb.COMPLETE]
RETURNING = {Verb.RETRY, Verb.RECLAIM, Verb.RELEASE, Verb.SNOOZE, Verb.RESCHEDULE}

# verb, attempts left -> state, reason, attempts of a second attempt
TABLE: dict[tuple[Verb, bool], tuple[State, Reason | None, int]] = {
    (Verb.RETRY, True): (State.SCHEDULED, Reason.ERROR, 2),
    (Verb.RETRY, False): (State.FAILED, Reason.ATTEMPTS_EXHAUSTED, 2),
    (Verb.RECLAIM, True): (State.READY, Reason.LEASE_EXPIRED, 2),
    (Verb.RECLAIM, False): (State.FAILED, Reason.LEASE_EXPIRED, 2),
    (Verb.RELEASE, True): (State.READY, Reason.RELEASED, 1),
    (Verb.RELEASE, False): (State.READY, Reason.RELEASED, 1),
    (Verb.SNOOZE, True): (State.SCHEDULED, Reason.SNOOZED, 1),
    (Verb.SNOOZE, False): (State.SCHEDULED, Reason.SNOOZED, 1),
    (Verb.RESCHEDULE, True): (State.SCHEDULED, None, 0),
    (Verb.RESCHEDULE, False): (State.SCHEDULED, None, 0),
    (Verb.ABANDON, True): (State.FAILED, Reason.ABANDONED, 2),
    (Verb.ABANDON, False): (State.FAILED, Reason.ABANDONED, 2),
    (Verb.CANCEL, True): (State.CANCELLED, Reason.CANCELLED, 2),
    (Verb.CANCEL, False): (State.CANCELLED, Reason.CANCELLED, 2),
    (Verb.SKIP, True): (State.SKIPPED, Reason.EXPIRED, 2),
    (Verb.SKIP, False): (State.SKIPPED, Reason.EXPIRED, 2),
}


def ended(outcome: Outcome, *, cancel_requested: bool = False, **changed: Any) -> Change:
    return next_state(attempt(**changed), outcome, NOW, worker="w", draw=0.5, cancel_requested=cancel_requested)


@pytest.mark.parametrize(("verb", "is_left", "cancels"), list(product(DECIDED, [True, False], [True, False])))
def test_the_table(verb: Verb, is_left: bool, cancels: bool) -> None:
    """J6: every verb, with attempts left and without, cancelled meanwhile and not."""
    outcome = Outcome(verb, error="boom", delay=SECOND)
    change = ended(outcome, cancel_requested=cancels, attempt=2, max_attempts=3 if is_left else 2)
    state, reason, attempts = TABLE[verb, is_left]
    is_final = state not in (State.READY, State.SCHEDULED)
    if cancels and not is_final:
        assert verb in RETURNING
        state, reason, attempts, is_final = State.CANCELLED, Reason.CANCELLED, 2, True
    assert (change.state, change.reason, change.attempts) == (state, reason, attempts)
    assert change.finished_at == (NOW if is_final else None)
    assert (change.rank is not None) == (state is State.READY)
    assert change.wake_at == (NOW + SECOND if state is State.SCHEDULED else None)
    assert change.clears_error == (verb is Verb.RESCHEDULE and not cancels)


def test_success_is_not_decided_here() -> None:
    """`store.settle` alone says what it means."""
    with pytest.raises(AssertionError):
        ended(Outcome(Verb.COMPLETE))


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RECLAIM, Verb.ABANDON, Verb.CANCEL])
def test_outcomes_with_an_error_record_it(verb: Verb) -> None:
    change = ended(Outcome(verb, error="first line\nlast line\n"))
    assert change.last_error == "first line\nlast line\n"
    (entry,) = json.loads(change.history or "")
    assert (entry["attempt"], entry["at"], entry["worker"], entry["error"]) == (1, NOW, "w", "last line")


@pytest.mark.parametrize("verb", [Verb.RELEASE, Verb.SNOOZE])
def test_outcomes_without_one_keep_what_stands(verb: Verb) -> None:
    change = ended(Outcome(verb, delay=0))
    assert change.last_error is None
    assert not change.clears_error


def test_a_retry_without_a_delay_asks_the_backoff() -> None:
    for number, seconds in ((1, 2), (2, 4), (3, 8)):
        change = ended(Outcome(Verb.RETRY), attempt=number, max_attempts=9)
        assert change.wake_at == NOW + seconds * SECOND
    jittered = ended(Outcome(Verb.RETRY), backoff=Backoff(base=10))
    assert jittered.wake_at == NOW + 5 * SECOND


def test_a_retry_with_no_delay_is_ready_now_and_behind_what_waits_already() -> None:
    change = ended(Outcome(Verb.RETRY, delay=0))
    assert (change.state, change.rank) == (State.READY, rank(Priority.NORMAL, NOW))


def test_a_reason_that_is_given_stays_also_when_no_attempt_is_left() -> None:
    for most in (1, 2):
        assert ended(Outcome(Verb.RETRY, reason=Reason.TIMEOUT), max_attempts=most).reason is Reason.TIMEOUT


@pytest.mark.parametrize("verb", [Verb.RELEASE, Verb.RECLAIM])
def test_what_comes_back_through_no_fault_of_its_own_takes_its_old_place(verb: Verb) -> None:
    assert ended(Outcome(verb), run_at=1_234).rank == rank(Priority.NORMAL, 1_234)
    assert ended(Outcome(verb), run_at=NOW + 999).rank == rank(Priority.NORMAL, NOW)


def test_a_release_does_not_clear_the_suspicion_that_the_job_killed_its_worker() -> None:
    assert ended(Outcome(Verb.RELEASE), reason="lease_expired").reason is Reason.LEASE_EXPIRED
    assert ended(Outcome(Verb.RELEASE), reason="error").reason is Reason.RELEASED


def test_attempts_never_fall_below_none() -> None:
    for verb in (Verb.RELEASE, Verb.SNOOZE):
        assert ended(Outcome(verb, delay=0), attempt=0).attempts == 0


def test_a_reschedule_to_an_instant_moves_the_instant_it_is_due() -> None:
    change = ended(Outcome(Verb.RESCHEDULE, run_at=NOW + 7, delay=99))
    assert (change.wake_at, change.run_at) == (NOW + 7, NOW + 7)


def test_the_history_keeps_the_newest_and_each_error_short() -> None:
    history = None
    for number in range(1, MAX_HISTORY + 20):
        change = ended(Outcome(Verb.RETRY, error="x" * 9_999), attempt=number, max_attempts=999, history=history)
        history = change.history
    entries = json.loads(history or "")
    assert [entry["attempt"] for entry in entries] == list(range(20, MAX_HISTORY + 20))
    assert {len(entry["error"]) for entry in entries} == {MAX_HISTORY_ERROR_CHARS}


@given(
    st.sampled_from(Priority),
    st.integers(0, 10**16),
    st.integers(0, 10**16),
    st.none() | st.integers(0, 10**16),
)
def test_a_waiting_job_is_scheduled_before_its_time_and_ready_from_then_on(
    priority: Priority, due: int, now: int, deadline: int | None
) -> None:
    state, found_rank, wake_at = waiting(priority, due, now, deadline=deadline, duration_hint=5)
    if due > now:
        assert (state, found_rank, wake_at) == (State.SCHEDULED, None, due)
    else:
        assert (state, found_rank) == (State.READY, rank(priority, due))
        assert wake_at == urgent_at(priority, deadline, 5)


@given(st.text(max_size=10), st.integers(0, 5 * MAX_ERROR_CHARS))
def test_an_error_is_bounded_and_a_short_one_stays_as_it_is(seed: str, length: int) -> None:
    text = (seed + "x" * length)[:length]
    bounded = bounded_error(text)
    assert len(bounded) <= MAX_ERROR_CHARS
    if len(text) <= MAX_ERROR_CHARS:
        assert bounded == text
    else:
        assert bounded[:1000] == text[:1000]
        assert bounded[-1000:] == text[-1000:]
