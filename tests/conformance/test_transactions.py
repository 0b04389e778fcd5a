"""Enqueue in the application's own transaction: J1 across transactions, and whose commit it is."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import URL, Connection, create_engine, exc, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import fencepost
from fencepost.job import EnqueueResult, State
from fencepost.store import Store
from tests.conformance.business import business, stored_ids
from tests.jobs import at_once, new, overwrite, rows
from tests.waiting import until


@contextmanager
def alchemy_connection(url: URL) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as conn:
        yield conn
    engine.dispose()


@contextmanager
def alchemy_session(url: URL) -> Iterator[Session]:
    engine = create_engine(url)
    with Session(engine) as session:
        yield session
    engine.dispose()


@contextmanager
def driver_connection(url: URL) -> Iterator[Any]:
    if url.get_backend_name() == "sqlite":
        raw: Any = sqlite3.connect(url.database or "")
    elif url.get_backend_name() == "postgresql":
        raw = psycopg.connect(
            host=url.host, port=url.port or 5432, user=url.username, password=url.password, dbname=url.database
        )
    else:
        raw = pymysql.connect(
            host=url.host or "",
            port=url.port or 3306,
            user=url.username,
            password=url.password or "",
            database=url.database,
        )
    yield raw
    raw.close()


def insert_business(connection: Any, number: int) -> None:
    statement = f"INSERT INTO business (id) VALUES ({number})"
    if isinstance(connection, (Connection, Session)):
        connection.execute(text(statement))
    else:
        connection.cursor().execute(statement)


WAYS = [alchemy_connection, alchemy_session, driver_connection]


@pytest.mark.parametrize("opened", WAYS, ids=lambda way: way.__name__)
def test_a_job_appears_with_the_commit_of_the_transaction_that_enqueued_it(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """J1, L1: not before, with an id known before, and the application's rows beside it."""
    with opened(url) as connection:
        insert_business(connection, 1)
        handle = note.using(connection=connection, key="a").enqueue(number=1)
        assert handle.created
        assert stored_ids(app) == []
        assert business(app) == []
        with pytest.raises(fencepost.JobNotFound, match="open or was rolled back"):
            handle.job()
        insert_business(connection, 2)
        connection.commit()
        assert stored_ids(app) == [handle.id]
        assert business(app) == [1, 2]
        insert_business(connection, 3)  # it was not closed
        connection.commit()
    (claim,) = app.store.claim("me", kinds=["note"])
    assert claim.id == handle.id


