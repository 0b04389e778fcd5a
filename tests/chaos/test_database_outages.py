"""The database goes away and comes back: nothing acknowledged is lost, and nobody needs a restart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc, text
from sqlalchemy.engine import Connection

import fencepost
from fencepost import NewJob, State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.chaos.servers import PrivateServer, private_server
from tests.waiting import until

pytestmark = pytest.mark.chaos


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    """A server of this test's own."""
    with private_server(request.param) as server:
        if isinstance(server, str):
            pytest.skip(server)
        yield server


class _Producer:
    """Enqueues one job after another on a thread, and repeats what was not acknowledged."""

    def __init__(self, app: fencepost.App, build: Callable[[int], NewJob]) -> None:
        self.acknowledged: list[fencepost.JobHandle[object]] = []
        self.failures: list[BaseException] = []
        self._app = app
        self._build = build
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.005):
                job = self._build(len(self.acknowledged))
                while True:
                    try:
                        self.acknowledged += self._app.enqueue_many([job])
                        break
                    except fencepost.StoreUnavailable:
                        continue
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> _Producer:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def await_more(self, number: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + number

        def enough() -> bool:
            assert self.failures == []
            return len(self.acknowledged) >= wanted

        until(enough, f"{number} more jobs are acknowledged", seconds=45)


def test_a_server_that_crashes_and_restarts_under_load_loses_nothing_that_was_acknowledged(
    server: PrivateServer, tmp_path: Path
) -> None:
    """L1, L3, L4: workers and producers wait for it and go on, and a running job is not started a second time."""
    app = fencepost.App(server.url)
    app.migrate()
    crew = Crew(server.url, tmp_path)
    try:
        workers = [crew.worker(lease=1.5) for _ in range(2)]
        crew.await_working(app, *workers)
        (long,) = app.enqueue_many([handlers.sleeps_on_thread.build(name="long", seconds=[6])])
        until(lambda: crew.journal.starts("long"), "the long job runs")
        with _Producer(app, lambda number: handlers.quick.build(name=f"job-{number}")) as producer:
            producer.await_more(100)
            server.kill()
            for worker in workers:  # they have waited longer than the lease
                until(lambda worker=worker: "planning: the database cannot be used" in worker.said, "it is missed")  # type: ignore[misc]
            server.start()
            producer.await_more(100)
            server.stop()
            server.start()
            producer.await_more(100)
        assert producer.failures == []

        until(lambda: app.jobs.count_live("quick") == 0, "all are final", seconds=45, look=0.2)

        states = app.store.states_of([handle.id for handle in producer.acknowledged])
        assert set(states.values()) == {State.SUCCEEDED}
        assert len(states) == len({handle.id for handle in producer.acknowledged}) == len(producer.acknowledged)
        ran = {entry.name for entry in crew.journal.starts()} - {"long"}
        assert ran == {f"job-{number}" for number in range(len(producer.acknowledged))}
        assert long.result(timeout=20) == 1
        assert len(crew.journal.starts("long")) == 1
        for worker in workers:
            assert "the database is back" in worker.said
            worker.signal(signal.SIGTERM)
            assert worker.exit_code(within=10) == 0
    finally:
        crew.end()
        app.close()


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_a_worker_whose_connections_are_all_cut_again_and_again_finishes_its_work(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """L4, J5: also in the middle of claims, heartbeats and settlements; a running job keeps its lease."""
    worker = crew.working(app, lease=3)
    (long,) = app.enqueue_many([handlers.sleeps_on_thread.build(name="long", seconds=[3])])
    until(lambda: journal.starts("long"), "the long job runs")
    outsider = create_engine(app.store.database.url, isolation_level="AUTOCOMMIT")
    try:
        with _Producer(app, lambda number: handlers.quick.build(name=f"job-{number}")) as producer:
            for _ in range(8):
                producer.await_more(15)
                with outsider.connect() as conn:
                    _cut_all(conn)
        assert producer.failures == []
    finally:
        outsider.dispose()

    until(lambda: app.jobs.count_live("quick") == 0, "all are final", seconds=30, look=0.1)

    assert long.result(timeout=15) == 1
    assert len(journal.starts("long")) == 1
    states = app.store.states_of([handle.id for handle in producer.acknowledged])
    assert len(states) == len(producer.acknowledged)
    assert set(states.values()) == {State.SUCCEEDED}
    assert {entry.name for entry in journal.starts()} >= {f"job-{i}" for i in range(len(states))}
    assert worker.is_alive


_UNKNOWN_THREAD = 1094


def _cut_all(conn: Connection) -> None:
    """End every other connection to this database."""
    if conn.dialect.name == "postgresql":
        conn.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
        return
    others = text("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
    for (number,) in conn.execute(others).fetchall():
        try:
            conn.execute(text(f"KILL {number}"))
        except exc.OperationalError as error:
            if error.orig is None or error.orig.args[0] != _UNKNOWN_THREAD:  # it may have ended by itself meanwhile
                raise
