"""Routing by labels: a job goes to a worker that has what it needs, and to no other (J3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fencepost
from fencepost.job import BusyPolicy, Concurrency, OnConflict, Options, State, Trigger
from fencepost.labels import encode_labels
from fencepost.schedule import Every, Misfire, NewSchedule
from fencepost.store import Store
from fencepost.store.tables import line_of
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, claim_one, new, overwrite, promote_all, put, row, statements

GPU = encode_labels({"gpu": "a100"})
BOTH = encode_labels({"zone": "eu", "gpu": "a100"})


def claimed(store: Store, labels: dict[str, str] | None = None, **asked: Any) -> set[str]:
    asked.setdefault("kinds", ["k"])
    return {claim.id for claim in store.claim("me", limit=100, labels=labels, **asked)}


def test_a_job_with_labels_is_taken_only_by_a_worker_that_has_all_of_them_with_the_same_value(store: Store) -> None:
    """J3: whatever else the worker has."""
    needy = put(store, labels=BOTH).id
    for labels in (None, {}, {"gpu": "a100"}, {"zone": "eu"}, {"gpu": "A100", "zone": "eu"}, {"gpu": "eu"}):
        assert claimed(store, labels) == set()
        assert not store.has_ready(["k"], None, labels)
    enough = {"gpu": "a100", "zone": "eu", "disk": "ssd"}
    assert store.has_ready(["k"], None, enough)
    assert claimed(store, enough) == {needy}


def test_a_job_without_labels_goes_to_any_worker(store: Store) -> None:
    """J3."""
    first = put(store).id
    assert claimed(store, {"gpu": "a100"}) == {first}
    second = put(store).id
    assert claimed(store) == {second}


@pytest.mark.parametrize("queues", [None, ["default", "mail"]], ids=str)
def test_a_worker_with_labels_takes_what_needs_them_and_what_needs_none_in_rank_order(
    store: Store, clock: VirtualClock, queues: list[str] | None
) -> None:
    """J3: from all queues and from named ones alike."""
    order = []
    for number in range(12):
        labels = [None, GPU, BOTH][number % 3]
        order.append(put(store, queue=("default", "mail")[number % 2], labels=labels).id)
        clock.advance(0.001)
    if queues is not None:
        put(store, queue="elsewhere", labels=GPU)
    put(store, "unknown", labels=GPU)
    has = {"gpu": "a100", "zone": "eu"}
    found = [claim.id for claim in store.claim("me", kinds=["k"], queues=queues, limit=7, labels=has)]
    assert found == order[:7]
    plain = [claim.id for claim in store.claim("me", kinds=["k"], queues=queues, limit=7)]
    assert plain == [job_id for place, job_id in enumerate(order) if place >= 7 and place % 3 == 0]


def test_a_worker_of_named_queues_without_labels_asks_no_more_than_it_would_without_labelled_jobs(
    store: Store,
) -> None:
    """J3: who does not use labels does not pay for them."""
    put(store)
    store.claim("me", kinds=["k"], queues=["default"])
    with statements(store) as alone:
        assert claimed(store, queues=["default"]) == set()
    put(store, labels=GPU)
    put(store, labels=BOTH)
    with statements(store) as beside:
        assert claimed(store, queues=["default"]) == set()
    assert [text for text in beside if "labels" in text] == []
    if store.database.dialect.name != "mysql":  # which looks for lines one by one
        assert len(beside) == len(alone)


def _retried(store: Store, clock: VirtualClock) -> None:
    store.retry(claim_one(store, labels={"gpu": "a100"}), "e", after=0)


def _retried_later(store: Store, clock: VirtualClock) -> None:
    store.retry(claim_one(store, labels={"gpu": "a100"}), "e", after=5)
    clock.advance(5)
    promote_all(store)


def _rescheduled(store: Store, clock: VirtualClock) -> None:
    store.reschedule(claim_one(store, labels={"gpu": "a100"}))


def _released(store: Store, clock: VirtualClock) -> None:
    claim_one(store, labels={"gpu": "a100"})
    store.release("me")


def _reclaimed(store: Store, clock: VirtualClock) -> None:
    claim_one(store, labels={"gpu": "a100"}, lease=5)
    clock.advance(5)
    store.reclaim_expired()


def _retried_by_hand(store: Store, clock: VirtualClock) -> None:
    claim = claim_one(store, labels={"gpu": "a100"})
    store.abandon(claim, "e")
    store.retry_job(claim.id)


@pytest.mark.parametrize(
    "comes_back",
    [_retried, _retried_later, _rescheduled, _released, _reclaimed, _retried_by_hand],
    ids=lambda given: given.__name__.strip("_"),
)
def test_a_job_that_comes_back_needs_what_it_needed(
    store: Store, clock: VirtualClock, comes_back: Callable[[Store, VirtualClock], None]
) -> None:
    """J3, J6, J7: by whichever way."""
    job_id = put(store, labels=GPU, max_attempts=5).id
    comes_back(store, clock)
    assert row(store, job_id)["line"] == line_of("default", "k", labels=GPU)
    assert claimed(store) == set()
    assert claimed(store, {"gpu": "a100"}) == {job_id}


def test_a_delayed_job_keeps_its_labels_until_it_is_due(store: Store, clock: VirtualClock) -> None:
    """J3."""
    job_id = put(store, labels=GPU, delay=SECOND).id
    clock.advance(1)
    promote_all(store)
    assert claimed(store) == set()
    assert claimed(store, {"gpu": "a100"}) == {job_id}


def test_a_holder_that_is_replaced_takes_the_new_labels(store: Store) -> None:
    """J1: also when the new job has none."""
    first = put(store, key="a", labels=GPU).id
    assert put(store, key="a", labels=BOTH, on_conflict=OnConflict.REPLACE).replaced
    assert claimed(store, {"gpu": "a100"}) == set()
    assert put(store, key="a", on_conflict=OnConflict.REPLACE).replaced
    assert row(store, first)["labels"] is None
    assert claimed(store) == {first}


def test_a_job_that_waited_for_a_permit_is_woken_in_its_own_line(store: Store) -> None:
    """S6, J3."""
    key = Concurrency("one at a time", busy=BusyPolicy.QUEUE)
    has = {"gpu": "a100"}
    for _ in range(2):
        put(store, labels=GPU, concurrency=key)
    (running,) = store.claim("me", kinds=["k"], limit=2, labels=has)
    assert store.complete(running)
    assert claimed(store) == set()
    assert len(claimed(store, has)) == 1


def test_a_job_that_stands_in_the_wrong_line_is_sent_to_its_own(store: Store, clock: VirtualClock) -> None:
    """J3: as a version that knows no labels would leave it. Its attempt is not spent, and the others are taken."""
    wrong, plain = put(store).id, put(store).id
    overwrite(store, wrong, labels=GPU)
    assert claimed(store) == {plain}
    stored = row(store, wrong)
    assert (stored["state"], stored["attempts"]) == (State.READY, 0)
    assert stored["line"] == line_of("default", "k", labels=GPU)
    assert claimed(store, {"gpu": "a100"}) == {wrong}


def test_labels_that_cannot_be_read_are_had_by_nobody(store: Store) -> None:
    """L6: the job waits in a line of its own, which the doctor names, and keeps nobody from work."""
    broken, good = put(store).id, put(store).id
    overwrite(store, broken, labels="{broken")
    assert claimed(store, {"gpu": "a100"}) == {good}
    assert claimed(store, {"gpu": "a100"}) == set()
    assert row(store, broken)["state"] == State.READY
    found = store.get(broken)
    assert found is not None
    assert found.labels == {}


def test_the_line_of_a_job_without_labels_is_what_it_has_always_been() -> None:
    """A release that knows labels finds what an earlier one has stored."""
    assert line_of("default", "k") == line_of("default", "k", labels=None) == 0x226A8037EA296D16
    assert line_of("default", "k") != line_of("default", "k", labels=GPU)


def test_the_occurrences_of_a_schedule_need_what_its_jobs_need(store: Store, clock: VirtualClock) -> None:
    """S1, J3: the summary of missed ones too, since it may be retried."""
    options = Options(labels=GPU)
    timing = Every(60 * SECOND, clock.now())
    store.save_schedule(NewSchedule("s", "k", "{}", options, timing, Misfire.SKIP, grace=SECOND))
    clock.advance(60)
    store.materialise_due()
    promote_all(store)
    assert claimed(store) == set()
    (made,) = claimed(store, {"gpu": "a100"})
    assert row(store, made)["trigger"] == Trigger.SCHEDULE
    clock.advance(300)
    store.materialise_due()
    (missed,) = store.list_occurrences(states=[State.SKIPPED])
    assert missed.labels == {"gpu": "a100"}
    store.retry_job(missed.id)
    assert claimed(store) == set()
    assert missed.id in claimed(store, {"gpu": "a100"})
    (shown,) = store.list_schedules()
    assert shown.labels == {"gpu": "a100"}


def test_jobs_are_listed_by_their_labels_exactly(store: Store) -> None:
    """J11: values with quotes, and those that differ in case alone."""
    odd = 'x":"y\\%_ü'
    ids = [put(store, labels=encode_labels(labels)).id for labels in ({"gpu": "a100"}, {"gpu": "A100", "n": odd})]
    put(store)
    put(store, labels=encode_labels({"xgpu": "a100"}))

    def listed(**labels: str) -> list[str]:
        return [job.id for job in store.list_jobs(labels=labels)]

    assert listed(gpu="a100") == [ids[0]]
    assert listed(gpu="A100") == [ids[1]]
    assert listed(gpu="A100", n=odd) == [ids[1]]
    assert listed(gpu="a100", n=odd) == []


def test_a_worker_takes_what_its_labels_allow_and_a_burst_ends_without_the_rest(app: fencepost.App) -> None:
    """J3: through the public face."""

    @app.job(kind="train", labels={"gpu": "a100"})
    async def train() -> str:
        return "trained"

    needy, plain = train.enqueue(), train.using(labels=None).enqueue()
    other = train.using(labels={"gpu": "h100"}).enqueue()
    app.run_worker(burst=True)
    assert [handle.job().state for handle in (needy, plain, other)] == [State.READY, State.SUCCEEDED, State.READY]
    app.run_worker(burst=True, labels={"gpu": "a100"}, queues=["default"])
    assert [handle.job().state for handle in (needy, other)] == [State.SUCCEEDED, State.READY]
    assert other.job().labels == {"gpu": "h100"}
    assert [job.id for job in app.jobs.list(labels={"gpu": "h100"})] == [other.id]


def test_a_claim_in_many_lines_of_other_labels_finds_its_own(store: Store) -> None:
    """J3: more lines than one statement takes, and than are remembered."""
    store.database.lines.update(dict.fromkeys(range(-10000, 0)))
    store.enqueue([new(labels=encode_labels({"n": str(number)})) for number in range(130)])
    assert len(claimed(store, {"n": "77"})) == 1
    assert len(store.database.lines) == 130


def test_the_line_of_a_claim_is_that_of_its_row(store: Store) -> None:
    """What a settlement computes is what an enqueue did."""
    job_id = put(store, queue="q", labels=BOTH).id
    before = row(store, job_id)["line"]
    claim = claim_one(store, labels={"gpu": "a100", "zone": "eu"})
    assert claim.labels == BOTH
    assert store.release("me") == 1
    assert row(store, job_id)["line"] == before