@pytest.mark.parametrize("opened", WAYS, ids=lambda way: way.__name__)
def test_a_rollback_takes_the_job_and_its_identity_back(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """J1: nothing stays reserved."""
    with opened(url) as connection:
        insert_business(connection, 1)
        undone = note.using(connection=connection, key="a").enqueue(number=1)
        many = app.enqueue_many([note.build(number=n) for n in range(3)], connection=connection)
        assert all(handle.created for handle in many)
        connection.rollback()
        assert stored_ids(app) == []
        assert business(app) == []
        again = note.using(connection=connection, key="a").enqueue(number=2)
        assert again.created
        assert again.id != undone.id
        connection.commit()
    assert stored_ids(app) == [again.id]


@pytest.mark.parametrize("opened", [alchemy_connection, alchemy_session], ids=lambda way: way.__name__)
def test_a_rollback_to_a_savepoint_takes_back_what_was_enqueued_after_it(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """J1."""
    with opened(url) as connection:
        insert_business(connection, 1)
        kept = note.using(connection=connection).enqueue(number=1)
        savepoint = connection.begin_nested()
        insert_business(connection, 2)
        assert note.using(connection=connection, key="a").enqueue(number=2).created
        savepoint.rollback()
        connection.commit()
    assert stored_ids(app) == [kept.id]
    assert business(app) == [1]
    assert note.using(key="a").enqueue(number=3).created


def test_a_savepoint_of_a_raw_connection_works_too(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None]
) -> None:
    """J1."""
    with driver_connection(url) as connection:
        insert_business(connection, 1)
        cursor = connection.cursor()
        cursor.execute("SAVEPOINT here")
        assert note.using(connection=connection, key="a").enqueue(number=2).created
        cursor.execute("ROLLBACK TO SAVEPOINT here")
        kept = note.using(connection=connection, key="a").enqueue(number=3)
        connection.commit()
    assert stored_ids(app) == [kept.id]


@pytest.mark.parametrize("opened", WAYS, ids=lambda way: way.__name__)
def test_a_transaction_that_is_dropped_without_a_commit_leaves_no_job(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """L1: the connection ends, as it does when its program is killed."""
    with opened(url) as connection:
        insert_business(connection, 1)
        assert note.using(connection=connection, key="a").enqueue(number=1).created
    assert stored_ids(app) == []
    assert note.using(key="a").enqueue(number=2).created


@pytest.mark.parametrize("opened", WAYS, ids=lambda way: way.__name__)
def test_a_refused_payload_leaves_the_transaction_usable(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """J11: it was refused before the database heard of it."""
    with opened(url) as connection:
        insert_business(connection, 1)
        with pytest.raises(fencepost.ArgumentsError, match="number"):
            note.using(connection=connection).enqueue(number="many")
        insert_business(connection, 2)
        connection.commit()
    assert business(app) == [1, 2]


@pytest.mark.parametrize("opened", WAYS, ids=lambda way: way.__name__)
def test_an_identity_that_is_held_is_named_within_the_transaction(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], opened: Any
) -> None:
    """J1: held by a committed job, or by one of this transaction."""
    held = note.using(key="held").enqueue(number=1)
    with opened(url) as connection:
        found = note.using(connection=connection, key="held").enqueue(number=2)
        own = note.using(connection=connection, key="own").enqueue(number=3)
        twice = note.using(connection=connection, key="own").enqueue(number=4)
        assert (found.id, found.created) == (held.id, False)
        assert (twice.id, twice.created) == (own.id, False)
        connection.commit()
    assert sorted(stored_ids(app)) == sorted([held.id, own.id])


ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_an_asynchronous_transaction_commits_and_rolls_back_its_jobs(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], kind: str
) -> None:
    """J1, L1: AsyncConnection and AsyncSession."""

    async def go() -> None:
        engine = create_async_engine(url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()]))
        opened: Any = AsyncSession(engine) if kind == "session" else engine.connect()
        async with opened as connection:
            assert isinstance(connection, (AsyncSession, AsyncConnection))
            await connection.execute(text("INSERT INTO business (id) VALUES (1)"))
            with pytest.raises(fencepost.ConfigurationError, match="aenqueue"):
                note.using(connection=connection).enqueue(number=0)
            undone = await note.using(connection=connection, key="a").aenqueue(number=1)
            assert undone.created
            assert stored_ids(app) == []
            await connection.rollback()
            await connection.execute(text("INSERT INTO business (id) VALUES (2)"))
            kept = await note.using(connection=connection, key="a").aenqueue(number=2)
            many = await app.aenqueue_many([note.build(number=n) for n in range(3)], connection=connection)
            twice = await note.using(connection=connection, key="a").aenqueue(number=2)
            assert (twice.id, twice.created) == (kept.id, False)
            await connection.commit()
        await engine.dispose()
        assert sorted(stored_ids(app)) == sorted([kept.id, *(handle.id for handle in many)])
        assert business(app) == [2]

    asyncio.run(go())


def test_something_else_as_a_connection_is_refused_in_words(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None]
) -> None:
    """J1: nothing is enqueued elsewhere by mistake."""
    with pytest.raises(fencepost.ConfigurationError, match="connection= takes"):
        note.using(connection=object()).enqueue(number=1)
    other = "sqlite://" if url.get_backend_name() != "sqlite" else "postgresql+psycopg://nowhere.invalid/"
    engine = create_engine(other)
    if url.get_backend_name() == "sqlite":
        with pytest.raises(fencepost.ConfigurationError, match="postgresql"):
            note.using(connection=_connection_that_was_not_opened(engine)).enqueue(number=1)
    else:
        with engine.connect() as conn, pytest.raises(fencepost.ConfigurationError, match="sqlite"):
            note.using(connection=conn).enqueue(number=1)
    engine.dispose()


def _connection_that_was_not_opened(engine: Any) -> Connection:
    connection = Connection.__new__(Connection)
    connection.engine = engine
    connection.dialect = engine.dialect
    return connection


def test_the_loser_of_an_identity_whose_winner_rolls_back_is_not_told_that_the_job_exists(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None]
) -> None:
    """J1: it waits for the open transaction's end and then creates the job itself; never a false success."""
    with alchemy_connection(url) as first:
        insert_business(first, 1)
        assert note.using(connection=first, key="a").enqueue(number=1).created
        answers: list[fencepost.JobHandle[None]] = []
        second = threading.Thread(target=lambda: answers.append(note.using(key="a").enqueue(number=2)))
        second.start()
        _until_somebody_waits(app)
        assert answers == []
        first.rollback()
        second.join(30)
    (answer,) = answers
    assert answer.created
    assert stored_ids(app) == [answer.id]


def test_the_loser_of_an_identity_whose_winner_commits_is_given_the_winners_id(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None]
) -> None:
    """J1."""
    with alchemy_connection(url) as first:
        insert_business(first, 1)
        winner = note.using(connection=first, key="a").enqueue(number=1)
        answers: list[fencepost.JobHandle[None]] = []
        second = threading.Thread(target=lambda: answers.append(note.using(key="a").enqueue(number=2)))
        second.start()
        _until_somebody_waits(app)
        first.commit()
        second.join(30)
    (answer,) = answers
    assert (answer.id, answer.created) == (winner.id, False)


