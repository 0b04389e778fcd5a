"""Enqueue inside Django's `transaction.atomic()`: the job's row is one of the block's rows."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import django
import django.db
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from sqlalchemy import URL, text

import fencepost
from tests.conformance.business import business, stored_ids

Note = fencepost.JobFunction[..., None]

_ENGINES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
}
_ALIASES = ("default", "other")


def _settings(url: URL) -> dict[str, Any]:
    return {
        "ENGINE": _ENGINES[url.get_backend_name()],
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or "",
        "PORT": url.port or "",
    }


def _stand_in_for_mysqldb() -> None:
    """PyMySQL under the name by which Django looks for its driver.

    Its submodules too: imported by the other name they would be loaded twice, and take the place of the first in
    `pymysql`, so that other tests would raise errors of classes that nobody catches.
    """
    pymysql.install_as_MySQLdb()
    for name, module in list(sys.modules.items()):
        if name.startswith("pymysql."):
            sys.modules[name.replace("pymysql", "MySQLdb", 1)] = module


@pytest.fixture(params=_ALIASES)
def alias(request: pytest.FixtureRequest, url: URL) -> Iterator[str]:
    """The name under which Django knows the test's database."""
    if not settings.configured:
        _stand_in_for_mysqldb()
        settings.configure(DATABASES={name: _settings(url) for name in _ALIASES}, USE_TZ=True)
        django.setup()
    configured = connections.configure_settings({name: _settings(url) for name in _ALIASES})
    connections.settings.update(configured)
    name: str = request.param
    yield name
    for used in _ALIASES:
        if hasattr(connections._connections, used):
            connections[used].close()
            del connections[used]


@pytest.fixture
def wrapper(alias: str) -> Any:
    """The connection as an application passes it: `django.db.connection`, or one of `connections`."""
    return django.db.connection if alias == "default" else connections[alias]


def insert_business(wrapper: Any, number: int) -> None:
    with wrapper.cursor() as cursor:
        cursor.execute("INSERT INTO business (id) VALUES (%s)", [number])


@contextmanager
def rolled_back(alias: str) -> Iterator[None]:
    """An atomic block that ends in an exception."""
    with suppress(_Undo), transaction.atomic(using=alias):
        yield
        raise _Undo


class _Undo(Exception):
    pass


def test_a_job_appears_with_the_commit_of_the_atomic_block_that_enqueued_it(
    app: fencepost.App, note: Note, wrapper: Any, alias: str
) -> None:
    """J1, L1: not before, with an id known before, and the application's rows beside it."""
    with transaction.atomic(using=alias):
        insert_business(wrapper, 1)
        handle = note.using(connection=wrapper, key="a").enqueue(number=1)
        many = app.enqueue_many([note.build(number=n) for n in range(3)], connection=wrapper)
        twice = note.using(connection=wrapper, key="a").enqueue(number=2)
        assert (twice.id, twice.created) == (handle.id, False)
        assert stored_ids(app) == []
        assert business(app) == []
        insert_business(wrapper, 2)
    assert sorted(stored_ids(app)) == sorted([handle.id, *(other.id for other in many)])
    assert business(app) == [1, 2]
    insert_business(wrapper, 3)  # Django goes on as it was: it commits each statement
    assert business(app) == [1, 2, 3]


def test_an_atomic_block_that_is_rolled_back_takes_the_job_and_its_identity_back(
    app: fencepost.App, note: Note, wrapper: Any, alias: str
) -> None:
    """J1: nothing stays reserved."""
    with rolled_back(alias):
        insert_business(wrapper, 1)
        assert note.using(connection=wrapper, key="a").enqueue(number=1).created
    assert stored_ids(app) == []
    assert business(app) == []
    assert note.using(key="a").enqueue(number=2).created


def test_a_rollback_to_the_savepoint_of_an_inner_block_takes_back_what_was_enqueued_in_it(
    app: fencepost.App, note: Note, wrapper: Any, alias: str
) -> None:
    """J1."""
    with transaction.atomic(using=alias):
        insert_business(wrapper, 1)
        kept = note.using(connection=wrapper).enqueue(number=1)
        with rolled_back(alias):
            insert_business(wrapper, 2)
            assert note.using(connection=wrapper, key="a").enqueue(number=2).created
        savepoint = transaction.savepoint(using=alias)
        assert note.using(connection=wrapper, key="a").enqueue(number=3).created
        transaction.savepoint_rollback(savepoint, using=alias)
    assert stored_ids(app) == [kept.id]
    assert business(app) == [1]
    assert note.using(key="a").enqueue(number=4).created


def test_a_client_that_is_gone_before_its_commit_leaves_no_job(
    app: fencepost.App, note: Note, wrapper: Any, alias: str
) -> None:
    """L1: nothing stays reserved."""
    with suppress(django.db.Error), transaction.atomic(using=alias):
        insert_business(wrapper, 1)
        assert note.using(connection=wrapper, key="a").enqueue(number=1).created
        _cut_off(app, wrapper)
        with pytest.raises(django.db.Error):
            note.using(connection=wrapper).enqueue(number=2)
    assert stored_ids(app) == []
    assert business(app) == []
    assert note.using(key="a").enqueue(number=3).created


