"""The application's own transaction, in whatever form it comes, as a connection that the store can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import StaticPool

from fencepost.errors import ConfigurationError
from fencepost.store.database import Database

__all__ = ["joined"]

_DRIVERS = {"sqlite3": "sqlite+pysqlite", "psycopg": "postgresql+psycopg", "pymysql": "mysql+pymysql"}


@contextmanager
def joined(connection: Any, database: Database) -> Iterator[Connection]:
    """The transaction behind `connection`, which is neither committed nor rolled back nor closed here.

    Args:
        connection: a SQLAlchemy Connection or Session, or a connection of sqlite3, psycopg or PyMySQL.
        database: where the jobs are, to refuse a connection to another kind of database.

    Raises:
        ConfigurationError: something else, or another kind of database.
    """
    if isinstance(connection, (Session, scoped_session)):
        connection = connection.connection()
    if isinstance(connection, Connection):
        _check_kind(connection.dialect.name, database)
        yield connection
        return
    if hasattr(connection, "run_sync"):
        raise ConfigurationError(
            f"{type(connection).__name__} is asynchronous: use `await ...using(connection=...).aenqueue(...)`"
        )
    url = _DRIVERS.get(type(connection).__module__.partition(".")[0])
    if url is None:
        raise ConfigurationError(
            f"connection= takes a SQLAlchemy Connection or Session, or a connection of {', '.join(_DRIVERS)}; "
            f"not a {type(connection).__module__}.{type(connection).__qualname__}"
        )
    _check_kind(url.partition("+")[0], database)
    options = {"use_native_hstore": False} if url.startswith("postgresql") else {}
    engine = create_engine(f"{url}://", creator=lambda: _Borrowed(connection), poolclass=StaticPool, **options)
    with engine.connect() as conn:
        yield conn


class _Borrowed:
    """A driver's connection whose transaction is not ours to end."""

    def __init__(self, connection: Any) -> None:
        object.__setattr__(self, "_connection", connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor whose rows are tuples, whatever the application's own are."""
        match type(self._connection).__module__.partition(".")[0]:
            case "sqlite3":
                cursor = self._connection.cursor(*args, **kwargs)
                cursor.row_factory = None
                return cursor
            case "psycopg":
                from psycopg.rows import tuple_row

                return self._connection.cursor(*args, **{"row_factory": tuple_row} | kwargs)
            case _:
                from pymysql.cursors import Cursor

                return self._connection.cursor(*(args or (Cursor,)), **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._connection, name, value)

    def commit(self) -> None:
        """The application commits."""

    def rollback(self) -> None:
        """The application rolls back."""

    def close(self) -> None:
        """The application closes."""


def _check_kind(found: str, database: Database) -> None:
    wanted = database.dialect.name
    if {"mariadb": "mysql"}.get(found, found) != wanted:
        raise ConfigurationError(
            f"The connection is to {found}, but this app's jobs are in {wanted} ({database.display_url}): they "
            "cannot share a transaction"
        )
