"""The schema's steps: fresh and migrated are equal, names follow the rule, and one process migrates at a time (L5)."""

from __future__ import annotations

import importlib
import multiprocessing
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, event, inspect

import fencepost
from fencepost.store import Database, schema
from fencepost.store.tables import jobs, metadata, permit_digest_of, permit_line_of
from tests import databases
from tests.jobs import at_once, empty_database, overwrite, put, row

MIGRATIONS = Path(schema.__file__).parent / "migrations"


@pytest.fixture
def empty(database_name: str, tmp_path: Path) -> Iterator[URL]:
    """A database without tables."""
    with empty_database(database_name, tmp_path) as url:
        yield url


def shape(conn: Connection) -> dict[str, Any]:
    """Every table as the database describes it: columns with type and nullability, keys, indexes, checks."""
    inspector = inspect(conn)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            },
            "primary key": inspector.get_pk_constraint(table)["constrained_columns"],
            "indexes": {
                str(index["name"]): (
                    index["column_names"],
                    bool(index["unique"]),
                    {name: str(option) for name, option in index.get("dialect_options", {}).items()},
                )
                for index in inspector.get_indexes(table)
            },
            "checks": sorted(str(check["name"]) for check in inspector.get_check_constraints(table)),
        }
        for table in inspector.get_table_names()
        if table != schema.VERSION_TABLE
    }


def test_the_migrated_schema_is_the_one_that_the_tables_define(empty: URL) -> None:
    """L5: by Alembic's own comparison."""
    app = fencepost.App(empty)
    app.migrate()
    with app.store.database.reading() as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True, "version_table": schema.VERSION_TABLE}
        )
        assert compare_metadata(context, metadata) == []
    app.close()


def test_the_migrated_schema_equals_the_fresh_one_in_the_databases_own_words(
    empty: URL, database_name: str, tmp_path: Path
) -> None:
    """L5: with types, indexes, partial indexes, defaults and checks."""
    app = fencepost.App(empty)
    app.migrate()
    with app.store.database.reading() as conn:
        migrated = shape(conn)
    app.close()
    (tmp_path / "fresh").mkdir()
    with empty_database(database_name, tmp_path / "fresh") as url:
        database = Database(url)
        with database.transaction() as conn:
            metadata.create_all(conn)
            fresh = shape(conn)
        database.close()
    assert migrated == fresh
    assert set(migrated) == {table.name for table in metadata.sorted_tables}


def test_tables_and_indexes_are_named_after_fencepost_and_what_they_serve() -> None:
    """L5: so that they never clash with the application's own."""
    for table in metadata.sorted_tables:
        assert re.fullmatch(r"fencepost_[a-z]+", table.name)
        for index in table.indexes:
            assert re.fullmatch(rf"{table.name}_[a-z]+", str(index.name))
        for constraint in table.constraints:
            assert constraint.name is None or re.fullmatch(rf"{table.name}_[a-z]+", str(constraint.name))
    assert re.fullmatch(r"fencepost_[a-z]+", schema.VERSION_TABLE)
    assert {str(index.name) for index in jobs.indexes} >= {"fencepost_jobs_ready", "fencepost_jobs_live"}


def test_the_known_revisions_are_those_of_the_migration_files() -> None:
    """L5: in their order, one file a step, named after its revision."""
    script = ScriptDirectory(str(MIGRATIONS))
    steps = [step.revision for step in script.walk_revisions()][::-1]
    assert tuple(steps) == schema.REVISIONS
    files = sorted(path.stem for path in (MIGRATIONS / "versions").glob("v*.py"))
    assert [name[1:5] for name in files] == steps


def test_the_tests_know_all_tables() -> None:
    """What is cleared between tests is all that there is."""
    assert set(databases.TABLES) == {table.name for table in metadata.sorted_tables}


def test_migrating_twice_changes_nothing(empty: URL) -> None:
    """L5: and leaves the jobs alone."""
    app = fencepost.App(empty)
    assert app.migrate() is True
    job_id = put(app.store).id
    assert app.migrate() is False
    assert app.jobs.get(job_id).id == job_id
    app.close()


