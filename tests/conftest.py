"""Fixtures: every test that asks for `url`, `store` or `app` runs once on each database."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

import fencepost
from fencepost.store import Database, Store
from fencepost.testing import VirtualClock
from tests import databases


def pytest_report_header() -> str:
    missing = databases.left_out()
    return f"databases: left out: {', '.join(missing)}" if missing else f"databases: {', '.join(databases.NAMES)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for missing in databases.left_out():
        terminalreporter.write_line(f"LEFT OUT: {missing}", yellow=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("CI") == "true" and databases.left_out():
        pytest.exit(f"CI runs every test, and here are left out: {', '.join(databases.left_out())}", returncode=1)


@pytest.fixture(scope="session")
def server_databases() -> Iterator[dict[str, URL]]:
    """One scratch database per server, made at its first use."""
    made: dict[str, URL] = {}
    opened = []
    try:
        for name in databases.SERVERS:
            if databases.server(name) is not None:
                context = databases.scratch_database(name)
                made[name] = context.__enter__()
                opened.append(context)
                migrated = fencepost.App(made[name])
                migrated.migrate()
                migrated.close()
        yield made
    finally:
        for context in opened:
            context.__exit__(None, None, None)


@pytest.fixture(params=databases.NAMES)
def database_name(request: pytest.FixtureRequest) -> str:
    """Which database the test runs on."""
    name: str = request.param
    if name in databases.SERVERS and databases.server(name) is None:
        pytest.skip(f"{name} does not answer; set {databases.SERVERS[name][0]}")
    return name


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: every migration once a test would be a good part of what all tests take."""
    folder = tmp_path_factory.mktemp("migrated")
    app = fencepost.App(databases.sqlite_url(folder))
    app.migrate()
    app.close()
    (file,) = folder.iterdir()  # its companions went with the last connection
    return file


@pytest.fixture
def url(database_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> URL:
    """A migrated database without jobs."""
    if database_name == "sqlite":
        file = databases.sqlite_url(tmp_path)
        assert file.database is not None
        shutil.copy(request.getfixturevalue("migrated_file"), file.database)
        return file
    url: URL = request.getfixturevalue("server_databases")[database_name]
    engine = create_engine(url)
    with engine.begin() as conn:
        for table in databases.TABLES:
            conn.execute(text(f"DELETE FROM {table}"))
    engine.dispose()
    return url


@pytest.fixture
def clock() -> VirtualClock:
    """The clock of `store`, moved by hand."""
    return VirtualClock()


@pytest.fixture
def store(url: URL, clock: VirtualClock) -> Iterator[Store]:
    """A store whose database clock is `clock`."""
    store = Store(Database(url, clock=clock), migrates=False)
    yield store
    store.close()


@pytest.fixture
def app(url: URL) -> Iterator[fencepost.App]:
    """An app on the database's own clock, without handlers."""
    app = fencepost.App(url)
    yield app
    app.close()