def _cut_off(app: fencepost.App, wrapper: Any) -> None:
    """End the session from outside; a SQLite file knows none, so there the connection is closed."""
    match wrapper.vendor:
        case "sqlite":
            wrapper.connection.close()
            return
        case "postgresql":
            end = text(f"SELECT pg_terminate_backend({wrapper.connection.info.backend_pid}, 10000)")
        case _:
            end = text(f"KILL {wrapper.connection.thread_id()}")
    with app.store.transaction() as conn:
        conn.execute(end)


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_a_connection_outside_of_an_atomic_block_is_refused(app: fencepost.App, note: Note, wrapper: Any) -> None:
    """J1: the job would be committed alone."""
    wrapper.ensure_connection()
    with pytest.raises(fencepost.ConfigurationError, match=r"not inside transaction\.atomic"):
        note.using(connection=wrapper).enqueue(number=1)
    with pytest.raises(fencepost.ConfigurationError, match="sync_to_async"):
        asyncio.run(note.using(connection=wrapper).aenqueue(number=1))
    assert stored_ids(app) == []


@pytest.mark.parametrize("alias", ["other"], indirect=True)
def test_a_connection_of_another_thread_is_refused_as_django_refuses_it(
    app: fencepost.App, note: Note, wrapper: Any, alias: str
) -> None:
    """J1."""
    refusals: list[BaseException] = []

    def enqueue() -> None:
        try:
            note.using(connection=wrapper).enqueue(number=1)
        except BaseException as error:
            refusals.append(error)

    with transaction.atomic(using=alias):
        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join(30)
    assert [type(refusal) for refusal in refusals] == [django.db.DatabaseError]
    assert stored_ids(app) == []


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_a_refused_payload_leaves_the_block_usable(app: fencepost.App, note: Note, wrapper: Any, alias: str) -> None:
    """J11: it was refused before the database heard of it."""
    with transaction.atomic(using=alias):
        insert_business(wrapper, 1)
        with pytest.raises(fencepost.ArgumentsError, match="number"):
            note.using(connection=wrapper).enqueue(number="many")
        insert_business(wrapper, 2)
    assert business(app) == [1, 2]


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_an_enqueue_that_fails_in_the_database_fails_its_block_and_only_that(
    app: fencepost.App, note: Note, wrapper: Any, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: with Django's error; whoever catches it inside the block cannot commit the rest alone."""

    def enqueue_in_vain() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(app.store.database.dialect, "now", lambda conn: conn.execute(text("SELECT 1 FROM nowhere")))
            note.using(connection=wrapper).enqueue(number=1)

    with transaction.atomic(using=alias):
        insert_business(wrapper, 1)
        with pytest.raises(django.db.DatabaseError), transaction.atomic(using=alias):
            enqueue_in_vain()
        kept = note.using(connection=wrapper).enqueue(number=2)
    with transaction.atomic(using=alias):
        insert_business(wrapper, 2)
        with pytest.raises(django.db.DatabaseError):
            enqueue_in_vain()
        with pytest.raises(TransactionManagementError):
            note.using(connection=wrapper).enqueue(number=3)
    assert business(app) == [1]
    assert stored_ids(app) == [kept.id]


@pytest.mark.parametrize("alias", ["default"], indirect=True)
@pytest.mark.parametrize("asked_before", [True, False])
def test_djangos_connection_is_what_it_was_after_an_enqueue(
    url: URL, note: Note, wrapper: Any, alias: str, asked_before: bool
) -> None:
    """J1: its functions, converters and cursors; whether or not the app has used the database before."""
    app = fencepost.App(url)
    other = app.job(kind="note")(note.handler.function)
    if asked_before:
        assert app.jobs.list() == []
    with transaction.atomic(using=alias):
        before = _habits(wrapper)
        assert other.using(connection=wrapper, key="a").enqueue(number=1).created
        assert _habits(wrapper) == before
    app.close()


def _habits(wrapper: Any) -> list[Any]:
    """What Django has set up, or relies on, in its connection."""
    asked = ["SELECT 1", "SELECT CURRENT_TIMESTAMP - CURRENT_TIMESTAMP"]
    match wrapper.vendor:
        case "sqlite":  # Django's REGEXP takes numbers, SQLAlchemy's only texts
            asked += ["SELECT 12 REGEXP '^1'", "SELECT django_date_trunc('year', '2026-11-30', NULL, NULL)"]
            own = [
                wrapper.connection.isolation_level,
                wrapper.connection.row_factory,
                wrapper.connection.in_transaction,
            ]
        case "postgresql":
            asked += ["SHOW transaction_isolation", "SELECT '{\"a\": 1}'::jsonb"]
            raw = wrapper.connection
            own = [raw.autocommit, raw.isolation_level, raw.row_factory, raw.cursor_factory, len(raw._notice_handlers)]
        case _:
            asked += ["SELECT @@sql_mode, @@autocommit, @@character_set_connection", "SELECT MAKETIME(1, 2, 3)"]
            own = [wrapper.connection.get_autocommit(), wrapper.connection.cursorclass]
    answers = []
    for statement in asked:
        with wrapper.cursor() as cursor:
            cursor.execute(statement)
            answers.append(cursor.fetchall())
    return [own, answers]
