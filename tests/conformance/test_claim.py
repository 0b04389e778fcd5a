"""Claim: J3, J4, L6 and the promotion that feeds it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import exc

from fencepost.ids import new_id
from fencepost.job import NewJob, Options, Priority, Reason, State
from fencepost.planning.outcome import waiting
from fencepost.planning.rank import LOW_PRIORITY_AGING, URGENCY_WINDOW, rank, urgent_rank
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import (
    MINUTE,
    SECOND,
    at_once,
    claim_one,
    claimed_ids,
    clear,
    new,
    other_stores,
    overwrite,
    promote_all,
    put,
    row,
    rows,
    statements,
)

few_examples = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def test_each_ready_job_is_claimed_by_exactly_one_of_many_workers(store: Store) -> None:
    """J3."""
    stored = {result.id for result in store.enqueue([new() for _ in range(60)])}

    def drain(other: Store, owner: str) -> list[str]:
        mine: list[str] = []
        while claims := other.claim(owner, kinds=["k"], limit=3):
            mine += [claim.id for claim in claims]
        return mine

    with other_stores(store, 4) as others:
        drained = at_once([partial(drain, other, f"w{n}") for n, other in enumerate(others)])
    claimed = [job_id for mine in drained for job_id in mine]
    assert len(claimed) == len(set(claimed))
    # A worker may find only rows that others are claiming at that moment, and stop; what is left is still there.
    assert set(claimed) | set(claimed_ids(store)) == stored
    for number, mine in enumerate(drained):
        assert all(row(store, job_id)["lease_owner"] == f"w{number}" for job_id in mine)


def test_the_best_rank_goes_first_and_equals_go_in_the_order_of_their_arrival(
    store: Store, clock: VirtualClock
) -> None:
    """J3."""
    wanted: dict[Priority, list[str]] = {priority: [] for priority in Priority}
    for _ in range(2):
        for priority in reversed(Priority):
            wanted[priority].append(put(store, priority=priority).id)
            clock.advance(1)
    order = [*wanted[Priority.CRITICAL], *wanted[Priority.HIGH], *wanted[Priority.NORMAL], *wanted[Priority.LOW]]
    assert [claimed_ids(store, 1)[0] for _ in order] == order


def test_a_low_job_that_waited_long_enough_overtakes_fresh_normal_ones_and_no_high_one(
    store: Store, clock: VirtualClock
) -> None:
    """J3: the aging is static and bounded."""
    low = put(store, priority=Priority.LOW).id
    clock.advance(LOW_PRIORITY_AGING / SECOND - 0.000001)
    just_before = put(store).id
    clock.advance(0.000002)
    just_after = put(store).id
    high = put(store, priority=Priority.HIGH).id
    assert claimed_ids(store) == [high, just_before, low, just_after]


def test_a_job_with_a_deadline_becomes_urgent_once_and_stays_below_high(store: Store, clock: VirtualClock) -> None:
    """J3: the earliest latest-start goes first, before all normal ones, once it is near."""
    normal = put(store).id
    later = put(store, deadline=clock.now() + 10 * MINUTE).id
    sooner = put(store, priority=Priority.LOW, deadline=clock.now() + 11 * MINUTE, duration_hint=2 * MINUTE).id
    assert store.promote_due() == 0
    clock.advance((9 * MINUTE - URGENCY_WINDOW) / SECOND)
    assert promote_all(store) == 1
    clock.advance(MINUTE / SECOND)
    assert promote_all(store) == 1
    assert promote_all(store) == 0
    high = put(store, priority=Priority.HIGH).id
    assert claimed_ids(store) == [high, sooner, later, normal]


def test_a_job_whose_time_has_not_come_is_left_alone(store: Store, clock: VirtualClock) -> None:
    """J3: neither claimed nor, to the microsecond, promoted."""
    delayed = put(store, priority=Priority.CRITICAL, delay=90 * SECOND).id
    planned = put(store, run_at=clock.now() + 90 * SECOND).id
    assert claimed_ids(store) == []
    assert store.next_wake() == clock.now() + 90 * SECOND
    clock.advance(89.999999)
    assert store.promote_due() == 0
    assert claimed_ids(store) == []
    clock.advance(0.000001)
    assert store.promote_due() == 2
    assert store.next_wake() is None
    assert claimed_ids(store) == [delayed, planned]


def test_a_run_at_in_the_past_means_now(store: Store, clock: VirtualClock) -> None:
    """J3: it does not jump ahead of what came before it."""
    first = put(store).id
    clock.advance(1)
    late = put(store, run_at=clock.now() - 60 * SECOND).id
    assert claimed_ids(store) == [first, late]


def test_a_promoted_job_takes_its_place_by_the_instant_it_was_due(store: Store, clock: VirtualClock) -> None:
    """J3: a planner that was late does not put it behind what came after it was due."""
    due = put(store, delay=SECOND).id
    clock.advance(5)
    fresh = put(store).id
    assert store.promote_due() == 1
    assert claimed_ids(store) == [due, fresh]


def test_promotion_goes_on_in_batches(store: Store, clock: VirtualClock) -> None:
    """J3: what a batch leaves is moved by the next, the earliest first."""
    planned = store.enqueue([new(delay=(10 - n) * SECOND) for n in range(7)])
    clock.advance(20)
    assert [store.promote_due(batch=3) for _ in range(4)] == [3, 3, 1, 0]
    assert claimed_ids(store) == [result.id for result in reversed(planned)]


def test_kinds_that_the_worker_does_not_know_are_left_alone(store: Store) -> None:
    """J3."""
    unknown = [put(store, "stranger", priority=Priority.CRITICAL).id for _ in range(3)]
    known = put(store).id
    assert claimed_ids(store) == [known]
    assert [row(store, job_id)["attempts"] for job_id in unknown] == [0, 0, 0]
    assert claimed_ids(store, kinds=["stranger"]) == unknown


def test_a_worker_with_no_kinds_asks_the_database_nothing(store: Store) -> None:
    """J3."""
    put(store)
    with statements(store) as sent:
        assert store.claim("me", kinds=[]) == []
        assert store.claim("me", kinds=["k"], limit=0) == []
    assert sent == []


def test_a_paused_queue_is_passed_over_until_it_is_resumed(store: Store) -> None:
    """J3: and what runs in it ends as ever."""
    running = put(store, queue="mail")
    claim = claim_one(store)
    waiting_there = put(store, queue="mail", priority=Priority.CRITICAL).id
    elsewhere = put(store, queue="other").id
    store.set_paused("mail", paused=True)
    assert claimed_ids(store) == [elsewhere]
    assert claimed_ids(store, queues=["mail"]) == []
    assert not store.has_ready(["k"], ["mail"])
    assert store.complete(claim)
    assert row(store, running.id)["state"] == State.SUCCEEDED
    store.set_paused("mail", paused=True)
    store.set_paused("mail", paused=False)
    assert claimed_ids(store) == [waiting_there]


def test_only_the_queues_asked_for_are_served(store: Store) -> None:
    """J3: names are compared exactly."""
    ids = {queue: put(store, queue=queue).id for queue in ("a", "A", "b")}
    assert claimed_ids(store, queues=["b", "none"]) == [ids["b"]]
    assert claimed_ids(store, queues=["a"]) == [ids["a"]]
    assert claimed_ids(store, queues=[]) == []
    assert claimed_ids(store, queues=None) == [ids["A"]]


def test_a_job_past_its_deadline_is_retired_on_the_spot_and_its_place_is_filled(
    store: Store, clock: VirtualClock
) -> None:
    """J3: it is skipped as expired, and not read again at every claim."""
    late = [put(store, key=f"late{n}", deadline=clock.now() + SECOND).id for n in range(3)]
    good = [put(store).id for _ in range(2)]
    clock.advance(1)
    assert claimed_ids(store, 2) == good
    for job_id in late:
        found = row(store, job_id)
        assert (found["state"], found["reason"], found["live_key"]) == (State.SKIPPED, Reason.EXPIRED, None)
        assert found["finished_at"] == clock.now()
        assert found["lease_owner"] is None
        assert found["rank"] is None
    assert claimed_ids(store) == []


def test_a_job_is_claimed_up_to_the_instant_of_its_deadline(store: Store, clock: VirtualClock) -> None:
    """J3: at the deadline it is late."""
    inside = put(store, deadline=clock.now() + SECOND).id
    clock.advance(0.999999)
    assert claimed_ids(store) == [inside]
    put(store, deadline=clock.now() + SECOND)
    clock.advance(1)
    assert claimed_ids(store) == []


def test_several_lines_are_merged_in_rank_order(store: Store, clock: VirtualClock) -> None:
    """J3: kinds and queues that wait side by side are served as one, whatever the size of the batch."""
    order = []
    for number in range(24):
        order.append(put(store, f"k{number % 3}", queue=f"q{number % 4}").id)
        clock.advance(0.001)
    kinds = ["k0", "k1", "k2", "not there"]
    assert claimed_ids(store, 5, kinds=kinds) == order[:5]
    assert claimed_ids(store, 5, kinds=kinds) == order[5:10]
    assert claimed_ids(store, kinds=kinds) == order[10:]


def test_more_lines_than_one_statement_takes_are_merged_too(store: Store, clock: VirtualClock) -> None:
    """J3."""
    batch = [new(f"k{number}", run_at=clock.now() + (number * 7919) % 230) for number in range(230)]
    store.enqueue(batch)
    clock.advance(1)
    promote_all(store)
    order = [job.id for job in sorted(batch, key=lambda job: job.options.run_at or 0)]
    kinds = [job.kind for job in batch]
    assert claimed_ids(store, 50, kinds=kinds) == order[:50]
    assert claimed_ids(store, 500, kinds=kinds) == order[50:]


def test_a_claim_carries_all_that_was_asked_for(store: Store, clock: VirtualClock) -> None:
    """J11: options survive as they were given."""
    wanted = new(
        arguments='{"a":1}',
        queue="q",
        priority=Priority.LOW,
        deadline=clock.now() + 3600 * SECOND,
        duration_hint=5 * SECOND,
        timeout_seconds=2.5,
        max_attempts=7,
        backoff=(1.0, 2.5),
        key="key",
        keep_result=False,
        tags=("ü", "b"),
        tenant="t",
    )
    store.enqueue([wanted])
    claim = claim_one(store, owner="w", lease=12)
    asked = wanted.options
    assert (claim.id, claim.lease.owner, claim.kind, claim.queue) == (wanted.id, "w", "k", "q")
    assert (claim.arguments, claim.priority, claim.deadline) == ('{"a":1}', Priority.LOW, asked.deadline)
    assert (claim.duration_hint, claim.timeout_seconds, claim.max_attempts) == (5 * SECOND, 2.5, 7)
    assert (list(claim.backoff), claim.keep_result) == ([1.0, 2.5], False)  # type: ignore[arg-type]
    assert (claim.tags, claim.tenant, claim.claimed_at) == (("ü", "b"), "t", clock.now())
    assert row(store, wanted.id)["lease_until"] == clock.now() + 12 * SECOND


def test_attempts_and_token_grow_at_the_claim(store: Store) -> None:
    """J4: not at the end, so that a job which takes its process with it spends its budget all the same."""
    put(store)
    for number in (1, 2, 3):
        claim = claim_one(store)
        stored = row(store, claim.id)
        assert (claim.attempt, stored["attempts"]) == (number, number)
        assert (claim.lease.token, stored["lease_token"]) == (number, number)
        assert store.retry(claim, "e", after=0)


def test_a_job_that_kills_its_worker_every_time_fails_when_its_attempts_are_spent(
    store: Store, clock: VirtualClock
) -> None:
    """J4, J7."""
    job_id = put(store, max_attempts=3, key="a").id
    for number in (1, 2, 3):
        assert claim_one(store, owner=f"w{number}", lease=5).attempt == number
        clock.advance(5)
        assert store.reclaim_expired() == 1
    assert store.claim("w4", kinds=["k"]) == []
    stored = row(store, job_id)
    assert (stored["state"], stored["reason"], stored["attempts"]) == (State.FAILED, Reason.LEASE_EXPIRED, 3)
    assert put(store, key="a").created


BROKEN: list[dict[str, Any]] = [
    {"options": "{not json"},
    {"options": "[]"},
    {"options": '{"backoff": {"shape": "cubic"}}'},
    {"priority": "sideways"},
    {"options": '{"backoff": "soon"}'},
    {"options": '{"backoff": []}'},
    {"options": '{"timeout": "long"}'},
    {"options": '{"duration_hint": Infinity}'},
    {"history": "{broken"},
    {"history": '{"a": 1}'},
    {"hold": "forever"},
    {"tags": "{"},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_row_that_cannot_be_decoded_is_quarantined_and_the_rest_goes_on(
    store: Store, clock: VirtualClock, broken: dict[str, Any]
) -> None:
    """L6: it fails as undecodable, with the reason in words, and its place in the batch is filled."""
    bad = put(store, key="a").id
    clock.advance(1)
    good = [put(store).id for _ in range(2)]
    overwrite(store, bad, **broken)
    assert claimed_ids(store, 2) == good
    stored = row(store, bad)
    assert (stored["state"], stored["reason"], stored["live_key"]) == (State.FAILED, Reason.UNDECODABLE, None)
    assert "cannot be decoded by this version" in stored["last_error"]
    assert claimed_ids(store) == []
    shown = store.get(bad)
    assert shown is not None
    assert shown.id == bad


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_running_row_that_cannot_be_decoded_is_quarantined_when_its_lease_runs_out(
    store: Store, clock: VirtualClock, broken: dict[str, Any]
) -> None:
    """L6, J7: and the other expired leases come back."""
    bad, good = put(store).id, put(store).id
    assert claimed_ids(store, lease=5) == [bad, good]
    overwrite(store, bad, **broken)
    clock.advance(5)
    assert store.reclaim_expired() == 2
    assert (row(store, bad)["state"], row(store, bad)["reason"]) == (State.FAILED, Reason.UNDECODABLE)
    assert claimed_ids(store) == [good]


@pytest.mark.parametrize("broken", [{"options": "{not json"}, {"options": "[]"}, {"priority": "sideways"}], ids=str)
def test_a_due_row_that_cannot_be_decoded_is_quarantined_and_the_others_are_promoted(
    store: Store, clock: VirtualClock, broken: dict[str, Any]
) -> None:
    """L6."""
    bad, good = put(store, delay=SECOND, key="a").id, put(store, delay=SECOND).id
    overwrite(store, bad, **broken)
    clock.advance(2)
    assert store.promote_due() == 2
    stored = row(store, bad)
    assert (stored["state"], stored["reason"], stored["live_key"]) == (State.FAILED, Reason.UNDECODABLE, None)
    assert store.promote_due() == 0
    assert claimed_ids(store) == [good]


def test_arguments_that_are_no_json_are_claimed_and_shown_as_they_stand(store: Store) -> None:
    """L6: whether they can be read is for the handler's signature to say."""
    job_id = put(store).id
    overwrite(store, job_id, arguments="{broken")
    assert claim_one(store).arguments == "{broken"
    job = store.get(job_id)
    assert job is not None
    assert job.arguments == "{broken"


