"""Bounded queues: how many jobs may wait, and what becomes of the others, on every database."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine

import fencepost
from fencepost.job import NewJob, Priority, Reason, State
from fencepost.queue import Overflow, QueueSettings
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, new, other_stores, promote_all, row, rows, statements

QUEUE = "default"


def bound(store: Store, most: int, overflow: Overflow = Overflow.REJECT, *, fair: bool = False, wait: int = 0) -> None:
    store.configure_queue(QUEUE, QueueSettings(fair, most, overflow, wait))


def waiting(store: Store) -> int:
    return sum(found["state"] in (State.READY, State.BLOCKED) for found in rows(store))


def fill(store: Store, number: int, **options: Any) -> list[str]:
    return [result.id for result in store.enqueue_bounded(QUEUE, [new(**options) for _ in range(number)]).results]


def shed(store: Store) -> list[str]:
    return [found["id"] for found in rows(store) if found["reason"] == Reason.SHED]


def test_a_full_queue_rejects_and_stores_nothing(store: Store) -> None:
    bound(store, 3)
    fill(store, 2)
    with pytest.raises(fencepost.QueueFull, match="max_pending") as caught:
        fill(store, 2)
    assert (caught.value.queue, caught.value.max_pending, caught.value.refused, caught.value.stored) == (QUEUE, 3, 2, 0)
    fill(store, 1)
    assert waiting(store) == 3


def test_what_was_claimed_makes_room(store: Store) -> None:
    bound(store, 2)
    fill(store, 2)
    claim_one(store)
    fill(store, 1)
    assert waiting(store) == 2


@pytest.mark.parametrize("overflow", list(Overflow))
def test_racing_producers_never_exceed_the_bound(store: Store, overflow: Overflow) -> None:
    bound(store, 10, overflow)

    def produce(other: Store) -> int:
        stored = 0
        for _ in range(8):
            try:
                stored += len(other.enqueue_bounded(QUEUE, [new(), new()]).results)
            except fencepost.QueueFull:
                continue
        return stored

    with other_stores(store, 3) as others:
        stored = at_once([partial(produce, other) for other in others])
    assert waiting(store) == 10
    assert sum(stored) == 10 + len(shed(store))
    (queue,) = store.queue_counts()
    assert (queue.max_pending, queue.overflow, queue.shed) == (10, overflow, len(shed(store)))


def test_waiting_stores_what_fits_and_says_that_the_rest_may_ask_again(store: Store) -> None:
    bound(store, 3, Overflow.WAIT, wait=SECOND)
    batch = [new() for _ in range(5)]
    placed = store.enqueue_bounded(QUEUE, batch)
    assert [result.id for result in placed.results] == [job.id for job in batch[:3]]
    assert (placed.is_full, placed.wait) == (True, SECOND)


def test_shedding_skips_the_job_that_would_be_started_last(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    bound(store, 2, Overflow.SHED_LOWEST)
    (first,) = fill(store, 1, priority=Priority.NORMAL)
    (low,) = fill(store, 1, priority=Priority.LOW, key="it")
    with caplog.at_level(logging.WARNING, "fencepost.queues"):
        (high,) = fill(store, 1, priority=Priority.HIGH)
    assert "1 waiting jobs were skipped" in caplog.text
    lost = row(store, low)
    assert (lost["state"], lost["reason"], lost["live_key"]) == (State.SKIPPED, Reason.SHED, None)
    assert {first, high} == {found["id"] for found in rows(store) if found["state"] == State.READY}
    assert fill(store, 1, priority=Priority.LOW) == shed(store)[-1:]  # the new one itself


def test_shedding_skips_the_job_that_has_waited_longest(store: Store, clock: VirtualClock) -> None:
    bound(store, 2, Overflow.SHED_OLDEST)
    (oldest,) = fill(store, 1, priority=Priority.HIGH)
    clock.advance(1)
    fill(store, 1)
    clock.advance(1)
    fill(store, 1)
    assert shed(store) == [oldest]


def test_in_a_fair_queue_the_tenant_with_most_waiting_is_shed_first(store: Store, clock: VirtualClock) -> None:
    bound(store, 10, Overflow.SHED_LOWEST, fair=True)
    fill(store, 8, tenant="big")
    fill(store, 2, tenant="small")
    clock.advance(1)
    fill(store, 3, tenant="other")
    states = [(found["tenant"], found["state"]) for found in rows(store)]
    assert states.count(("big", State.SKIPPED)) == 3
    assert len(shed(store)) == 3
    promote_all(store)
    fill(store, 1, tenant="small")
    assert waiting(store) == 10


def test_jobs_that_are_not_due_and_jobs_that_run_do_not_count(store: Store) -> None:
    bound(store, 1)
    fill(store, 1)
    claim_one(store)
    fill(store, 5, delay=SECOND)
    fill(store, 1)
    with pytest.raises(fencepost.QueueFull):
        fill(store, 1)


def test_jobs_of_a_paused_queue_count(store: Store) -> None:
    bound(store, 1)
    fill(store, 1)
    store.set_paused(QUEUE, paused=True)
    with pytest.raises(fencepost.QueueFull):
        fill(store, 1)


def test_jobs_that_wait_for_their_turn_count(store: Store) -> None:
    bound(store, 4, fair=True)
    fill(store, 2, tenant="a")
    promote_all(store)
    fill(store, 2, tenant="b")
    with pytest.raises(fencepost.QueueFull):
        fill(store, 1, tenant="c")


def test_the_enqueue_of_an_identity_that_is_held_needs_no_room(store: Store) -> None:
    bound(store, 1)
    (holder,) = fill(store, 1, key="x")
    assert fill(store, 1, key="x") == [holder]


def test_an_enqueue_that_is_repeated_after_a_lost_answer_stores_and_sheds_nothing_twice(store: Store) -> None:
    """L3."""
    for overflow in (Overflow.REJECT, Overflow.WAIT):
        bound(store, waiting(store) + 2, overflow)
        batch = [new(), new()]
        once = store.enqueue_bounded(QUEUE, batch)
        assert store.enqueue_bounded(QUEUE, batch) == once
    bound(store, 3, Overflow.SHED_OLDEST)
    batch = [new(), new()]
    store.enqueue_bounded(QUEUE, batch)
    lost = shed(store)
    store.enqueue_bounded(QUEUE, batch)
    assert shed(store) == lost
    assert waiting(store) == 3


def test_a_queue_without_a_bound_pays_nothing(store: Store) -> None:
    app = fencepost.App(store.database.url)
    app.job(kind="k")(noop)
    app.enqueue("k")
    with statements(app.store) as plain:
        app.enqueue("k")
    app.queues.set("another", max_pending=3)
    with statements(app.store) as beside:
        app.enqueue("k")
    assert len(plain) == len(beside)
    app.close()


def noop() -> None:
    """A handler."""


def test_a_bound_that_was_set_elsewhere_is_the_one_that_counts(store: Store) -> None:
    """The decision reads the queue's row."""
    bound(store, 5)
    with other_stores(store, 1) as (other,):
        other.ensure_schema()
        bound(store, 1)
        other.enqueue_bounded(QUEUE, [new()])
        with pytest.raises(fencepost.QueueFull):
            other.enqueue_bounded(QUEUE, [new()])


