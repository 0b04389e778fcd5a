"""PostgreSQL behind pgbouncer in transaction mode: each transaction may land on another of five server connections."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import URL, create_engine, exc, text

import fencepost
from fencepost import NewJob, State
from tests import databases
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.chaos.servers import PgBouncer, private_pgbouncer
from tests.jobs import at_once
from tests.waiting import until

pytestmark = pytest.mark.chaos

_JOBS = 1000
_INSTANTS = 3


@pytest.fixture
def direct() -> Iterator[URL]:
    """An empty database on the server itself."""
    if databases.server("postgresql") is None:
        pytest.skip(f"postgresql does not answer; set {databases.SERVERS['postgresql'][0]}")
    with databases.scratch_database("postgresql") as url:
        yield url


@pytest.fixture
def pooler(direct: URL) -> Iterator[PgBouncer]:
    """A pgbouncer of this test's own in front of that database."""
    with private_pgbouncer(direct) as pooler:
        if isinstance(pooler, str):
            pytest.skip(pooler)
        yield pooler


@pytest.fixture
def url(pooler: PgBouncer) -> URL:
    """The database as everybody in these tests reaches it."""
    return pooler.url


def test_more_processes_than_the_pool_has_connections_migrate_at_once(url: URL) -> None:
    """L5: those who wait for their turn leave the one whose turn it is a connection to work with."""
    apps = [fencepost.App(url) for _ in range(PgBouncer.pool_size + 3)]
    assert sorted(at_once([app.migrate for app in apps])) == [False] * (len(apps) - 1) + [True]
    assert apps[0].store.schema_status().is_current
    for app in apps:
        app.close()


def test_workers_schedules_and_cancellation_work_through_a_pooler_as_without(
    app: fencepost.App, crew: Crew, journal: Journal, pooler: PgBouncer, direct: URL
) -> None:
    """J3, S1, S11: nothing that is needed lives in a session, and nothing is asked for that pgbouncer refuses."""
    app.migrate()
    planner = crew.run("scheduler_main", app.store.database.url.render_as_string(hide_password=False))
    processes = [planner, *(crew.worker(lease=6, concurrency=20) for _ in range(4))]
    crew.await_working(app, *processes)
    (long,) = app.enqueue_many([handlers.sleeps.build(name="long", seconds=[60])])
    until(lambda: journal.starts("long"), "the long job runs")

    app.enqueue_many(_build(number) for number in range(_JOBS))
    assert long.cancel()
    kinds = ("quick", "quick_thread", "sleeps")
    until(lambda: not any(map(app.jobs.count_live, kinds)), "all are final", seconds=60, look=0.2)
    until(lambda: len(_ran(app)) >= _INSTANTS, f"{_INSTANTS} instants have run", seconds=40, look=0.2)
    assert _server_connections(direct) <= PgBouncer.pool_size
    assert app.health().is_well
    assert [process.trouble() for process in processes] == [[]] * 5
    for process in processes:
        process.signal(signal.SIGTERM)
    assert [process.exit_code(within=15) for process in processes] == [0] * 5

    starts = Counter(entry.name for entry in journal.starts())
    assert starts == Counter({"long": 1} | {f"job {number}": 1 for number in range(_JOBS)})
    assert app.jobs.list(state=[State.FAILED, State.SKIPPED]) == []
    assert long.job().state == State.CANCELLED
    assert len(journal.entries("cancelled", "long")) == 1
    instants = _ran(app)
    assert instants == [instants[0] + timedelta(seconds=n) for n in range(len(instants))]
    assert "ERROR" not in pooler.said
    assert "WARNING" not in pooler.said


def test_a_startup_parameter_that_the_pooler_refuses_is_named_at_once(url: URL) -> None:
    """L4: it would be refused again, so nobody waits."""
    app = fencepost.App(url.update_query_dict({"options": "-c search_path=public"}))
    with pytest.raises(exc.OperationalError, match="unsupported startup parameter"):
        app.migrate()
    app.close()


def _build(number: int) -> NewJob:
    handler = handlers.quick if number % 2 else handlers.quick_thread
    return handler.build(name=f"job {number}")


def _ran(app: fencepost.App) -> list[datetime]:
    """The instants whose occurrences have succeeded."""
    occurrences = app.schedules.occurrences("every second", state=State.SUCCEEDED, limit=1000)
    return sorted(job.scheduled_for for job in occurrences if job.scheduled_for is not None)


def _server_connections(direct: URL) -> int:
    """How many connections there are to the test's database, but for the one that asks."""
    engine = create_engine(direct)
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    with engine.connect() as conn:
        number: int = conn.execute(query).scalar_one()
    engine.dispose()
    return number
