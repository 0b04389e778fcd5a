"""Graphs of jobs go on when the worker that ran them, and looked after them, is killed."""

from __future__ import annotations

import pytest

import fencepost
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
def test_no_graph_is_stranded_or_runs_out_of_order_when_a_worker_is_killed(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """The one that leads dies in the middle, and another goes on; every job still runs after those before it."""
    worker = crew.working(app, concurrency=4, lease=1)
    graphs = []
    for number in range(6):
        flow = fencepost.Workflow()
        flow.add("root", handlers.sleeps.build(name=f"{number} root", seconds=[0.1]))
        flow.add("left", handlers.sleeps.build(name=f"{number} left", seconds=[0.1]), after="root")
        flow.add("right", handlers.quick.build(name=f"{number} right"), after="root")
        flow.add("join", handlers.quick.build(name=f"{number} join"), after=["left", "right"])
        graphs.append(app.enqueue_graph(flow))
    until(lambda: len(journal.entries("start")) >= 8, "some of them run", seconds=20)
    worker.kill()
    crew.worker(concurrency=4, lease=1)

    def ended() -> bool:
        return app.jobs.count_live("sleeps") + app.jobs.count_live("quick") == 0

    until(ended, "every graph has ended", seconds=40, look=0.1)
    for graph in graphs:
        jobs = {name: handle.job() for name, handle in graph.items()}
        assert {job.state for job in jobs.values()} == {"succeeded"}
        for before, later in (("root", "left"), ("root", "right"), ("left", "join"), ("right", "join")):
            ended_at, started_at = jobs[before].finished_at, jobs[later].started_at
            assert ended_at is not None
            assert started_at is not None
            assert ended_at <= started_at, f"{later} did not wait for {before}"
