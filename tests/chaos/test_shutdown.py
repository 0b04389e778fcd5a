"""Deploys: a worker that is told to stop finishes what it can, hands back the rest, and ends."""

from __future__ import annotations

import signal
import time

import pytest

import fencepost
from fencepost import Reason, State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew, is_running
from tests.waiting import until

pytestmark = pytest.mark.chaos

_GRACE = 2.5
_MARGIN = 2


def test_sigterm_lets_short_jobs_finish_and_hands_long_ones_back_with_their_attempt_unspent(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J8: deploys never use up attempts, not even a job's only one."""
    worker = crew.worker(lease=30, grace=_GRACE, concurrency=4, processes=1)
    once = {"max_attempts": 1}
    short = app.enqueue_many(
        [
            handlers.sleeps.using(**once).build(name="short", seconds=[1.5]),  # type: ignore[arg-type]
            handlers.sleeps_on_thread.using(**once).build(name="short", seconds=[1.5]),  # type: ignore[arg-type]
        ]
    )
    long = app.enqueue_many(
        [
            handlers.sleeps.using(**once).build(name="long", seconds=[30]),  # type: ignore[arg-type]
            handlers.sleeps_on_thread.using(**once).build(name="long", seconds=[30]),  # type: ignore[arg-type]
            handlers.sleeps_in_process.using(**once).build(name="long", seconds=[30]),  # type: ignore[arg-type]
        ]
    )
    until(lambda: len(journal.starts()) == 5, "all five run")
    queued = app.enqueue_many(handlers.quick.using(**once).build(name="queued") for _ in range(10))  # type: ignore[arg-type]

    worker.signal(signal.SIGTERM)
    assert worker.exit_code(within=_GRACE + _MARGIN) == 0

    assert [handle.job().state for handle in short] == [State.SUCCEEDED] * 2
    for job in (handle.job() for handle in long):
        assert (job.state, job.reason, job.attempts, job.lease_owner) == (State.READY, Reason.RELEASED, 0, None)
        assert job.history == ()
    assert journal.starts("queued") == []
    assert {handle.job().state for handle in queued} == {State.READY}
    (child,) = [entry.pid for entry in journal.starts() if entry.pid != worker.pid]
    until(lambda: not is_running(child), "its child process is gone")
    assert app.store.list_workers() == []
    claimed = app.store.claim("next", kinds=["sleeps", "sleeps_on_thread", "sleeps_in_process"], limit=10)
    assert sorted((claim.id, claim.attempt, claim.lease.token) for claim in claimed) == sorted(
        (handle.id, 1, 2) for handle in long
    )


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
)
def test_a_second_signal_ends_the_grace_at_once(
    first: signal.Signals, second: signal.Signals, app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J8: nothing is left running, and the exit is clean."""
    worker = crew.worker(lease=30, grace=60)
    handles = app.enqueue_many(
        [
            handlers.sleeps.using(max_attempts=1).build(name="async", seconds=[60]),
            handlers.sleeps_on_thread.using(max_attempts=1).build(name="thread", seconds=[60]),
        ]
    )
    until(lambda: len(journal.starts()) == 2, "both run")

    worker.signal(first)
    time.sleep(0.05)  # two signals at the very same moment are one
    worker.signal(second)
    assert worker.exit_code(within=_MARGIN + 1) == 0

    assert [(handle.job().state, handle.job().attempts) for handle in handles] == [(State.READY, 0)] * 2


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_burst_of_signals_ends_a_busy_worker_cleanly(app: fencepost.App, crew: Crew, journal: Journal) -> None:
    """J8: a signal that interrupts the handling of another does no harm."""
    worker = crew.worker(lease=30, grace=1, concurrency=50)
    app.enqueue_many(handlers.sleeps.build(name=f"job-{i}", seconds=[0.01]) for i in range(2000))
    until(lambda: len(journal.starts()) > 100, "it is busy")

    for _ in range(20):
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
    assert worker.exit_code(within=1 + _MARGIN) == 0

    assert app.jobs.list(state=State.RUNNING) == []


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_sigint_alone_stops_as_sigterm_does(app: fencepost.App, crew: Crew, journal: Journal) -> None:
    """J8."""
    worker = crew.worker(lease=30, grace=_GRACE)
    short, long = app.enqueue_many(
        [
            handlers.sleeps.build(name="short", seconds=[1]),
            handlers.sleeps.build(name="long", seconds=[30]),
        ]
    )
    until(lambda: len(journal.starts()) == 2, "both run")

    worker.signal(signal.SIGINT)
    assert worker.exit_code(within=_GRACE + _MARGIN) == 0

    assert short.job().state == State.SUCCEEDED
    assert (long.job().state, long.job().attempts) == (State.READY, 0)


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_handler_that_blocks_the_event_loop_cannot_keep_its_worker_from_ending(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J8: signals are heard, the job is handed back."""
    worker = crew.worker(lease=30, grace=1)
    (handle,) = app.enqueue_many([handlers.blocks_loop.using(max_attempts=1).build(name="job", seconds=[60])])
    until(journal.starts, "it runs")

    worker.signal(signal.SIGTERM)
    assert worker.exit_code(within=1 + _MARGIN) == 0

    assert (handle.job().state, handle.job().attempts) == (State.READY, 0)


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_an_idle_worker_ends_without_waiting_for_its_grace(app: fencepost.App, crew: Crew) -> None:
    """J8."""
    worker = crew.working(app, lease=30, grace=60)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code(within=_MARGIN) == 0
    assert app.store.list_workers() == []
    assert worker.trouble() == []
