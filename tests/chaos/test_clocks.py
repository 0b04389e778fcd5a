"""Hosts whose clocks differ: the database's clock decides, so none of them does harm."""

from __future__ import annotations

import pytest

import fencepost
from fencepost import State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos

_TEN_MINUTES = 600


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_a_worker_whose_clock_is_off_runs_nothing_early_and_steals_no_lease(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """S4 for jobs: due times and leases are judged by one clock, which is the database's."""
    normal = crew.working(app, lease=2)
    (long,) = app.enqueue_many([handlers.sleeps.build(name="long", seconds=[5])])
    until(journal.starts, "the long job runs")
    fast = crew.worker(lease=2, clock_shift=_TEN_MINUTES)
    slow = crew.worker(lease=2, clock_shift=-_TEN_MINUTES)
    crew.await_working(app, fast, slow)
    (later,) = app.enqueue_many([handlers.quick.using(delay=300).build(name="later")])
    (soon,) = app.enqueue_many([handlers.quick.using(delay=1).build(name="soon")])

    assert long.result(timeout=20) == 1
    soon.result(timeout=10)

    assert [entry.pid for entry in journal.starts("long")] == [normal.pid]
    assert len(journal.starts("soon")) == 1
    assert journal.starts("later") == []
    assert later.job().state == State.SCHEDULED
    job = soon.job()
    assert job.started_at is not None
    assert job.created_at < job.run_at <= job.started_at
    recorded = app.store.list_workers()
    assert len(recorded) == 3
    instants = [worker.started_at for worker in recorded if worker.started_at is not None]
    assert (max(instants) - min(instants)).total_seconds() < _TEN_MINUTES / 2
    assert [worker.trouble() for worker in (normal, fast, slow)] == [[], [], []]


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_two_workers_with_shifted_clocks_share_the_work_of_a_third_that_is_killed(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """S4, J7: a lease that a fast or slow host wrote runs out when it should."""
    fast = crew.working(app, lease=1, clock_shift=_TEN_MINUTES)
    (handle,) = app.enqueue_many([handlers.sleeps.build(name="job", seconds=[60, 0])])
    until(journal.starts, "it runs on the fast host")
    slow = crew.working(app, lease=1, clock_shift=-_TEN_MINUTES)
    fast.kill()

    assert handle.result(timeout=15) == 2
    assert [entry.pid for entry in journal.starts()] == [fast.pid, slow.pid]
