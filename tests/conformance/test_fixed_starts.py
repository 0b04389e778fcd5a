"""Fixed starts: claimed a little ahead, never begun early, and judged when they cannot be kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fencepost
from fencepost.job import Claim, Micros, OnMiss, Options, Reason, State
from fencepost.planning.fixed_start import StartFigures
from fencepost.planning.outcome import Outcome, Verb
from fencepost.planning.rank import EARLY_CLAIM
from fencepost.schedule import Every, Misfire, NewSchedule, Overlap
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, claim_one, claimed_ids, overwrite, promote_all, put, row


def start_in(store: Store, micros: Micros, **options: Any) -> str:
    """Enqueue a job with a fixed start so many microseconds from now."""
    return put(store, start_at=store.now() + micros, **options).id


def materialise(store: Store) -> int:
    """Run the planner's pass over schedules until nothing is made."""
    total = 0
    while made := store.materialise_due():
        total += made
    return total


def occurrence_states(store: Store, name: str) -> list[tuple[int, str, str | None]]:
    found = store.list_occurrences(schedule=name, states=[], limit=100)
    return [
        (int(job.scheduled_for.timestamp()), str(job.state), job.reason) for job in reversed(found) if job.scheduled_for
    ]


def test_a_job_with_a_fixed_start_is_claimed_a_little_ahead_and_says_when_to_begin(
    store: Store, clock: VirtualClock
) -> None:
    job_id = start_in(store, 10 * SECOND)
    start_at = store.now() + 10 * SECOND
    assert row(store, job_id)["wake_at"] == start_at - EARLY_CLAIM
    clock.advance(8.9)
    promote_all(store)
    assert store.claim("me", kinds=["k"]) == []
    clock.advance(0.1)
    promote_all(store)
    claimed = claim_one(store)
    assert claimed.start is not None
    assert (claimed.start.at, claimed.claimed_at) == (start_at, start_at - EARLY_CLAIM)
    assert row(store, job_id)["started_at"] == start_at