def test_within_an_application_transaction_nothing_waits_and_the_bound_is_looked_at_before(app: fencepost.App) -> None:
    send = app.job(kind="k", queue="small")(noop)
    app.queue("small", max_pending=2, overflow="wait", wait=60)
    app.migrate()
    engine = create_engine(app.store.database.url)
    with engine.begin() as conn:
        send.using(connection=conn).enqueue()
    with engine.begin() as conn:
        app.enqueue_many([send.build()], connection=conn)
    with engine.begin() as conn, pytest.raises(fencepost.QueueFull):
        send.using(connection=conn).enqueue()
    app.queues.set("small", max_pending=2, overflow="shed_oldest")
    with engine.begin() as conn:
        send.using(connection=conn).enqueue()
    engine.dispose()
    (queue,) = app.queues.list()
    assert (queue.ready, queue.shed) == (2, 1)


def test_an_enqueue_waits_until_there_is_room(app: fencepost.App) -> None:
    send = app.job(kind="k", queue="small")(noop)
    app.queue("small", max_pending=2, overflow="wait")
    app.migrate()

    def drain() -> int:
        ended = 0
        while ended < 25:
            claims = app.store.claim("me", kinds=["k"], limit=5)
            ended += sum(app.store.complete(claim) for claim in claims)
        return ended

    handles, ended = at_once([lambda: len(app.enqueue_many(send.build() for _ in range(25))), drain])
    assert (handles, ended) == (25, 25)


async def _store(jobs: list[NewJob], app: fencepost.App) -> list[str]:
    return [handle.id for handle in await app.aenqueue_many(jobs)]


def test_an_enqueue_that_waited_in_vain_says_how_many_were_stored(app: fencepost.App) -> None:
    import asyncio

    send = app.job(kind="k")(noop)
    app.queue("small", max_pending=2, overflow="wait", wait=0.05)
    app.migrate()
    batch = [send.using(queue="small" if i % 2 else "large").build() for i in range(10)]
    with pytest.raises(fencepost.QueueFull) as caught:
        app.enqueue_many(batch)
    assert (caught.value.stored, caught.value.refused) == (2, 3)
    with pytest.raises(fencepost.QueueFull) as caught:
        asyncio.run(_store([send.using(queue="small").build()], app))
    assert (caught.value.stored, caught.value.refused) == (0, 1)
    assert asyncio.run(_store([send.using(queue="large").build()], app))


def test_a_declared_queue_is_known_at_once_and_written_when_a_worker_starts(app: fencepost.App) -> None:
    send = app.job(kind="k", queue="small")(noop)
    settings = app.queue("small", fair=True, max_pending=1)
    send.enqueue()
    with pytest.raises(fencepost.QueueFull):
        send.enqueue()
    assert app.store.queue_settings("small") is None
    app.run_worker(burst=True)
    assert app.store.queue_settings("small") == settings
    assert app.queues.get("small").fair
    assert app.queues.get("unknown").ready == 0
