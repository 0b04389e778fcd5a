"""The application's own transaction, in whatever form it comes, as a connection that the store can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sqlalchemy import create_engine, exc, make_url
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import StaticPool

from fencepost.errors import ConfigurationError
from fencepost.store.database import Database

__all__ = ["joined"]

_DRIVERS = {
    "sqlite3": "sqlite+pysqlite",
    "psycopg": "postgresql+psycopg",
    "pymysql": "mysql+pymysql",
    "MySQLdb": "mysql+mysqldb",
}


@contextmanager
def joined(connection: Any, database: Database) -> Iterator[Connection]:
    """The transaction behind `connection`, which is neither committed nor rolled back nor closed here.

    Args:
        connection: a SQLAlchemy Connection or Session, a Django connection inside `atomic()`, or a connection of
            sqlite3, psycopg, PyMySQL or mysqlclient.
        database: where the jobs are, to refuse a connection to another kind of database.

    Raises:
        ConfigurationError: something else, another kind of database, or a Django connection outside of `atomic()`.
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
    if hasattr(connection, "in_atomic_block"):  # Django's wrapper, or the proxy that `django.db.connection` is
        with _joined_django(connection, database) as conn:
            yield conn
        return
    with _joined_driver(connection, database) as conn:
        yield conn


@contextmanager
def _joined_django(wrapper: Any, database: Database) -> Iterator[Connection]:
    """The driver's connection inside Django's, under the rules that Django's own statements follow."""
    if not wrapper.in_atomic_block:
        raise ConfigurationError(
            "This Django connection is not inside transaction.atomic(): the job would be committed by itself, before "
            "or without your rows. Enqueue inside the `with transaction.atomic():` block (in async code, in the "
            "function that sync_to_async runs), or leave connection= out for a transaction of fencepost's own."
        )
    # What a cursor of Django's own would look at first.
    wrapper.validate_thread_sharing()
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    failure: BaseException | None = None
    try:
        with _joined_driver(wrapper.connection, database) as conn:
            yield conn
    except exc.DBAPIError as error:
        failure = error.orig
    if failure is not None:
        # The database may have undone part of the transaction, or all of it (MySQL after a deadlock), and what follows
        # would then be committed alone. As after a statement of the ORM that failed, only the enclosing atomic() can
        # go on.
        wrapper.set_rollback(True)
        with wrapper.wrap_database_errors:
            raise failure


@contextmanager
def _joined_driver(connection: Any, database: Database) -> Iterator[Connection]:
    module = _module_of(connection)
    if module not in _DRIVERS:
        raise ConfigurationError(
            "connection= takes a SQLAlchemy Connection or Session, a Django connection, or a connection of "
            f"{', '.join(_DRIVERS)}; not a {type(connection).__module__}.{type(connection).__qualname__}"
        )
    url = make_url(f"{_DRIVERS[module]}://")
    _check_kind(url.get_backend_name(), database)
    borrowed = _Borrowed(connection, module)
    own = database.engine.dialect
    if own.driver == url.get_driver_name() and own.server_version_info is not None:
        # It knows the server already, so nothing is asked or set up on the application's connection.
        engine = Engine(StaticPool(lambda: borrowed, dialect=own), own, url)
    else:
        options = {"use_native_hstore": False} if module == "psycopg" else {}
        engine = create_engine(url, creator=lambda: borrowed, poolclass=StaticPool, **options)
    with engine.connect() as conn:
        yield conn


def _module_of(connection: Any) -> str:
    """The top module of the driver whose connection it is, or is derived from; "" for none."""
    modules = (base.__module__.partition(".")[0] for base in type(connection).__mro__)
    return next((module for module in modules if module in _DRIVERS), "")


class _Borrowed:
    """A driver's connection whose transaction is not ours to end, and whose set-up is not ours to change."""

    def __init__(self, connection: Any, module: str) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_module", module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A plain cursor whose rows are tuples, whatever the application's own are."""
        match self._module:
            case "sqlite3":
                cursor = self._connection.cursor(*args, **kwargs)
                cursor.row_factory = None
                return cursor
            case "psycopg":
                from psycopg import Cursor
                from psycopg.rows import tuple_row

                return Cursor(self._connection, row_factory=tuple_row)
            case module:
                plain = import_module(f"{module}.cursors").Cursor
                return self._connection.cursor(*(args or (plain,)), **kwargs)

    def create_function(self, *args: Any, **kwargs: Any) -> None:
        """SQLAlchemy would put its own REGEXP in the place of the application's, for good."""

    def add_notice_handler(self, *args: Any) -> None:
        """SQLAlchemy would add another one at each enqueue."""

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
