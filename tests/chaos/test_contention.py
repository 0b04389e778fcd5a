"""Many processes on one database: each job once, and no lock error reaches anyone."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest
from sqlalchemy import URL

import fencepost
from fencepost import State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew, Process
from tests.waiting import until

pytestmark = pytest.mark.chaos

_LEASE = 6

_Body: TypeAlias = Callable[[threading.Event], None]
"""What runs beside a test, until the event is set."""


@contextmanager
def _in_the_background(*bodies: _Body) -> Iterator[threading.Event]:
    """Run functions of a stop event on threads while the block runs; what they raise is raised here."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(body: _Body) -> None:
        try:
            body(stop)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures, failures


def _outsider(url: URL, hold_seconds: float, pause_seconds: float) -> _Body:
    """Somebody else's program, which keeps the file's write lock for a while now and then."""

    def body(stop: threading.Event) -> None:
        connection = sqlite3.connect(str(url.database), timeout=30, isolation_level=None)
        try:
            while not stop.wait(pause_seconds):
                connection.execute("BEGIN IMMEDIATE")
                stop.wait(hold_seconds)
                connection.execute("ROLLBACK")
        finally:
            connection.close()

    return body


def _pruning(url: URL) -> _Body:
    """Retention, all the time."""

    def body(stop: threading.Event) -> None:
        app = fencepost.App(url)
        try:
            while not stop.wait(0.2):
                app.prune(older_than=0.5)
        finally:
            app.close()

    return body


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
def test_four_workers_and_three_producers_run_each_of_five_thousand_jobs_once(
    url: URL, app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """J3, L4: on SQLite while an outsider holds the lock now and then, on servers while retention deletes."""
    is_file = url.get_backend_name() == "sqlite"
    background = _outsider(url, 1.5, 1.0) if is_file else _pruning(url)
    workers = [crew.worker(lease=_LEASE, concurrency=20) for _ in range(4)]
    crew.await_working(app, *workers)
    with _in_the_background(background):
        producers = [
            crew.run("producer_main", "--name", f"p{i}", "--single", 300, "--bulk", 1000, "--delayed", 367)
            for i in range(3)
        ]
        assert [producer.exit_code(within=60) for producer in producers] == [0, 0, 0]
        until(
            lambda: app.jobs.count_live("quick") + app.jobs.count_live("quick_thread") == 0,
            "all are final",
            seconds=60,
            look=0.2,
        )

    acknowledged = [line for producer in producers for line in producer.answered.split()]
    assert len(set(acknowledged)) == len(acknowledged) == 3 * 1667
    starts = Counter(entry.name for entry in journal.starts())
    assert len(starts) == len(acknowledged)
    assert set(starts.values()) == {1}
    assert [process.trouble() for process in (*workers, *producers)] == [[]] * 7
    _end_quietly(workers)
    assert app.jobs.list(state=[State.FAILED, State.CANCELLED, State.SKIPPED]) == []


def _end_quietly(workers: list[Process]) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.exit_code(within=15) for worker in workers] == [0] * len(workers)


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_long_job_keeps_its_lease_while_an_outsider_holds_the_write_lock(
    url: URL, app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """L4: the heartbeat waits for the lock, and nobody can take the lease meanwhile."""
    workers = [crew.worker(lease=4) for _ in range(2)]
    crew.await_working(app, *workers)
    with _in_the_background(_outsider(url, 1.5, 0.5)):
        (handle,) = app.enqueue_many([handlers.sleeps.build(name="long", seconds=[8])])
        assert handle.result(timeout=30) == 1
    assert len(journal.starts()) == 1
    assert [worker.trouble() for worker in workers] == [[], []]


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_an_enqueue_that_outwaits_its_patience_says_so_and_leaves_nothing_behind(url: URL) -> None:
    """L1, L4: a clear error, and no job."""
    assert url.database is not None
    app = fencepost.App(url, busy_timeout=0.2)
    app.store.database.patience = 0.5
    quick = app.job(kind="quick")(handlers.quick.handler.function)
    outsider = sqlite3.connect(url.database, isolation_level=None)
    try:
        outsider.execute("BEGIN IMMEDIATE")
        with pytest.raises(fencepost.StoreUnavailable, match=r"jobs\.db could not be used.*locked"):
            quick.enqueue(name="refused")
        outsider.execute("ROLLBACK")
        assert app.jobs.list() == []
        assert quick.enqueue(name="taken").created
        assert len(app.jobs.list()) == 1
    finally:
        outsider.close()
        app.close()
