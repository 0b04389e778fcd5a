"""Jobs that outlast their lease, and jobs that kill the process they run in."""

from __future__ import annotations

import pytest

import fencepost
from fencepost import NewJob, Reason, State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos


def test_a_job_longer_than_its_lease_starts_once_while_idle_workers_look_on(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J7: the heartbeat has a thread of its own, so a handler that blocks thread or loop keeps its lease."""
    workers = [crew.worker(lease=1.5, concurrency=4) for _ in range(3)]
    crew.await_working(app, *workers)
    jobs = app.enqueue_many(
        [
            handlers.sleeps.build(name="sleeps", seconds=[3]),
            handlers.sleeps_on_thread.build(name="thread", seconds=[3]),
            handlers.blocks_loop.build(name="blocks", seconds=[3]),
            handlers.sleeps_on_thread.using(timeout=60).build(name="timeout", seconds=[3]),
        ]
    )

    assert [handle.result(timeout=20) for handle in jobs] == [1, 1, 1, 1]

    assert sorted(entry.name for entry in journal.starts()) == ["blocks", "sleeps", "thread", "timeout"]
    assert [worker.trouble() for worker in workers] == [[], [], []]


@pytest.mark.parametrize(
    ("database_name", "how"),
    [("sqlite", "killed"), ("postgresql", "killed"), ("mysql", "killed"), ("sqlite", "segfault")],
    indirect=["database_name"],
)
def test_a_job_that_kills_its_process_ends_failed_after_its_attempts_and_takes_no_other_with_it(
    how: str, app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J4: attempts move at the claim. The jobs beside it lose one attempt to its first crash, and no more."""

    def harmless(number: int) -> NewJob:
        return handlers.quick.using(max_attempts=3).build(name=f"harmless-{number}")

    poison = handlers.dies.using(max_attempts=3).build(name="poison", how=how)
    jobs = [*map(harmless, range(25)), poison, *map(harmless, range(25, 50))]
    handles = [handle for job in jobs for handle in app.enqueue_many([job])]  # the order outlasts the crashes
    _supervise(app, crew)

    died = handles[25].job()
    assert (died.state, died.reason, died.attempts) == (State.FAILED, Reason.LEASE_EXPIRED, 3)
    assert len(journal.starts("poison")) == 3
    others = [handle.job() for handle in handles if handle.id != died.id]
    assert {job.state for job in others} == {State.SUCCEEDED}


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_deadly_job_does_not_cost_slow_jobs_beside_it_their_last_attempt(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J4: a suspect that has one attempt left runs with nothing beside it."""

    def slow(number: int) -> NewJob:
        return handlers.sleeps.using(max_attempts=3).build(name=f"slow-{number}", seconds=[0.2])

    poison = handlers.dies.using(max_attempts=3).build(name="poison", how="killed")
    handles = []
    for job in (*map(slow, range(6)), poison, *map(slow, range(6, 12))):
        handles += app.enqueue_many([job])  # one by one, so that the order outlasts the crashes
    _supervise(app, crew)

    assert len(journal.starts("poison")) == 3
    others = [handle.job() for handle in handles if handle is not handles[6]]
    assert {(job.state, job.reason) for job in others} == {(State.SUCCEEDED, None)}
    assert handles[6].job().reason == Reason.LEASE_EXPIRED


def _supervise(app: fencepost.App, crew: Crew) -> None:
    """Whatever worker ends is started again, until nothing is left to do."""
    crashes = 0
    while True:
        worker = crew.worker(lease=1, concurrency=100)
        until(lambda worker=worker: not worker.is_alive or not _live(app), "all is final or the worker died")  # type: ignore[misc]
        if not _live(app):
            return
        crashes += 1
        assert crashes <= 3, worker.said


def _live(app: fencepost.App) -> int:
    return sum(app.jobs.count_live(kind) for kind in ("quick", "sleeps", "dies"))
