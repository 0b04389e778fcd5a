"""The event loop's handlers: each in a context and a cancellation of its own, although they share tasks."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.job import Reason, State

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="untouched")


@pytest.fixture
def memory() -> Iterator[fencepost.App]:
    """An app on a database in memory."""
    app = fencepost.App("sqlite://")
    yield app
    app.close()


def run(app: fencepost.App, *handles: fencepost.JobHandle[Any], concurrency: int = 1) -> list[fencepost.Job]:
    app.run_worker(burst=True, concurrency=concurrency, poll=0.01)
    return [handle.job() for handle in handles]


def test_what_one_handler_puts_into_a_context_variable_the_next_does_not_see(memory: fencepost.App) -> None:
    seen: list[str] = []

    @memory.job
    async def handler(number: int, waits: bool) -> None:
        seen.append(variable.get())
        variable.set(f"by {number}")
        if waits:
            await asyncio.sleep(0)
        seen.append(variable.get())

    handles = [handler.enqueue(number=number, waits=bool(number % 2)) for number in range(6)]
    jobs = run(memory, *handles)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert seen[::2] == ["untouched"] * 6
    assert seen[1::2] == [f"by {number}" for number in range(6)]


def test_handlers_that_run_side_by_side_keep_their_variables_apart(memory: fencepost.App) -> None:
    met = threading.Barrier(1)

    @memory.job
    async def handler(number: int) -> str:
        variable.set(f"by {number}")
        for _ in range(5):
            await asyncio.sleep(0)
        met.wait(1)
        return variable.get()

    jobs = run(memory, *[handler.enqueue(number=number) for number in range(8)], concurrency=8)
    assert [job.result for job in jobs] == [f"by {number}" for number in range(8)]


def test_a_plain_handlers_variables_are_its_own_too(memory: fencepost.App) -> None:
    @memory.job
    def handler(number: int) -> str:
        before = variable.get()
        variable.set(f"by {number}")
        return before

    jobs = run(memory, *[handler.enqueue(number=number) for number in range(4)])
    assert [job.result for job in jobs] == ["untouched"] * 4


def test_a_variable_reaches_what_the_handler_starts(memory: fencepost.App) -> None:
    @memory.job
    async def handler() -> list[str]:
        variable.set("mine")

        async def child() -> str:
            return variable.get()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(child())
        return [await child(), task.result(), await asyncio.to_thread(variable.get)]

    (job,) = run(memory, handler.enqueue())
    assert job.result == ["mine"] * 3


def test_timeouts_task_groups_and_the_current_task_work_in_handlers(memory: fencepost.App) -> None:
    @memory.job
    async def handler() -> str:
        task = asyncio.current_task()
        assert task is not None
        assert task in asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        assert task.cancelling() == 0

        async def fails() -> None:
            raise ZeroDivisionError

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(asyncio.Event().wait())

        with pytest.raises(ExceptionGroup):
            await together()
        return "all of it"

    jobs = run(memory, handler.using(max_attempts=1).enqueue(), handler.using(max_attempts=1).enqueue())
    assert [(job.state, job.result, job.last_error) for job in jobs] == [(State.SUCCEEDED, "all of it", None)] * 2


def test_an_own_timeout_error_is_an_ordinary_failure(memory: fencepost.App) -> None:
    """A handler that raises TimeoutError did not outlast its timeout."""

    @memory.job(max_attempts=1, timeout=60)
    async def on_the_loop() -> None:
        raise TimeoutError("mine")

    @memory.job(max_attempts=1, timeout=60)
    def on_a_thread() -> None:
        raise TimeoutError("mine")

    for job in run(memory, on_the_loop.enqueue(), on_a_thread.enqueue()):
        assert (job.state, job.reason) == (State.FAILED, Reason.ATTEMPTS_EXHAUSTED)
        assert (job.last_error or "").endswith("TimeoutError: mine\n")


def test_a_handler_that_sleeps_past_its_timeout_is_stopped_and_the_next_one_runs_unharmed(
    memory: fencepost.App,
) -> None:
    """The cancellation was that attempt's, not its task's."""

    @memory.job(max_attempts=1, timeout=0.05)
    async def sleeps() -> None:
        await asyncio.Event().wait()

    @memory.job(max_attempts=1)
    async def next_one() -> int:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    late, after = run(memory, sleeps.enqueue(), next_one.enqueue())
    assert (late.state, late.reason) == (State.FAILED, Reason.TIMEOUT)
    assert "Timed out after 0.05 s" in (late.last_error or "")
    assert (after.state, after.result) == (State.SUCCEEDED, 0)


def test_a_handler_that_swallows_its_cancellation_stays_timed_out_and_harms_no_other(memory: fencepost.App) -> None:
    """What it returns afterwards changes nothing."""
    went_on = threading.Event()

    @memory.job(max_attempts=1, timeout=0.05)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        went_on.set()
        return "carried on"

    @memory.job(max_attempts=1)
    async def next_one() -> str:
        await asyncio.sleep(0)
        return "fine"

    late, after = run(memory, stubborn.enqueue(), next_one.enqueue())
    assert went_on.is_set()
    assert (late.state, late.reason, late.result) == (State.FAILED, Reason.TIMEOUT, None)
    assert (after.state, after.result) == (State.SUCCEEDED, "fine")


def test_a_timed_out_thread_keeps_its_slot_until_it_returns_and_then_gives_it_back(memory: fencepost.App) -> None:
    """A thread cannot be stopped: its job is given up in time, and all slots are usable afterwards."""
    given_up = threading.Event()

    @memory.job(max_attempts=1, timeout=0.05)
    def blocks(ctx: fencepost.JobContext) -> None:
        # As a call that cannot be interrupted; it ends when its job was given up.
        while not ctx.cancelled:
            given_up.wait(0.01)

    @memory.job
    def quick(number: int) -> int:
        return number

    blocked = [blocks.enqueue() for _ in range(4)]
    quicks = [quick.enqueue(number=number) for number in range(10)]
    jobs = run(memory, *blocked, *quicks, concurrency=2)
    assert [(job.state, job.reason) for job in jobs[:4]] == [(State.FAILED, Reason.TIMEOUT)] * 4
    assert [job.result for job in jobs[4:]] == list(range(10))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_handler_cannot_stop_its_worker_by_raising(
    memory: fencepost.App, error: BaseException, is_async: bool
) -> None:
    """sys.exit() in a handler is that attempt's failure, and the next job runs."""
    if isinstance(error, GeneratorExit) and is_async:
        error = RuntimeError("on the event loop a GeneratorExit means that the loop is torn down")

    @memory.job(max_attempts=1)
    async def on_the_loop() -> None:
        if isinstance(error, SystemExit):
            sys.exit(3)
        raise error

    @memory.job(max_attempts=1)
    def on_a_thread() -> None:
        if isinstance(error, SystemExit):
            sys.exit(3)
        raise error

    @memory.job
    async def next_one() -> str:
        return "ran"

    handler: fencepost.JobFunction[[], None] = on_the_loop if is_async else on_a_thread
    failed, after = run(memory, handler.enqueue(), next_one.enqueue())
    assert (failed.state, failed.reason) == (State.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert type(error).__name__ in (failed.last_error or "")
    assert after.result == "ran"


def test_a_handler_that_cancels_its_own_task_fails_alone(memory: fencepost.App) -> None:
    @memory.job(max_attempts=1)
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @memory.job
    async def next_one() -> str:
        await asyncio.sleep(0)
        return "ran"

    failed, after = run(memory, cancels_itself.enqueue(), next_one.using(max_attempts=1).enqueue(), concurrency=4)
    assert (failed.state, failed.reason) == (State.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert "CancelledError" in (failed.last_error or "")
    assert after.result == "ran"


def test_a_cancellation_that_a_handler_leaves_behind_does_not_reach_the_next(memory: fencepost.App) -> None:
    """It asked its own task to cancel, and returned before that could happen."""

    @memory.job(max_attempts=1)
    async def leaves_it_behind() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "returned"

    @memory.job
    async def next_one() -> int:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    first = leaves_it_behind.enqueue()
    others = [next_one.using(max_attempts=1).enqueue() for _ in range(8)]
    _, *after = run(memory, first, *others, concurrency=9)
    assert [(job.state, job.result) for job in after] == [(State.SUCCEEDED, 0)] * 8
