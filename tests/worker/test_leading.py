"""Workers that lead and stand by: L2 as a worker lives it."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import URL

import fencepost
from fencepost import State
from fencepost.store import Leader
from tests.waiting import until
from tests.worker.conftest import Working, running

LONG = 600.0


def leader_of(app: fencepost.App) -> Leader | None:
    found = app.store.leader()
    return None if found is None or found.holder is None else found


def somebody_leads(app: fencepost.App) -> None:
    """Another process leads, and does nothing at all."""
    assert app.store.lead("somebody", lease=LONG) is not None


def test_a_lone_worker_leads_at_once_and_leaves_the_lead_when_it_stops(app: fencepost.App) -> None:
    """L2: also after a former one that stopped, whatever the lease."""
    app.job(kind="k")(lambda: None)
    for number in (1, 2):
        with running(app, leader_lease=LONG) as worker:
            found = until(lambda: leader_of(app), "it leads")
            assert found is not None
            assert (found.holder, found.epoch) == (worker.owner, number)
        assert leader_of(app) is None


def test_when_the_leader_stops_a_standby_leads_at_once(url: URL) -> None:
    """L2: it does not wait for the lease."""
    with closing(fencepost.App(url)) as one, closing(fencepost.App(url)) as two:
        for app in (one, two):
            app.job(kind="k")(lambda: None)
        with running(one, leader_lease=LONG) as leader:
            until(lambda: leader_of(one), "the first leads")
            with running(two, leader_lease=LONG) as standby:
                until(lambda: len(two.store.list_workers()) == 2, "the second works")
                found = leader_of(two)
                assert found is not None
                assert found.holder == leader.owner
                leader.stop()
                until(lambda: getattr(leader_of(two), "holder", None) == standby.owner, "the second leads")


def test_a_standby_starts_what_its_own_process_delayed_without_the_leader(app: fencepost.App, working: Working) -> None:
    """L2: a short delay and a retry; the leader might see them half a second later."""
    attempts: list[int] = []

    @app.job(kind="k", backoff=0.1)
    def fails_once(ctx: fencepost.JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    somebody_leads(app)
    working()
    handle = fails_once.using(delay=0.1).enqueue()
    until(lambda: handle.job().state is State.SUCCEEDED, "it ran twice")
    assert attempts == [1, 2]
    found = leader_of(app)
    assert found is not None
    assert found.holder == "somebody"


def test_a_standby_starts_what_is_overdue_while_the_leader_does_not(
    app: fencepost.App, url: URL, working: Working
) -> None:
    """L2: so that a dead leader delays no due job for as long as its lease lasts."""

    @app.job(kind="k")
    def k() -> None: ...

    somebody_leads(app)
    working()
    until(app.store.list_workers, "it works")
    with closing(fencepost.App(url)) as other:
        other.job(kind="k")(k.handler.function)
        handle = other.enqueue("k", delay=0.2)
        until(lambda: handle.job().state is State.SUCCEEDED, "it ran")


def test_a_standby_plans_nothing_and_takes_no_lease_back(app: fencepost.App, working: Working) -> None:
    """L2: that is the leader's."""

    @app.schedule("* * * * * *")
    @app.job(kind="k")
    def k() -> None: ...

    somebody_leads(app)
    handle = k.using(priority="critical").enqueue()
    assert app.store.claim("gone", kinds=["k"], lease=0)
    worker = working()
    assert k.enqueue().result(timeout=20) is None
    until(lambda: worker.figures.settled, "it works")
    assert handle.job().state is State.RUNNING
    assert app.schedules.occurrences() == []


def test_a_burst_worker_does_its_own_housekeeping_whoever_leads(app: fencepost.App) -> None:
    """L2, J7: it ends when nothing is left to do, and nobody knows whether the one who leads is alive."""

    @app.job(kind="k")
    def k() -> None: ...

    somebody_leads(app)
    app.schedules.upsert("once", k, every=1, max_runs=1)
    handle = k.enqueue()
    assert app.store.claim("gone", kinds=["k"], lease=0)
    until(lambda: (app.store.next_plan_at() or 0) <= app.store.now(), "its instant has come")
    app.run_worker(burst=True)
    assert handle.job().state is State.SUCCEEDED
    assert [job.state for job in app.schedules.occurrences()] == [State.SUCCEEDED]


@pytest.mark.parametrize("lease", [0, 0.5, -1])
def test_a_lead_is_for_a_second_at_least(app: fencepost.App, lease: float) -> None:
    app.job(kind="k")(lambda: None)
    with pytest.raises(fencepost.ConfigurationError, match="leader_lease"):
        app.worker(leader_lease=lease)
