"""The databases that are measured: how to reach one, and an empty scratch database on it that goes away again."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql
from sqlalchemy import URL, make_url

from bench.floor import Floor
from bench.floor_mysql import MySQLFloor
from bench.floor_postgres import PostgresFloor
from bench.floor_sqlite import SQLiteFloor
from bench.machine import filesystem_of

__all__ = ["DATABASES", "Database", "LeftOut"]

_CONNECT_SECONDS = 5
_SCRATCH = f"fencepost_bench_{os.getpid()}"


class LeftOut(Exception):
    """A database that cannot be measured here; the text says why."""


class Database(ABC):
    """One of the databases, by the name that `--databases` takes."""

    name: ClassVar[str]

    @abstractmethod
    def describe(self) -> str:
        """Version, driver and how durable a commit is, in one line.

        Raises:
            LeftOut: it cannot be reached.
        """

    @abstractmethod
    def scratch(self) -> Any:
        """A context manager: the URL of an empty database, which is gone afterwards, whatever happened."""

    @abstractmethod
    def open_floor(self, url: str) -> Floor:
        """The hand-written SQL for this database, connected to a scratch database."""

    @abstractmethod
    def count(self, url: str, query: str) -> int:
        """The one number that a query answers, asked without fencepost."""


class SQLite(Database):
    """A file in a temporary folder."""

    name = "sqlite"

    def describe(self) -> str:
        """The library's version, and the file system that has to make a commit durable."""
        folder = Path(tempfile.gettempdir())
        return (
            f"SQLite {sqlite3.sqlite_version}, driver sqlite3; WAL, synchronous=FULL, a file on {filesystem_of(folder)}"
        )

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """A file of its own folder."""
        with tempfile.TemporaryDirectory(prefix=f"{_SCRATCH}_") as folder:
            yield f"sqlite:///{folder}/jobs.db"

    def open_floor(self, url: str) -> Floor:
        """See `SQLiteFloor`."""
        return SQLiteFloor(_path(url))

    def count(self, url: str, query: str) -> int:
        """Asked on a connection of its own."""
        with closing(sqlite3.connect(_path(url))) as connection:
            return int(connection.execute(query).fetchone()[0])


class PostgreSQL(Database):
    """The server of FENCEPOST_TEST_POSTGRES, by default the local one."""

    name = "postgresql"

    def __init__(self) -> None:
        self._server = make_url(os.environ.get("FENCEPOST_TEST_POSTGRES", "postgresql://postgres@127.0.0.1/postgres"))

    def describe(self) -> str:
        """Asked of the server."""
        with closing(self._connect()) as connection:
            values = [
                connection.execute(f"SHOW {setting}").fetchone()
                for setting in ("server_version", "fsync", "synchronous_commit")
            ]
        version, fsync, commit = (value[0] for value in values if value is not None)
        return (
            f"PostgreSQL {version}, driver psycopg {psycopg.__version__} ({psycopg.pq.__impl__}); "
            f"fsync={fsync}, synchronous_commit={commit}"
        )

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """CREATE DATABASE, and DROP DATABASE ... WITH (FORCE): a worker that still holds on is cut off."""
        with closing(self._connect()) as server:
            server.execute(f"CREATE DATABASE {_SCRATCH}")
            try:
                yield _text(self._server.set(database=_SCRATCH))
            finally:
                # The first connection may have been lost, in a long round or to a restart.
                with closing(self._connect()) as fresh:
                    fresh.execute(f"DROP DATABASE IF EXISTS {_SCRATCH} WITH (FORCE)")

    def open_floor(self, url: str) -> Floor:
        """See `PostgresFloor`."""
        return PostgresFloor(psycopg.connect(_bare(url), autocommit=True, connect_timeout=_CONNECT_SECONDS))

    def count(self, url: str, query: str) -> int:
        """Asked on a connection of its own."""
        with psycopg.connect(_bare(url), connect_timeout=_CONNECT_SECONDS) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(_bare(_text(self._server)), autocommit=True, connect_timeout=_CONNECT_SECONDS)
        except psycopg.OperationalError as error:
            raise LeftOut(f"{self._server.render_as_string()} cannot be reached: {_one_line(error)}") from error


class MySQL(Database):
    """MariaDB or MySQL: the server of FENCEPOST_TEST_MYSQL, by default the local one."""

    name = "mysql"

    def __init__(self) -> None:
        self._server = make_url(os.environ.get("FENCEPOST_TEST_MYSQL", "mysql://root@127.0.0.1/"))

    def describe(self) -> str:
        """Asked of the server."""
        with closing(_connect_mysql(self._server)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT VERSION(), @@innodb_flush_log_at_trx_commit")
            row = cursor.fetchone()
        assert row is not None
        product = "MariaDB" if "MariaDB" in row[0] else "MySQL"
        return (
            f"{product} {row[0].split('-')[0]}, driver PyMySQL {version('pymysql')}; "
            f"innodb_flush_log_at_trx_commit={row[1]}"
        )

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """CREATE DATABASE and DROP DATABASE."""
        self._on_server(f"CREATE DATABASE {_SCRATCH} CHARACTER SET utf8mb4")
        try:
            yield _text(self._server.set(database=_SCRATCH))
        finally:
            self._on_server(f"DROP DATABASE IF EXISTS {_SCRATCH}")

    def open_floor(self, url: str) -> Floor:
        """See `MySQLFloor`."""
        return MySQLFloor(_connect_mysql(make_url(url)))

    def count(self, url: str, query: str) -> int:
        """Asked on a connection of its own."""
        with closing(_connect_mysql(make_url(url))) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
        assert row is not None
        return int(row[0])

    def _on_server(self, statement: str) -> None:
        with closing(_connect_mysql(self._server)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 60")  # a transaction left open must not hold the drop
            cursor.execute(statement)


DATABASES: dict[str, Callable[[], Database]] = {kind.name: kind for kind in (SQLite, PostgreSQL, MySQL)}


def _connect_mysql(url: URL) -> pymysql.Connection[Any]:
    try:
        return pymysql.connect(
            host=url.host or "127.0.0.1",
            port=url.port or 3306,
            user=url.username,
            password=url.password or "",
            database=url.database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
        )
    except pymysql.err.OperationalError as error:
        raise LeftOut(f"{url.render_as_string()} cannot be reached: {_one_line(error)}") from error


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _bare(url: str) -> str:
    """The URL without SQLAlchemy's `+driver`."""
    parsed = make_url(url)
    return _text(parsed.set(drivername=parsed.get_backend_name()))


def _path(url: str) -> Path:
    return Path(make_url(url).database or "")


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