def _until_somebody_waits(app: fencepost.App) -> None:
    """Until another connection waits for a lock of this one. On SQLite a writer tries again and again instead."""
    questions = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }
    question = questions.get(app.store.database.dialect.name)
    if question is not None:
        ask = text(question)
        # InnoDB shows the same picture again to whoever asks within 100 ms.
        until(lambda: app.store.database.read(lambda conn: conn.execute(ask).scalar_one()), "a lock wait", look=0.15)


def test_four_that_roll_back_and_one_that_commits_leave_the_fifths_job(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None]
) -> None:
    """J1: five transactions race for one identity."""
    barrier = threading.Barrier(5)

    def roll_back() -> str:
        with alchemy_connection(url) as conn, suppress(exc.OperationalError):
            barrier.wait(30)
            note.using(connection=conn, key="u2").enqueue(number=1)
            conn.rollback()
        return ""

    def commit() -> str:
        barrier.wait(30)
        while True:
            with alchemy_connection(url) as conn, suppress(exc.OperationalError):
                # A deadlock is the application's to repeat: only it knows what else its transaction did.
                handle = note.using(connection=conn, key="u2").enqueue(number=1)
                conn.commit()
                return handle.id

    *_, committed = at_once([roll_back, roll_back, roll_back, roll_back, commit])
    assert stored_ids(app) == [committed]


def test_many_threads_of_one_app_enqueue_one_identity_and_get_one_id(
    app: fencepost.App, note: fencepost.JobFunction[..., None]
) -> None:
    """J1: through group commit too."""
    handles = at_once([lambda: note.using(key="u3").enqueue(number=1)] * 30)
    assert [handle.created for handle in handles].count(True) == 1
    assert {handle.id for handle in handles} == set(stored_ids(app))


@pytest.mark.parametrize("ended", [False, True])
def test_in_an_old_snapshot_a_held_identity_is_named_or_the_error_can_be_retried(
    app: fencepost.App, url: URL, note: fencepost.JobFunction[..., None], ended: bool
) -> None:
    """J1: REPEATABLE READ, where what was committed since the first read cannot be seen. Never a false success."""
    isolation = "SERIALIZABLE" if app.store.database.dialect.name == "sqlite" else "REPEATABLE READ"
    engine = create_engine(url, isolation_level=isolation)
    with engine.connect() as conn:
        conn.execute(text("SELECT count(*) FROM business")).scalar_one()
        taken = note.using(key="a").enqueue(number=1)
        if ended:
            (claim,) = app.store.claim("me", kinds=["note"])
            assert app.store.complete(claim)
        try:
            handle = note.using(connection=conn, key="a").enqueue(number=2)
            conn.commit()
        except exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "40001":  # serialization_failure
                raise
        else:
            assert handle.created == ended
            assert (handle.id == taken.id) == (not ended)
    engine.dispose()
    assert taken.id in stored_ids(app)
    assert note.using(key="b").enqueue(number=3).created


def test_enqueueing_within_a_transaction_repeats_a_built_job_once(store: Store) -> None:
    """L3: the application repeats its whole transaction after a lost answer."""
    job = new(key="a")
    for _ in range(2):
        with store.transaction() as conn:
            assert store.enqueue_within(conn, [job]) == [EnqueueResult(job.id, created=True)]
    assert len(rows(store)) == 1


def test_a_handlers_own_rows_and_its_completion_commit_together(
    app: fencepost.App, note: fencepost.JobFunction[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """J5, L1: or not at all, when the lease has passed on; and what it enqueues inside goes with them."""

    @app.job(kind="exactly once", max_attempts=2)
    def once(ctx: fencepost.JobContext, number: int) -> str:
        if number == 8:
            overwrite(app.store, ctx.id, lease_token=ctx.lease_token + 1)
        with ctx.transaction() as conn:
            conn.execute(text(f"INSERT INTO business (id) VALUES ({number})"))
            note.using(connection=conn).enqueue(number=number)
            ctx.set_result("inside")
        return "ignored"

    held, lost = once.enqueue(number=7), once.enqueue(number=8)
    with caplog.at_level("WARNING", logger="fencepost.worker"):
        app.run_worker(burst=True)
    assert (held.job().state, held.job().result) == (State.SUCCEEDED, "inside")
    assert (lost.job().state, lost.job().result) == (State.RUNNING, None)
    assert f"{lost.id} (exactly once) was not settled" in caplog.text
    assert business(app) == [7]
    assert len(app.jobs.list(kind="note")) == 1
