"""What a worker holds does not grow with the number of jobs that it has run."""

from __future__ import annotations

import pytest

import fencepost
from fencepost import NewJob
from tests.chaos import handlers
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos

_PAYLOAD = "x" * 10_000


def _run(app: fencepost.App, number: int) -> None:
    def build(place: int) -> NewJob:
        handler = handlers.loaded_thread if place % 5 == 0 else handlers.loaded
        return handler.build(payload=_PAYLOAD)

    app.enqueue_many(build(place) for place in range(number))
    until(
        lambda: app.jobs.count_live("loaded") + app.jobs.count_live("loaded_thread") == 0,
        f"{number} jobs run",
        seconds=60,
        look=0.1,
    )


def _figures(app: fencepost.App) -> dict[str, int]:
    (handle,) = app.enqueue_many([handlers.figures.build()])
    figures = handle.result(timeout=10)
    assert isinstance(figures, dict)
    return figures


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
def test_threads_files_tasks_and_memory_stay_what_they_were_after_thousands_of_jobs(
    app: fencepost.App, crew: Crew
) -> None:
    """Each job has a payload and a timeout; neither leaves anything behind."""
    crew.working(app, concurrency=10)
    # All ten threads at once, so that none is new later on.
    ten = app.enqueue_many(handlers.sleeps_on_thread.build(name="warm", seconds=[0.5]) for _ in range(10))
    for handle in ten:
        handle.result(timeout=10)
    _run(app, 1000)
    before = _figures(app)

    _run(app, 2500)

    after = _figures(app)
    assert after["threads"] <= before["threads"] + 1  # the heartbeat's or the loop's helper, if it was away just then
    assert after["files"] <= before["files"] + 12  # connections of a pool that fills as the moment needs them
    assert after["tasks"] <= before["tasks"] + 1
    assert after["rss_kib"] - before["rss_kib"] < 8 * 1024
