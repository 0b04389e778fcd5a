"""Handles: waiting for results, and what is said when there is none."""

from __future__ import annotations

import asyncio
import threading

import pytest

import fencepost
from fencepost import State
from tests.waiting import until
from tests.worker.conftest import Working


def test_a_result_comes_back_as_its_declared_type(app: fencepost.App, working: Working) -> None:
    """J11 through the whole path."""

    @app.job
    async def double(value: int) -> dict[int, int]:
        return {value: value * 2}

    handle = double.enqueue(value=21)
    working()
    assert handle.result(timeout=10) == {21: 42}
    assert asyncio.run(handle.aresult(timeout=10)) == {21: 42}
    assert handle.job().state == State.SUCCEEDED


def test_waiting_for_a_result_gives_up_after_its_timeout_and_may_be_asked_again(
    app: fencepost.App, working: Working
) -> None:
    """The job goes on: a timeout of the one who waits is not the job's."""
    go_on = threading.Event()

    @app.job
    def waits() -> str:
        assert go_on.wait(20)
        return "done"

    handle = waits.enqueue()
    working()
    with pytest.raises(fencepost.ResultTimeout, match=r"after 0\.2 s") as late:
        handle.result(timeout=0.2)
    assert isinstance(late.value, TimeoutError)
    with pytest.raises(fencepost.ResultTimeout):
        asyncio.run(handle.aresult(timeout=0.1))
    go_on.set()
    assert handle.result(timeout=10) == "done"


def test_a_failed_job_has_its_error_in_what_result_raises(app: fencepost.App, working: Working) -> None:
    """J6."""

    @app.job(max_attempts=1)
    def fails() -> None:
        raise ValueError("not today")

    handle = fails.enqueue()
    working()
    with pytest.raises(fencepost.JobFailed, match="ValueError: not today") as failed:
        handle.result(timeout=10)
    assert failed.value.job.reason == "attempts_exhausted"
    with pytest.raises(fencepost.JobFailed):
        asyncio.run(handle.aresult(timeout=10))


def test_a_handler_says_what_becomes_of_its_job(app: fencepost.App, working: Working) -> None:
    """J6: retry keeps the count, abandon and cancel are final."""
    attempts: list[int] = []

    @app.job
    async def decides(ctx: fencepost.JobContext, how: str) -> str:
        match how:
            case "retry":
                attempts.append(ctx.attempt)
                if ctx.attempt < 3:
                    raise fencepost.Retry("once more", after=0)
                return "third"
            case "abandon":
                raise fencepost.Abandon("no use")
            case _:
                raise fencepost.Cancel("not wanted")

    retried, abandoned, cancelled = [decides.enqueue(how=how) for how in ("retry", "abandon", "cancel")]
    working()
    assert retried.result(timeout=10) == "third"
    assert attempts == [1, 2, 3]
    with pytest.raises(fencepost.JobFailed, match="abandoned\nno use"):
        abandoned.result(timeout=10)
    with pytest.raises(fencepost.JobCancelled):
        cancelled.result(timeout=10)
    assert cancelled.job().last_error == "not wanted"


def test_a_waiting_job_is_cancelled_at_once(app: fencepost.App, working: Working) -> None:
    """J9: and its identity is free."""
    started = threading.Event()

    @app.job
    async def never() -> None:
        started.set()

    handle = never.using(delay=0.5, key="k").enqueue()
    working()
    assert handle.cancel()
    with pytest.raises(fencepost.JobCancelled):
        handle.result(timeout=5)
    assert not handle.cancel()
    again = never.using(key="k").enqueue()
    assert again.created
    assert again.result(timeout=5) is None
    assert started.is_set()


def test_a_worker_in_the_same_process_is_woken_by_an_enqueue(app: fencepost.App, working: Working) -> None:
    """Its poll is an hour away, so nothing but the wake-up can be what starts these jobs."""

    @app.job
    async def quick() -> int:
        return 1

    working(poll=3600)
    until(lambda: app.store.list_workers(), "it works")
    for _ in range(3):
        assert quick.enqueue().result(timeout=5) == 1

    async def enqueue() -> int:
        handle = await quick.aenqueue()
        return await handle.aresult(timeout=5)

    assert asyncio.run(enqueue()) == 1
    assert app.enqueue_many([quick.build()])[0].result(timeout=5) == 1
    assert quick.using(delay=0.1).enqueue().result(timeout=5) == 1


def test_a_burst_worker_runs_what_is_due_and_what_that_enqueues_and_ends(app: fencepost.App) -> None:
    """J3: what is not due is left alone."""
    ran: list[int] = []

    @app.job
    def chain(left: int) -> None:
        ran.append(left)
        if left:
            chain.enqueue(left=left - 1)

    later = chain.using(delay=300).enqueue(left=99)
    chain.enqueue(left=3)
    app.run_worker(burst=True, lease=2, poll=0.05)
    assert ran == [3, 2, 1, 0]
    assert later.job().state == State.SCHEDULED