def test_a_row_with_bytes_for_text_is_claimed_with_its_neighbours(store: Store) -> None:
    """L6: SQLite stores any value in any column; a batch is read as JSON, which carries no bytes."""
    if store.database.dialect.name != "sqlite":
        pytest.skip("the other databases refuse it")
    bad, good = put(store).id, put(store).id
    overwrite(store, bad, arguments=b"\xff\x00")
    assert claimed_ids(store) == [bad, good]


def test_words_of_a_newer_version_are_shown_and_an_unknown_state_is_refused(store: Store) -> None:
    """L6: never a crash; a state is held by a CHECK constraint."""
    job_id = put(store).id
    overwrite(store, job_id, reason="of tomorrow", priority="urgent")
    job = store.get(job_id)
    assert job is not None
    assert (job.reason, job.priority) == ("of tomorrow", "urgent")
    with pytest.raises((exc.IntegrityError, exc.OperationalError)):
        overwrite(store, job_id, state="paused")


@few_examples
@given(data=st.data())
def test_the_order_of_claims_is_the_order_of_the_pure_rank(
    store: Store, clock: VirtualClock, data: st.DataObject
) -> None:
    """J3: on random jobs of several kinds and queues, in batches of random size."""
    clear(store)
    drawn = st.tuples(
        st.sampled_from(Priority),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from([0, 0, 1, 30 * SECOND, 10 * MINUTE]),
        st.sampled_from([None, None, 30 * SECOND, 4 * MINUTE, 20 * MINUTE]),
        st.sampled_from([0, 5 * SECOND]),
        st.integers(0, 90 * SECOND),
    )
    wanted: dict[str, Options] = {}
    arrivals: dict[str, int] = {}
    for priority, kind, queue, delay, deadline, hint, gap in data.draw(st.lists(drawn, max_size=25)):
        clock.advance(gap / SECOND)
        options = Options(
            queue=queue,
            priority=priority,
            delay=delay,
            deadline=None if deadline is None else clock.now() + deadline,
            duration_hint=hint,
        )
        job = NewJob(new_id(), kind, "{}", options)
        store.enqueue([job])
        wanted[job.id], arrivals[job.id] = options, clock.now()
    clock.advance(data.draw(st.sampled_from([0, 60, 600])))
    now = clock.now()
    promote_all(store)
    expected: dict[str, int] = {}
    for job_id, options in wanted.items():
        due_at = arrivals[job_id] + (options.delay or 0)
        if due_at > now or (options.deadline is not None and options.deadline <= now):
            continue
        _, ready_rank, urgent = waiting(
            options.priority, due_at, now, deadline=options.deadline, duration_hint=options.duration_hint
        )
        assert ready_rank is not None
        expected[job_id] = ready_rank
        if urgent is not None and urgent <= now:
            expected[job_id] = urgent_rank(options.deadline or 0, options.duration_hint)
    claimed: list[str] = []
    while batch := claimed_ids(store, data.draw(st.integers(1, 8)), kinds=["a", "b", "c"]):
        claimed += batch
    assert sorted(claimed) == sorted(expected)
    assert [expected[job_id] for job_id in claimed] == sorted(expected.values())


