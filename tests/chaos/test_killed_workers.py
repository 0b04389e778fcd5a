"""Workers that are killed or frozen: their jobs run elsewhere, and what comes back to life does no harm."""

from __future__ import annotations

import signal

import pytest

import fencepost
from fencepost import Reason, State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew, Process
from tests.waiting import until

pytestmark = pytest.mark.chaos

_LEASE = 2.0


def _record_of(app: fencepost.App, worker: Process) -> str:
    (owner,) = [recorded.owner for recorded in app.store.list_workers() if recorded.pid == worker.pid]
    return owner


def test_the_jobs_of_a_killed_worker_run_elsewhere_even_if_its_record_was_removed_first(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J7, J4: leases alone decide; the list of workers is for people."""
    again = app.enqueue_many(handlers.sleeps.build(name=f"again-{i}", seconds=[60, 0]) for i in range(3))
    (once,) = app.enqueue_many([handlers.sleeps.using(max_attempts=1).build(name="once", seconds=[60, 0])])
    first = crew.working(app, lease=_LEASE)
    until(lambda: len(journal.starts()) == 4, "all four run")
    owner = _record_of(app, first)
    first.kill()
    app.store.forget_worker(owner)

    second = crew.worker(lease=_LEASE)

    for handle in again:
        until(lambda handle=handle: handle.job().is_final, "the jobs run again", seconds=15)  # type: ignore[misc]
    for handle in again:
        job = handle.job()
        assert (job.state, job.attempts, job.result) == (State.SUCCEEDED, 2, 2)
        (died,) = job.history
        assert (died.attempt, died.reason, died.worker) == (1, Reason.LEASE_EXPIRED, owner)
        assert [entry.pid for entry in journal.starts(job.arguments["name"])] == [first.pid, second.pid]
    until(lambda: once.job().is_final, "the job with one attempt ends")
    job = once.job()
    assert (job.state, job.reason, job.attempts) == (State.FAILED, Reason.LEASE_EXPIRED, 1)
    assert job.last_error is not None
    assert owner in job.last_error
    assert len(journal.starts("once")) == 1
    assert app.jobs.list(state=State.RUNNING) == []


def test_a_job_whose_worker_is_killed_twice_succeeds_with_its_third_attempt(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J4, J7: an attempt that died counts, and the history says that it died."""
    (handle,) = app.enqueue_many(
        [handlers.sleeps_on_thread.using(max_attempts=3).build(name="job", seconds=[60, 60, 0.1])]
    )
    for number in (1, 2):
        worker = crew.worker(lease=1)
        until(lambda number=number: len(journal.starts()) == number, f"attempt {number} starts", seconds=15)  # type: ignore[misc]
        worker.kill()
    crew.worker(lease=1)

    assert handle.result(timeout=15) == 3
    assert [entry.attempt for entry in journal.starts()] == [1, 2, 3]
    assert [entry.token for entry in journal.starts()] == [1, 2, 3]
    assert [(died.attempt, died.reason) for died in handle.job().history] == [
        (1, Reason.LEASE_EXPIRED),
        (2, Reason.LEASE_EXPIRED),
    ]


def test_a_worker_that_was_frozen_past_its_lease_writes_nothing_says_so_once_and_goes_on_working(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J5: the newer attempt's result stands, whatever the older one returns."""
    stale = app.enqueue_many(
        [
            handlers.sleeps.using(max_attempts=2).build(name="async", seconds=[3, 0]),
            handlers.sleeps_on_thread.using(max_attempts=2).build(name="thread", seconds=[3, 0]),
        ]
    )
    frozen = crew.working(app, lease=_LEASE)
    until(lambda: len(journal.starts()) == 2, "both run")
    frozen.signal(signal.SIGSTOP)
    other = crew.worker(lease=_LEASE)
    assert [handle.result(timeout=15) for handle in stale] == [2, 2]
    ended = [handle.job() for handle in stale]
    other.signal(signal.SIGTERM)
    assert other.exit_code(within=10) == 0

    frozen.signal(signal.SIGCONT)

    until(lambda: frozen.said.count("was not settled") >= 2, "the frozen worker says what it lost")
    (fresh,) = app.enqueue_many([handlers.sleeps.build(name="fresh", seconds=[0])])
    assert fresh.result(timeout=10) == 1
    until(lambda: len(journal.entries("end", "thread")) == 2, "the old thread returns")
    assert [entry.pid for entry in journal.starts("fresh")] == [frozen.pid]
    frozen.signal(signal.SIGTERM)
    assert frozen.exit_code(within=10) == 0
    for handle in stale:
        assert frozen.said.count(f"Job {handle.id} ") == 1
    assert [handle.job() for handle in stale] == ended


def test_a_lone_worker_that_was_frozen_goes_on_with_its_jobs_where_it_was(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J7: nobody has taken its leases, so it renews them before anything else."""
    worker = crew.working(app, lease=1)
    (handle,) = app.enqueue_many([handlers.sleeps_on_thread.build(name="job", seconds=[3.5])])
    until(journal.starts, "it runs")
    worker.signal(signal.SIGSTOP)

    def has_expired() -> bool:
        lease_until = handle.job().lease_until
        assert lease_until is not None
        return lease_until.timestamp() * 1_000_000 < app.store.now()

    until(has_expired, "its lease has run out")
    worker.signal(signal.SIGCONT)

    assert handle.result(timeout=15) == 1
    assert len(journal.starts()) == 1
    assert worker.trouble() == []


def test_cancelling_a_job_whose_worker_is_dead_ends_it_when_its_lease_has_run_out(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J7: a cancelled job does not come back."""
    (handle,) = app.enqueue_many([handlers.sleeps.build(name="job", seconds=[60])])
    worker = crew.worker(lease=1)
    until(journal.starts, "it runs", seconds=15)
    worker.kill()
    assert handle.cancel()
    crew.worker(lease=1)

    with pytest.raises(fencepost.JobCancelled):
        handle.result(timeout=15)
    assert len(journal.starts()) == 1
