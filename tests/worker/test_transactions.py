"""A handler's rows and its job's completion commit together, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

import fencepost
from fencepost import State
from tests.waiting import until
from tests.worker.conftest import Working

_TABLE = "handler_rows"


@pytest.fixture
def table(app: fencepost.App) -> Iterator[str]:
    """A table of the application's own, beside the jobs."""
    with app.store.transaction() as conn:
        conn.execute(text(f"DROP TABLE IF EXISTS {_TABLE}"))
        conn.execute(text(f"CREATE TABLE {_TABLE} (value INTEGER NOT NULL)"))
    yield _TABLE
    with app.store.transaction() as conn:
        conn.execute(text(f"DROP TABLE {_TABLE}"))


def _insert(conn: Connection, value: int) -> None:
    conn.execute(text(f"INSERT INTO {_TABLE} (value) VALUES (:value)"), {"value": value})


def _values(app: fencepost.App) -> list[int]:
    with app.store.transaction() as conn:
        return list(conn.execute(text(f"SELECT value FROM {_TABLE} ORDER BY value")).scalars())


def _take_the_lease_away(app: fencepost.App, ctx: fencepost.JobContext) -> None:
    """What happens to a worker that was frozen past its lease: somebody else has claimed the job."""
    with app.store.transaction() as conn:
        taken = text(
            "UPDATE fencepost_jobs SET lease_token = lease_token + 1, lease_owner = 'other', "
            "lease_until = lease_until + 60000000 WHERE id = :id"
        )
        assert conn.execute(taken, {"id": ctx.id}).rowcount == 1


def test_rows_and_completion_commit_together(app: fencepost.App, working: Working, table: str) -> None:
    """J5: from a thread and from the loop, the result with them."""

    @app.job
    def on_thread(ctx: fencepost.JobContext) -> str:
        with ctx.transaction() as conn:
            _insert(conn, 1)
            ctx.set_result("kept")
        return "ignored"

    @app.job
    async def on_loop(ctx: fencepost.JobContext) -> int:
        def work(conn: Connection) -> int:
            _insert(conn, 2)
            ctx.set_result(22)
            return 33

        assert await ctx.run_transaction(work) == 33
        return 44

    handles = on_thread.enqueue(), on_loop.enqueue()
    worker = working()
    assert handles[0].result(timeout=10) == "kept"
    assert handles[1].result(timeout=10) == 22
    assert _values(app) == [1, 2]
    until(lambda: worker.figures.running == 0, "both have returned")
    assert [handle.job().attempts for handle in handles] == [1, 1]


def test_what_a_handler_raises_after_its_transaction_changes_nothing(
    app: fencepost.App, working: Working, table: str
) -> None:
    """J5: the job was settled by the commit."""

    @app.job
    def fails_late(ctx: fencepost.JobContext) -> None:
        with ctx.transaction() as conn:
            _insert(conn, 1)
        raise RuntimeError("too late to matter")

    handle = fails_late.enqueue()
    worker = working()
    assert handle.result(timeout=10) is None
    until(lambda: worker.figures.running == 0, "it has returned")
    assert handle.job().state == State.SUCCEEDED
    assert _values(app) == [1]


def test_an_exception_inside_the_transaction_rolls_back_and_is_retried(
    app: fencepost.App, working: Working, table: str
) -> None:
    """J5, J6."""

    @app.job(backoff=0)
    def fails_first(ctx: fencepost.JobContext) -> None:
        with ctx.transaction() as conn:
            _insert(conn, ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("not yet")

    handle = fails_first.enqueue()
    working()
    assert handle.result(timeout=10) is None
    assert handle.job().attempts == 2
    assert _values(app) == [2]


def test_a_lease_that_was_lost_in_the_middle_rolls_everything_back(
    app: fencepost.App, working: Working, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J5: neither the rows nor the completion nor what the handler enqueued with them."""
    seen: list[str] = []

    @app.job
    async def follows() -> None: ...

    @app.job
    def on_thread(ctx: fencepost.JobContext) -> None:
        _take_the_lease_away(app, ctx)
        try:
            with ctx.transaction() as conn:
                _insert(conn, 1)
                follows.using(connection=conn).enqueue()
        except fencepost.LeaseLost as error:
            seen.append(str(error))
            raise

    @app.job
    async def on_loop(ctx: fencepost.JobContext) -> None:
        await asyncio.to_thread(_take_the_lease_away, app, ctx)
        try:
            await ctx.run_transaction(lambda conn: _insert(conn, 2))
        except fencepost.LeaseLost as error:
            seen.append(str(error))
            raise

    handles = [on_thread.enqueue(), on_loop.enqueue()]
    worker = working(lease=30)
    until(lambda: len(seen) == 2 and worker.figures.running == 0, "both were refused")
    assert _values(app) == []
    assert app.jobs.count_live(follows) == 0
    for handle in handles:
        job = handle.job()
        assert (job.state, job.lease_owner, job.result) == (State.RUNNING, "other", None)
        assert sum(handle.id in record.getMessage() for record in caplog.records if record.levelname == "WARNING") == 1
    assert worker.figures.succeeded == 0


def test_a_handler_that_runs_on_after_its_lease_was_lost_is_reported_once(
    app: fencepost.App, working: Working, caplog: pytest.LogCaptureFixture
) -> None:
    """J5: and its context tells it."""
    returned = threading.Event()

    def beat() -> datetime:
        seen = [recorded.seen_at for recorded in app.store.list_workers()]
        return (seen and seen[0]) or datetime.min.replace(tzinfo=UTC)  # none yet: before its first heartbeat's end

    @app.job
    def runs_on(ctx: fencepost.JobContext) -> str:
        _take_the_lease_away(app, ctx)
        until(lambda: ctx.cancelled, "it is told")
        for _ in range(3):
            before = beat()
            until(lambda before=before: beat() > before, "one more heartbeat")  # type: ignore[misc]
        returned.set()
        return "ignored"

    handle = runs_on.enqueue()
    worker = working(lease=1)
    assert returned.wait(20)
    until(lambda: worker.figures.lost == 1, "what it returned is refused")
    assert sum(handle.id in record.getMessage() for record in caplog.records if record.levelname == "WARNING") == 1
    assert (handle.job().state, handle.job().result) == (State.RUNNING, None)


def test_jobs_that_a_handler_enqueues_in_its_transaction_come_with_it(
    app: fencepost.App, working: Working, table: str
) -> None:
    """L1: the successor exists if, and only if, its predecessor completed."""

    @app.job
    def second(value: int) -> int:
        return value

    @app.job(backoff=0)
    def first(ctx: fencepost.JobContext) -> str:
        with ctx.transaction() as conn:
            handle = second.using(connection=conn).enqueue(value=ctx.attempt)
            ctx.set_result(handle.id)
            if ctx.attempt == 1:
                raise RuntimeError("rolled back")
        return ""

    handle = first.enqueue()
    working()
    successor = handle.result(timeout=10)
    until(lambda: app.jobs.get(successor).is_final, "the successor runs")
    assert app.jobs.get(successor).result == 2
    assert len(app.jobs.list(kind=second.kind)) == 1