@few_examples
@given(data=st.data())
def test_promotion_does_what_the_pure_function_says(store: Store, clock: VirtualClock, data: st.DataObject) -> None:
    """J3: state, rank and next instant of every row, whatever is due."""
    clear(store)
    start = clock.now()
    drawn = st.tuples(
        st.sampled_from(Priority),
        st.integers(1, 5 * MINUTE),
        st.none() | st.integers(0, 10 * MINUTE),
        st.sampled_from([0, 30 * SECOND]),
    )
    batch = []
    for priority, delay, deadline, hint in data.draw(st.lists(drawn, max_size=20)):
        by = None if deadline is None else start + deadline
        batch.append(new(priority=priority, delay=delay, deadline=by, duration_hint=hint))
    store.enqueue(batch)
    clock.advance(data.draw(st.integers(0, 6 * MINUTE)) / SECOND)
    now = clock.now()
    due = [job for job in batch if start + (job.options.delay or 0) <= now]
    assert store.promote_due() == len(due)
    stored = {found["id"]: found for found in rows(store)}
    for job in batch:
        options, found = job.options, stored[job.id]
        pure = waiting(
            options.priority,
            start + (options.delay or 0),
            now,
            deadline=options.deadline,
            duration_hint=options.duration_hint,
        )
        assert (found["state"], found["rank"], found["wake_at"]) == pure
    assert rank(Priority.NORMAL, now) < 2**63
