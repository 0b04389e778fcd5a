"""Timeouts and cancellation of running handlers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import Reason, State
from tests.waiting import until
from tests.worker.conftest import Working


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What a blocked thread waits for; set at the end in any case."""
    event = threading.Event()
    yield event
    event.set()


def test_blocked_threads_time_out_and_give_their_slots_back_when_they_return(
    app: fencepost.App, working: Working, go_on: threading.Event
) -> None:
    """J6: a thread cannot be stopped, so it keeps its slot, and no second copy runs beside it in that slot."""
    together, most = 0, 0
    lock = threading.Lock()

    @app.job(timeout=0.3, max_attempts=1)
    def blocks() -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        go_on.wait(20)
        with lock:
            together -= 1

    @app.job
    def quick(value: int) -> int:
        return value

    stuck = [blocks.enqueue() for _ in range(4)]
    waiting = [quick.enqueue(value=i) for i in range(10)]
    worker = working(concurrency=2)
    for handle in stuck[:2]:
        with pytest.raises(fencepost.JobFailed, match=r"timeout\nTimed out after 0.3 s"):
            handle.result(timeout=10)
    assert worker.figures.running == 2
    assert [handle.job().state for handle in waiting] == [State.READY] * 10
    go_on.set()
    assert [handle.result(timeout=10) for handle in waiting] == list(range(10))
    assert [handle.job().reason for handle in stuck[:2]] == [Reason.TIMEOUT] * 2
    assert [handle.result(timeout=10) for handle in stuck[2:]] == [None, None]
    assert most == 2
    until(lambda: worker.figures.running == 0, "all slots are free")


def test_two_slots_are_usable_after_their_threads_were_timed_out(
    app: fencepost.App, working: Working, go_on: threading.Event
) -> None:
    """J6: no thread is lost."""
    both = threading.Barrier(2)

    @app.job(timeout=0.2, max_attempts=1)
    def blocks() -> None:
        go_on.wait(20)

    @app.job
    def meets() -> str:
        both.wait(10)
        return "met"

    stuck = [blocks.enqueue() for _ in range(2)]
    working(concurrency=2)
    until(lambda: all(handle.job().is_final for handle in stuck), "both time out")
    go_on.set()
    pair = [meets.enqueue() for _ in range(2)]
    assert [handle.result(timeout=10) for handle in pair] == ["met", "met"]


def test_a_timeout_error_of_the_handlers_own_is_an_ordinary_failure(app: fencepost.App, working: Working) -> None:
    """J6: whoever raises it."""

    @app.job(timeout=20, max_attempts=1)
    def on_thread() -> None:
        raise TimeoutError("mine")

    @app.job(timeout=20, max_attempts=1)
    async def on_loop() -> None:
        raise TimeoutError("mine")

    @app.job(timeout=20, max_attempts=1)
    async def inner() -> None:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(20)

    handles = [on_thread.enqueue(), on_loop.enqueue(), inner.enqueue()]
    working()
    for handle in handles:
        with pytest.raises(fencepost.JobFailed, match="attempts_exhausted"):
            handle.result(timeout=10)
    for handle in handles[:2]:
        assert (handle.job().last_error or "").rstrip().endswith("TimeoutError: mine")


def test_an_async_handler_is_cancelled_when_its_timeout_passes(app: fencepost.App, working: Working) -> None:
    """J6: it is tried again, with its backoff."""
    ended: list[str] = []

    @app.job(timeout=0.2, max_attempts=2, backoff=0)
    async def slow(ctx: fencepost.JobContext) -> int:
        try:
            await asyncio.sleep(30 if ctx.attempt == 1 else 0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return ctx.attempt

    handle = slow.enqueue()
    working()
    assert handle.result(timeout=10) == 2
    assert ended == ["cancelled"]
    (first,) = handle.job().history
    assert (first.reason, first.error) == (Reason.TIMEOUT, "Timed out after 0.2 s.")


def test_a_handler_that_swallows_its_cancellation_is_settled_all_the_same(app: fencepost.App, working: Working) -> None:
    """J5: what it returns later changes nothing; and the next job on the same loop is not cancelled for it."""
    returned = threading.Event()

    @app.job(timeout=0.2, max_attempts=1)
    async def stubborn() -> str:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        returned.set()
        return "as if nothing had happened"

    @app.job
    async def innocent() -> str:
        await asyncio.sleep(0.05)
        return "fine"

    handle = stubborn.enqueue()
    working(concurrency=1)
    with pytest.raises(fencepost.JobFailed, match="timeout"):
        handle.result(timeout=10)
    innocents = [innocent.enqueue() for _ in range(5)]
    assert [one.result(timeout=10) for one in innocents] == ["fine"] * 5
    assert returned.is_set()
    assert (handle.job().state, handle.job().result) == (State.FAILED, None)


def test_cancelling_a_running_async_handler_stops_it_at_the_next_heartbeat(
    app: fencepost.App, working: Working
) -> None:
    """S11 for jobs: final, with its identity free."""
    running, stopped = threading.Event(), threading.Event()

    @app.job
    async def long() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    handle = long.using(key="k").enqueue()
    working(lease=1)
    assert running.wait(10)
    assert handle.cancel()
    with pytest.raises(fencepost.JobCancelled):
        handle.result(timeout=10)
    assert stopped.is_set()
    assert app.jobs.find_live(long, "k") is None
    assert (handle.job().attempts, handle.job().reason) == (1, Reason.CANCELLED)


def test_a_handler_on_a_thread_learns_that_its_job_was_cancelled(app: fencepost.App, working: Working) -> None:
    """S11 for jobs: an error on its way out is kept, and it does not come back."""
    running = threading.Event()

    @app.job
    def long(ctx: fencepost.JobContext) -> None:
        running.set()
        while not ctx.cancelled:
            time.sleep(0.01)
        raise RuntimeError("stopped in the middle")

    handle = long.enqueue()
    working(lease=1)
    assert running.wait(10)
    assert handle.cancel()
    with pytest.raises(fencepost.JobCancelled):
        handle.result(timeout=10)
    assert "stopped in the middle" in (handle.job().last_error or "")


def test_a_job_that_fails_after_its_cancellation_was_asked_for_does_not_come_back(
    app: fencepost.App, working: Working
) -> None:
    """J6: whichever comes first, the failure or the heartbeat."""
    running, go_on = threading.Event(), threading.Event()

    @app.job(backoff=0)
    def fails() -> None:
        running.set()
        assert go_on.wait(20)
        raise RuntimeError("too late")

    handle = fails.enqueue()
    working(lease=60)
    assert running.wait(10)
    handle.cancel()
    go_on.set()
    with pytest.raises(fencepost.JobCancelled):
        handle.result(timeout=10)
    assert handle.job().attempts == 1