def test_a_fixed_start_goes_before_every_priority(store: Store) -> None:
    others = [put(store, priority=fencepost.Priority.CRITICAL).id for _ in range(3)]
    fixed = start_in(store, SECOND // 2)
    assert claimed_ids(store) == [fixed, *others]


def test_a_start_in_the_past_is_late_at_once(store: Store) -> None:
    job_id = start_in(store, -5 * SECOND)
    claimed = claim_one(store)
    assert claimed.id == job_id
    job = store.get(job_id)
    assert job is not None
    ((entry),) = job.history
    assert (entry.reason, entry.error) == (Reason.MISSED_START, "Its start was missed by 5.000 s; 1 s were tolerated.")


@pytest.mark.parametrize(
    ("on_miss", "state", "reason"),
    [
        (OnMiss.RUN_LATE, State.RUNNING, None),
        (OnMiss.SKIP, State.SKIPPED, Reason.MISSED_START),
        (OnMiss.FAIL, State.FAILED, Reason.MISSED_START),
    ],
)
def test_a_start_that_cannot_be_kept_is_treated_as_its_job_says(
    store: Store, clock: VirtualClock, on_miss: OnMiss, state: State, reason: Reason | None
) -> None:
    job_id = start_in(store, SECOND, tolerance=2 * SECOND, on_miss=on_miss)
    clock.advance(3.000_001)
    promote_all(store)
    claims = store.claim("me", kinds=["k"])
    assert [claim.id for claim in claims] == ([job_id] if state is State.RUNNING else [])
    stored = row(store, job_id)
    assert (stored["state"], stored["reason"]) == (state, reason)
    assert "missed by 2.000 s" in (stored["history"] if on_miss is not OnMiss.SKIP else "missed by 2.000 s")


@pytest.mark.parametrize("on_miss", OnMiss)
def test_a_start_within_its_tolerance_is_kept(store: Store, clock: VirtualClock, on_miss: OnMiss) -> None:
    job_id = start_in(store, SECOND, tolerance=2 * SECOND, on_miss=on_miss)
    clock.advance(3)
    promote_all(store)
    assert claimed_ids(store) == [job_id]
    assert row(store, job_id)["history"] is None


def test_a_retry_has_no_start_to_keep(store: Store, clock: VirtualClock) -> None:
    job_id = start_in(store, 0, on_miss=OnMiss.SKIP)
    store.retry(claim_one(store), "boom", after=60)
    clock.advance(60)
    promote_all(store)
    again = claim_one(store)
    assert (again.id, again.attempt) == (job_id, 2)


@pytest.mark.parametrize("way", ["release", "settle"])
def test_an_attempt_given_back_before_its_start_is_as_good_as_new(store: Store, clock: VirtualClock, way: str) -> None:
    """J8: it had not begun; the next worker takes it at once, and has the same start to keep."""
    start_in(store, SECOND, on_miss=OnMiss.SKIP)
    first = claim_one(store)
    if way == "release":
        assert store.release("me") == 1
    else:
        assert store.settle([(first, Outcome(Verb.RELEASE))]) == [True]
    second = claim_one(store, owner="you")
    assert (second.start, second.attempt, second.reason) == (first.start, 1, None)
    store.release("you")
    clock.advance(2.1)
    assert store.claim("me", kinds=["k"]) == []
    job = store.get(first.id)
    assert job is not None
    assert (job.state, job.reason) == (State.SKIPPED, Reason.MISSED_START)


def test_a_worker_that_can_hold_no_more_gives_a_start_back_until_its_instant(store: Store, clock: VirtualClock) -> None:
    start_in(store, SECOND)
    claimed = claim_one(store)
    assert claimed.start is not None
    assert store.settle([(claimed, Outcome(Verb.RELEASE, run_at=claimed.start.at))]) == [True]
    promote_all(store)
    assert store.claim("me", kinds=["k"]) == []
    clock.advance(1)
    promote_all(store)
    again = claim_one(store)
    assert (again.id, again.attempt, again.claimed_at) == (claimed.id, 1, claimed.start.at)


def test_an_attempt_whose_worker_died_before_its_start_is_not_spent(store: Store, clock: VirtualClock) -> None:
    """J7: no handler had begun, so nobody is suspected of having killed it."""
    start_in(store, SECOND)
    first = claim_one(store, lease=0.5)
    clock.advance(0.6)
    assert store.reclaim_expired() == 1
    second = claim_one(store)
    assert (second.id, second.attempt, second.reason, second.start) == (first.id, 1, None, first.start)


def test_a_fixed_start_that_cannot_be_decoded_is_quarantined(store: Store, clock: VirtualClock) -> None:
    """L6."""
    broken = ['{"start": {"at": "soon", "tolerance": 1, "on_miss": "skip"}}', '{"start": {"at": 1}}', '{"start": 5}']
    ids = [start_in(store, SECOND) for _ in broken] + [start_in(store, 60 * SECOND)]
    for job_id, options in zip(ids, [*broken, broken[0]], strict=True):
        overwrite(store, job_id, options=options)
    assert store.claim("me", kinds=["k"]) == []
    clock.advance(60)
    promote_all(store)
    assert {(row(store, job_id)["state"], row(store, job_id)["reason"]) for job_id in ids} == {
        (State.FAILED, Reason.UNDECODABLE)
    }
    assert all(store.get(job_id) is not None for job_id in ids)


def test_figures_tell_how_many_starts_were_kept(store: Store, clock: VirtualClock) -> None:
    since = store.now()

    def run(claim: Claim) -> None:
        assert store.complete(claim)

    start_in(store, SECOND // 2)
    run(claim_one(store))
    start_in(store, 0)
    store.retry(claim_one(store), "boom", after=0)
    clock.advance(5)
    run(claim_one(store))
    start_in(store, -5 * SECOND)
    run(claim_one(store))
    start_in(store, -5 * SECOND, on_miss=OnMiss.SKIP)
    start_in(store, -5 * SECOND, on_miss=OnMiss.FAIL)
    put(store)
    run(claim_one(store))
    assert store.start_figures(since) == StartFigures(kept=2, late=1, skipped=1, failed=1)
    assert store.start_figures(since).hit_rate == 0.4
    assert store.start_figures(store.now() + 1).hit_rate is None


# Schedules


def exact(store: Store, **changed: Any) -> NewSchedule:
    """Save a schedule of every 10 s whose occurrences have fixed starts."""
    options = Options(tolerance=SECOND, on_miss=changed.pop("on_miss", OnMiss.RUN_LATE))
    new = NewSchedule("s", "k", "{}", options, Every(10 * SECOND), **changed)
    store.save_schedule(new)
    return new


def to_the_next_ten_seconds(clock: VirtualClock, *, before: float) -> int:
    """Move the clock to so many seconds before the next instant. Returns that instant, in seconds."""
    now = clock.now()
    instant = -(-(now + round(before * SECOND)) // (10 * SECOND)) * 10
    clock.advance(instant - before - now / SECOND)
    return instant


def test_an_exact_schedule_makes_its_occurrence_ahead_of_the_instant(store: Store, clock: VirtualClock) -> None:
    """S1: and only that one, whatever else plans meanwhile."""
    exact(store)
    instant = to_the_next_ten_seconds(clock, before=1.1)
    assert materialise(store) == 0
    assert store.next_plan_at() == instant * SECOND - EARLY_CLAIM
    clock.advance(0.1)
    assert materialise(store) == 1
    assert materialise(store) == 0
    claimed = claim_one(store)
    assert claimed.start is not None
    assert (claimed.start.at, claimed.scheduled_for) == (instant * SECOND, instant * SECOND)
    clock.advance(1.0)
    assert materialise(store) == 0
    assert store.next_plan_at() == (instant + 10) * SECOND - EARLY_CLAIM


def test_a_late_instant_of_an_exact_schedule_is_judged_by_its_tolerance(store: Store, clock: VirtualClock) -> None:
    """S5: within the grace it is late, and a start beyond its tolerance cannot be kept."""
    exact(store, on_miss=OnMiss.SKIP)
    instant = to_the_next_ten_seconds(clock, before=1.0)
    clock.advance(6)
    assert materialise(store) == 1
    assert store.claim("me", kinds=["k"]) == []
    assert occurrence_states(store, "s") == [(instant, "skipped", "missed_start")]


def test_what_the_misfire_policy_catches_up_has_no_start_to_keep(store: Store, clock: VirtualClock) -> None:
    """S5: the policy said that it runs."""
    exact(store, on_miss=OnMiss.SKIP, misfire=Misfire.LATEST, grace=2 * SECOND)
    instant = to_the_next_ten_seconds(clock, before=1.0)
    clock.advance(36)  # 5 s after the instant, beyond the grace
    assert materialise(store) == 1
    promote_all(store)
    claimed = claim_one(store)
    assert claimed.start is None
    assert claimed.scheduled_for == (instant + 30) * SECOND


def test_an_exact_schedule_is_paused_resumed_and_changed_like_any_other(store: Store, clock: VirtualClock) -> None:
    """S3, S13."""
    exact(store)
    instant = to_the_next_ten_seconds(clock, before=5)
    store.pause_schedule("s")
    assert store.next_plan_at() is None
    store.resume_schedule("s")
    assert store.next_plan_at() == instant * SECOND - EARLY_CLAIM
    shown = store.get_schedule("s")
    assert shown is not None
    assert (shown.next_fire_at, shown.tolerance, shown.on_miss) == (
        datetime.fromtimestamp(instant, UTC),
        1.0,
        OnMiss.RUN_LATE,
    )
    store.save_schedule(NewSchedule("s", "k", "{}", Options(), Every(10 * SECOND)))
    assert store.next_plan_at() == instant * SECOND


def test_triggers_and_backfills_of_an_exact_schedule_run_at_once(store: Store, clock: VirtualClock) -> None:
    exact(store, on_miss=OnMiss.FAIL)
    store.trigger_schedule("s", None)
    assert claim_one(store).start is None
    clock.advance(100)
    end = to_the_next_ten_seconds(clock, before=5) * SECOND - 10 * SECOND
    made = store.backfill_schedule("s", end - 49 * SECOND, end)
    assert len(made) == 5
    promote_all(store)
    assert [claim.start for claim in store.claim("me", kinds=["k"], limit=10)] == [None] * 5


def test_an_exact_occurrence_takes_its_permit_when_it_is_claimed(store: Store, clock: VirtualClock) -> None:
    """S6: a little ahead of its start; so an earlier one that still runs then is an overlap."""
    exact(store, overlap=Overlap.SKIP)
    instant = to_the_next_ten_seconds(clock, before=1.0)
    materialise(store)
    first = claim_one(store, lease=60)
    clock.advance(10)
    materialise(store)
    assert store.claim("me", kinds=["k"]) == []
    assert occurrence_states(store, "s") == [(instant, "running", None), (instant + 10, "skipped", "singleton")]
    assert store.complete(first)


def test_the_face_takes_a_start_and_refuses_what_contradicts_it(app: fencepost.App) -> None:
    @app.job
    def k() -> None: ...

    at = datetime.now(UTC) + timedelta(hours=1)
    handle = k.using(start_at=at, tolerance=0.5, on_miss="fail").enqueue()
    job = handle.job()
    assert (job.start_at, job.tolerance, job.on_miss, job.state) == (at, 0.5, OnMiss.FAIL, State.SCHEDULED)
    assert job.run_at == at
    assert app.jobs.start_figures().hit_rate is None
    for wrong, text in (
        ({"start_at": at, "delay": 5}, "neither delay nor run_at"),
        ({"tolerance": 5}, "give them with start_at"),
        ({"on_miss": "skip"}, "give them with start_at"),
        ({"start_at": at, "on_miss": "cry"}, "run_late, skip, fail"),
        ({"start_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"start_at": at, "tolerance": -1}, "tolerance"),
    ):
        with pytest.raises(fencepost.ConfigurationError, match=text):
            k.using(**wrong)
    with pytest.raises(fencepost.ConfigurationError, match="give a tolerance"):
        app.schedules.upsert("s", k, every="10s", on_miss="skip")
    with pytest.raises(fencepost.ConfigurationError, match="belongs to one job"):
        app.schedules.upsert("s", k, every="10s", options={"start_at": at})
    saved = app.schedules.upsert("s", k, every="10s", tolerance=0.1)
    assert (saved.tolerance, saved.on_miss) == (0.1, OnMiss.RUN_LATE)


# By hand, and given back


@pytest.mark.parametrize("on_miss", [OnMiss.SKIP, OnMiss.FAIL])
def test_a_missed_start_that_is_retried_by_hand_runs(store: Store, clock: VirtualClock, on_miss: OnMiss) -> None:
    """S10: the start is not judged twice."""
    job_id = start_in(store, -5 * SECOND, on_miss=on_miss)
    assert store.claim("me", kinds=["k"]) == []
    store.retry_job(job_id)
    claimed = claim_one(store)
    assert (claimed.id, claimed.start) == (job_id, None)
    assert store.complete(claimed)
    assert store.start_figures(0) == StartFigures(late=1)


def test_a_job_that_is_retried_by_hand_before_its_start_awaits_it(store: Store, clock: VirtualClock) -> None:
    job_id = start_in(store, 3600 * SECOND, on_miss=OnMiss.SKIP)
    start_at = store.now() + 3600 * SECOND
    store.cancel_job(job_id)
    store.retry_job(job_id)
    promote_all(store)
    assert store.claim("me", kinds=["k"]) == []
    assert (row(store, job_id)["state"], row(store, job_id)["wake_at"]) == (State.SCHEDULED, start_at - EARLY_CLAIM)
    clock.advance(3599.5)
    promote_all(store)
    claimed = claim_one(store)
    assert claimed.start is not None
    assert claimed.start.at == start_at


def test_a_row_that_is_used_once_more_has_no_start_to_keep(store: Store, clock: VirtualClock) -> None:
    """J6."""
    job_id = start_in(store, 0, on_miss=OnMiss.SKIP, tolerance=0)
    assert store.reschedule(claim_one(store), after=0)
    clock.advance(60)
    promote_all(store)
    again = claim_one(store)
    assert (again.id, again.start) == (job_id, None)


@pytest.mark.parametrize("is_unbegun", [True, False])
def test_a_start_that_was_given_back_unbegun_after_its_instant_is_judged(
    store: Store, clock: VirtualClock, is_unbegun: bool
) -> None:
    """J8. What had begun and was handed back runs again, however late."""
    job_id = start_in(store, 0, on_miss=OnMiss.SKIP)
    claim_one(store)
    assert store.release("me", is_unbegun=is_unbegun) == 1
    clock.advance(5)
    assert claimed_ids(store) == ([] if is_unbegun else [job_id])
    assert row(store, job_id)["reason"] == (Reason.MISSED_START if is_unbegun else Reason.RELEASED)


def test_a_start_that_was_cancelled_or_given_back_before_it_came_counts_nowhere(
    store: Store, clock: VirtualClock
) -> None:
    start_in(store, SECOND)
    held = claim_one(store)
    assert store.cancel(held)
    returned = start_in(store, SECOND)
    claim_one(store)
    assert store.release("me") == 1
    assert row(store, returned)["started_at"] is None
    clock.advance(60)
    store.cancel_job(returned)
    assert {row(store, job_id)["started_at"] for job_id in (held.id, returned)} == {None}
    assert store.start_figures(0).hit_rate is None
