"""Fixed starts in a worker: its slots, its end, and the instant at which a handler begins."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

import fencepost
from fencepost import State
from tests.waiting import until
from tests.worker.conftest import Working


def soon(app: fencepost.App, seconds: float) -> datetime:
    """An instant by the database's clock."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=app.store.now() + round(seconds * 1_000_000))


@pytest.mark.parametrize("executor", ["async", "thread"])
def test_no_handler_begins_before_its_fixed_start(
    app: fencepost.App, working: Working, executor: Literal["async", "thread"]
) -> None:
    began: list[int] = []

    async def on_loop() -> None:
        began.append(app.store.now())

    def on_thread() -> None:
        began.append(app.store.now())

    job = app.job(kind="exact")(on_loop if executor == "async" else on_thread)
    at = soon(app, 1.2)
    working()
    handle = job.using(start_at=at, tolerance=30).enqueue()
    until(lambda: handle.job().state == State.RUNNING, "it is claimed ahead", look=0.005)
    assert not began or began[0] >= (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    handle.result(timeout=20)
    assert began[0] >= (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert app.jobs.start_figures().kept == 1


def test_starts_that_are_awaited_take_no_more_than_their_share_of_the_slots(
    app: fencepost.App, working: Working
) -> None:
    """The rest of the work goes on beside them, and they all run in the end."""
    at = soon(app, 1.5)
    ran: list[str] = []

    @app.job(kind="exact")
    async def exact(number: int) -> None:
        ran.append(f"exact {number}")

    @app.job(kind="plain")
    async def plain() -> None:
        ran.append("plain")

    working(concurrency=8)
    fixed = app.enqueue_many(exact.using(start_at=at, tolerance=30).build(number=i) for i in range(20))
    app.enqueue_many(plain.build() for _ in range(50))
    until(
        # More are claimed, and given back at once until their instant.
        lambda: len(app.jobs.list(kind="exact", state="running")) <= 2 or soon(app, 0) >= at,
        "at most a quarter of the slots is held",
        look=0.005,
    )
    for handle in fixed:
        handle.result(timeout=20)
    until(lambda: ran.count("plain") == 50, "the others ran")
    assert sorted(set(ran)) == sorted(["plain", *(f"exact {number}" for number in range(20))])


def test_a_worker_that_stops_gives_back_the_starts_it_awaits(app: fencepost.App, working: Working) -> None:
    """J8: unspent, for another worker to begin in time."""
    began = threading.Event()

    @app.job(kind="exact")
    def exact() -> None:
        began.set()

    handle = exact.using(start_at=soon(app, 0.95), tolerance=60, on_miss="fail").enqueue()
    worker = working()
    until(lambda: handle.job().state == State.RUNNING, "it is claimed ahead", look=0.002)
    worker.stop()
    until(lambda: handle.job().state in (State.READY, State.SUCCEEDED), "it is given back")
    if not began.is_set():
        assert handle.job().attempts == 0
    working()
    handle.result(timeout=20)
    assert handle.job().attempts == 1
