"""Handlers in processes of their own: they can be killed, may crash, and never outlive their worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

import fencepost
from fencepost import Reason, State
from tests.chaos import handlers
from tests.chaos.handlers import EFFECTS_TABLE
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew, is_running
from tests.waiting import until

pytestmark = pytest.mark.chaos


@pytest.fixture
def effects(app: fencepost.App) -> Iterator[str]:
    """A table of the application's own, beside the jobs."""
    with app.store.transaction() as conn:
        conn.execute(text(f"DROP TABLE IF EXISTS {EFFECTS_TABLE}"))
        conn.execute(text(f"CREATE TABLE {EFFECTS_TABLE} (name VARCHAR(100) NOT NULL, attempt INTEGER NOT NULL)"))
    yield EFFECTS_TABLE
    with app.store.transaction() as conn:
        conn.execute(text(f"DROP TABLE {EFFECTS_TABLE}"))


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_process_is_killed_when_its_timeout_passes_or_its_job_is_cancelled(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J6: the timeout is an outcome like any other, and the slot is free again."""
    worker = crew.working(app, lease=1, processes=2)
    late, unwanted = app.enqueue_many(
        [
            handlers.sleeps_in_process.using(max_attempts=1, timeout=3).build(name="late", seconds=[60]),
            handlers.sleeps_in_process.build(name="unwanted", seconds=[60]),
        ]
    )
    until(lambda: len(journal.starts()) == 2, "both run")
    unwanted.cancel()

    with pytest.raises(fencepost.JobCancelled):
        unwanted.result(timeout=10)
    with pytest.raises(fencepost.JobFailed, match=r"timeout\nTimed out after 3 s"):
        late.result(timeout=10)
    for entry in journal.starts():
        until(lambda entry=entry: not is_running(entry.pid), "the process is gone")  # type: ignore[misc]
    again = app.enqueue_many(handlers.sleeps_in_process.build(name=f"again-{i}", seconds=[0.1]) for i in range(2))
    assert [handle.result(timeout=10) for handle in again] == [1, 1]
    assert worker.is_alive


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_child_that_crashes_costs_its_own_attempt_and_nothing_else(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J4, J6: the worker and its other jobs go on, and the error names the signal."""
    worker = crew.working(app, lease=2, processes=1)
    (beside,) = app.enqueue_many([handlers.sleeps.build(name="beside", seconds=[3])])
    crashes = {"killed": "signal SIGKILL", "segfault": "signal SIGSEGV", "exit": "exit code 3"}
    handles = app.enqueue_many(handlers.dies_in_process.using(backoff=0).build(name=how, how=how) for how in crashes)

    assert [handle.result(timeout=20) for handle in handles] == ["attempt 2"] * 3

    for handle, said in zip(handles, crashes.values(), strict=True):
        (crash,) = handle.job().history
        assert crash.reason == Reason.ERROR
        assert crash.error == f"ChildProcessError: The process that ran the handler ended with {said}."
    assert beside.result(timeout=10) == 1
    assert worker.is_alive


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_progress_that_a_child_reports_is_seen_while_it_runs(
    app: fencepost.App, crew: Crew, journal: Journal, tmp_path: Path
) -> None:
    """S8 for progress: it is written by the worker that holds the lease."""
    go_on = tmp_path / "go-on"
    crew.worker(lease=2, processes=1)
    (handle,) = app.enqueue_many([handlers.reports_from_process.build(name="job", go_on=str(go_on))])
    until(lambda: handle.job().progress is not None, "progress is seen")
    job = handle.job()
    assert (job.state, job.progress, job.progress_note) == (State.RUNNING, 0.5, "half of it")
    go_on.touch()
    assert handle.result(timeout=10) == "whole"


def test_a_child_commits_its_rows_and_its_job_in_one_transaction(app: fencepost.App, crew: Crew, effects: str) -> None:
    """J5: exactly one effect for the job that succeeded."""
    worker = crew.worker(lease=2, processes=1)
    (handle,) = app.enqueue_many([handlers.commits_in_process.build(name="job")])

    assert handle.result(timeout=15) is None

    with app.store.transaction() as conn:
        assert conn.execute(text(f"SELECT name, attempt FROM {effects}")).fetchall() == [("job", 1)]
    assert worker.trouble() == []


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_the_child_of_a_killed_worker_dies_with_it(app: fencepost.App, crew: Crew, journal: Journal) -> None:
    """J7: the job runs elsewhere, so its first process must not go on beside it."""
    worker = crew.worker(lease=1, processes=1)
    (handle,) = app.enqueue_many([handlers.sleeps_in_process.build(name="job", seconds=[60, 0])])
    (first,) = until(journal.starts, "it runs")
    assert first.pid != worker.pid

    worker.kill()

    until(lambda: not is_running(first.pid), "the child is gone")
    crew.worker(lease=1, processes=1)
    assert handle.result(timeout=15) == 2