def test_of_three_that_migrate_at_once_one_does(empty: URL) -> None:
    """L5: the others wait for it, find nothing to do, and do not fail."""
    apps = [fencepost.App(empty) for _ in range(3)]
    assert sorted(at_once([app.migrate for app in apps])) == [False, False, True]
    assert put(apps[0].store).created
    for app in apps:
        app.close()


def _migrate_in_a_process(url: str, answers: Any) -> None:
    app = fencepost.App(url)
    answers.put(app.migrate())
    app.close()


def test_of_three_processes_that_migrate_at_once_one_does(empty: URL) -> None:
    """L5: as a deployment of several replicas does it."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    url = empty.render_as_string(hide_password=False)
    processes = [context.Process(target=_migrate_in_a_process, args=(url, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert found == [False, False, True]
    assert [process.exitcode for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("database_name", ["mysql"], indirect=True)
@pytest.mark.parametrize("statements", range(1, 10))
def test_a_migration_that_was_killed_half_way_is_repeated(empty: URL, statements: int) -> None:
    """L5: this database commits each statement by itself, so every step bears being run again from its start."""
    database = Database(empty)
    done = 0

    class Killed(BaseException):
        pass

    def kill(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal done
        if statement.lstrip().startswith(("CREATE", "INSERT")):
            done += 1
            if done == statements:
                raise Killed

    event.listen(database.engine, "before_cursor_execute", kill)
    try:
        schema.migrate(database)
    except Killed:
        pass
    else:
        assert statements > 5, "a migration of fewer statements than this"
    event.remove(database.engine, "before_cursor_execute", kill)
    database.close()
    app = fencepost.App(empty)
    app.migrate()
    assert app.migrate() is False
    assert put(app.store).created
    with app.store.database.reading() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True, "version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    app.close()


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
def test_a_migration_that_fails_half_way_leaves_nothing_behind(empty: URL) -> None:
    """L5: where DDL is part of the transaction."""
    database = Database(empty)

    def fail(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "fencepost_workers" in statement:
            raise InterruptedError("in the middle")

    event.listen(database.engine, "before_cursor_execute", fail)
    with pytest.raises(InterruptedError):
        schema.migrate(database)
    event.remove(database.engine, "before_cursor_execute", fail)
    with database.reading() as conn:
        assert inspect(conn).get_table_names() == []
    assert schema.migrate(database) is True
    database.close()


def test_a_migration_waits_for_the_one_that_runs(empty: URL) -> None:
    """L5: one that comes while another is half-way finds, when it is its turn, that all is done."""
    first, second = Database(empty), Database(empty, busy_timeout=30)
    half_way, go_on = threading.Event(), threading.Event()

    def pause(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "CREATE TABLE" in statement and "fencepost_workers" in statement:
            half_way.set()
            assert go_on.wait(30)

    def second_in_line(_conn: Any, _cursor: Any, _statement: str, *_: Any) -> None:
        go_on.set()  # it has looked and found no tables, so it is about to wait

    event.listen(first.engine, "before_cursor_execute", pause)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(schema.migrate, first)
        assert half_way.wait(30)
        event.listen(second.engine, "before_cursor_execute", second_in_line)
        coming = threads.submit(schema.migrate, second)
        assert running.result(60) is True
        assert coming.result(60) is False
    first.close()
    second.close()


def test_jobs_that_wait_for_a_permit_are_moved_to_its_line_of_today(empty: URL) -> None:
    """L5: from the lines in which an older build put them, so that a release still wakes them."""
    app = fencepost.App(empty)
    app.migrate()
    waiting, ready = put(app.store).id, put(app.store).id
    digest = permit_digest_of("key")
    old = -1 - (int(digest[:16], 16) >> 1)
    overwrite(app.store, waiting, state="blocked", line=old, permit_key="key", permit_slots=1, permit_policy="queue")
    before = row(app.store, ready)
    step = importlib.import_module("fencepost.store.migrations.versions.v0005_queue_settings")
    with app.store.database.transaction() as conn, Operations.context(MigrationContext.configure(conn)):
        step.upgrade()  # repeated on what is there, as after a crash half-way
    assert row(app.store, waiting)["line"] == permit_line_of(digest)
    assert row(app.store, ready) == before
    app.close()
