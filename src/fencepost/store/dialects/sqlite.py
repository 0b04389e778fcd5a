"""SQLite: one writer at a time, so a claim needs no row locks; the host's clock is the database's."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Table,
    TableValuedAlias,
    Text,
    Update,
    bindparam,
    create_engine,
    event,
    exc,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import StaticPool

from fencepost.errors import ConfigurationError
from fencepost.job import Micros
from fencepost.store.dialects import sqlite_settings as settings
from fencepost.store.dialects.base import Dialect, Fault, Given, RowUpdate, compiled_sql
from fencepost.store.finding import Finding
from fencepost.store.tables import jobs

__all__ = ["SQLite", "database_path"]

logger = logging.getLogger("fencepost.store")

_BUSY, _LOCKED = (
    5,
    6,
)  # primary result codes; the extended ones (BUSY_SNAPSHOT, ...) carry them in the low byte
_READ_ONLY_BEGIN = "BEGIN"
_WRITE_BEGIN = "BEGIN IMMEDIATE"


def database_path(url: URL) -> Path | None:
    """The database file of a SQLite URL, made absolute; None for an in-memory database.

    Raises:
        ConfigurationError: a URL whose tricks would break SQLite's locking between processes.
    """
    database = url.database or ""
    tricks = sorted(set(url.query) - {"timeout"})
    if database.startswith("file:") or tricks:
        raise ConfigurationError(
            f"fencepost opens SQLite files itself and takes no SQLite URI or option ({', '.join(tricks) or 'file:'}): "
            "shared caches, nolock, immutable and other file systems break the locking on which claims rest. "
            "Use sqlite:///path/to/jobs.db"
        )
    if database in ("", ":memory:"):
        return None
    return Path(database).expanduser().absolute()


class SQLite(Dialect):
    """The standard library's sqlite3, in WAL mode, every write transaction begun with BEGIN IMMEDIATE.

    IMMEDIATE takes the write lock before anything is read, so no transaction ever has to turn from reading to
    writing: the SQLITE_BUSY_SNAPSHOT that no busy timeout heals cannot happen. It also lets one process migrate at a
    time, since DDL is transactional.
    """

    name = "sqlite"
    driver = "sqlite+pysqlite"
    drivers = ("pysqlite",)
    skip_locked: ClassVar[bool] = False
    looks_first: ClassVar[bool] = True
    writes_alone: ClassVar[bool] = True

    def create_engine(self, url: URL, *, pool_size: int, synchronous: str, busy_timeout: float) -> Engine:
        """An engine for the file (made with mode 0600 if it is new), or for one in-memory database."""
        path = database_path(url)
        if path is None:
            engine = create_engine(
                "sqlite+pysqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
            )
        else:
            _create_private(path)
            engine = create_engine(
                url.set(drivername=self.driver, database=str(path), query={}),
                pool_size=pool_size,
                max_overflow=-1,
                # The writers of a process take turns; last in, first out they also share a connection, whose page
                # cache is then not made stale by the other's commits.
                pool_use_lifo=True,
                connect_args={"check_same_thread": False, "timeout": busy_timeout},
            )

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # the driver begins nothing by itself; `begin` below does
            connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout * 1000)}")
            if path is not None:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")

        @event.listens_for(engine, "begin")
        def begin(conn: Connection) -> None:
            reading = conn.get_execution_options().get("fencepost_reading", False)
            conn.exec_driver_sql(_READ_ONLY_BEGIN if reading else _WRITE_BEGIN)

        return engine

    def adopt_engine(self, engine: Engine) -> Engine:
        """Refused: an engine made elsewhere begins its transactions in a way that breaks the claim."""
        raise ConfigurationError(
            "For SQLite pass a URL instead of an Engine (fencepost.App('sqlite:///jobs.db')): it needs connections "
            "that begin with BEGIN IMMEDIATE. To enqueue in your own transaction, pass connection= to using()."
        )

    def refuse_absent(self, url: URL) -> None:
        """A file that is not there, and memory that only its own process sees."""
        path = database_path(url)
        if path is None:
            raise ConfigurationError(
                "An in-memory database is seen by its own process alone. Name a file: sqlite:///jobs.db"
            )
        if not path.is_file():
            raise ConfigurationError(
                f"There is no database file {path}. Check the path, or create it: fencepost migrate --url '{url}'"
            )

    def facts(self, conn: Connection, *, is_thorough: bool) -> dict[str, str]:
        """The pragmas, and the modes of the file and its companions."""
        return settings.facts(conn, database_path(conn.engine.url), is_thorough=is_thorough)

    def judge(self, facts: Mapping[str, str], *, payload_bytes: int) -> list[Finding]:
        """WAL, synchronous, who may read the files, and whether they are whole."""
        return settings.judge(facts)

    def now(self, conn: Connection) -> Micros:
        """The host's clock: every process that can open the file shares it."""
        return time.time_ns() // 1000

    def classify(self, error: exc.DBAPIError) -> Fault:
        """Busy and locked pass; a full disk, a corrupt file and the like do not."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        return Fault.TRANSIENT if code is not None and code & 0xFF in (_BUSY, _LOCKED) else Fault.PERMANENT

    def ignoring_conflicts(self, table: Table) -> Insert:
        """INSERT ... ON CONFLICT DO NOTHING."""
        return insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """INSERT ... ON CONFLICT (key) DO UPDATE."""
        return insert(table).values(dict(values)).on_conflict_do_update(index_elements=[key], set_=dict(values))

    def fetch_rows(
        self, conn: Connection, query: Select[Any], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        """The rows as one JSON array.

        sqlite3 lets go of the interpreter's lock for each row that it fetches, and then waits for whatever runs
        meanwhile to give it back, while this transaction keeps every other writer out. This way it waits once.
        """
        try:
            found = conn.execute(_as_json(query), dict(parameters)).scalar_one()
            return json.loads(found)  # type: ignore[no-any-return]
        except (exc.OperationalError, ValueError) as error:
            # A damaged row: JSON carries no BLOB and no infinity. Everything else fails below once more.
            logger.debug("Rows are fetched one by one: %s", error)
            return super().fetch_rows(conn, query, parameters)

    def update_rows(
        self, conn: Connection, define: RowUpdate, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> list[bool]:
        """One UPDATE that takes the rows as JSON. Where some guard did not hold, row by row, which tells whose.

        (RETURNING would tell too, but see `fetch_rows`.) Of two attempts of one job in a group at most one can hold,
        and an UPDATE does not say which it met: such a group is written row by row as well.
        """
        if len({row[0] for row in rows}) < max(len(rows), 2):
            return super().update_rows(conn, define, names, rows)
        given = Given(names, rows)
        if given.varying == names[:1]:
            statement = self._ids_update(define, names)
            values: Any = given.columns[0]
        else:
            statement = self._json_update(define, names[0], given.varying)
            values = list(zip(*given.columns, strict=True))
        parameters = given.shared | {"rows": json.dumps(values)}
        sql, order = compiled_sql(statement, conn.dialect)
        assert order is not None, "sqlite3 takes parameters by position"
        savepoint = conn.begin_nested()
        if conn.exec_driver_sql(sql, tuple(parameters[name] for name in order)).rowcount == len(rows):
            savepoint.commit()
            return [True] * len(rows)
        savepoint.rollback()
        return super().update_rows(conn, define, names, rows)

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _ids_update(self, define: RowUpdate, names: tuple[str, ...]) -> Update:
        """For rows that agree in all but their ids, as completions mostly do."""
        ids = select(_given_rows().c.value)
        return define(jobs.c.id.in_(ids), lambda name: bindparam(name, type_=jobs.c[name.removeprefix("_")].type))

    @lru_cache(maxsize=256)  # noqa: B019 - dialects live as long as the program
    def _json_update(self, define: RowUpdate, id_name: str, varying: tuple[str, ...]) -> Update:
        given = _given_rows()

        def value(name: str) -> ColumnElement[Any]:
            column = jobs.c[name.removeprefix("_")]
            if name not in varying:
                return bindparam(name, type_=column.type)
            place = literal_column(f"'$[{varying.index(name)}]'", Text)
            return func.json_extract(given.c.value, place, type_=column.type)

        return define(jobs.c.id == value(id_name), value)


def _given_rows() -> TableValuedAlias:
    return func.json_each(bindparam("rows", type_=Text)).table_valued("value", name="given")


@lru_cache(maxsize=64)
def _as_json(query: Select[Any]) -> Select[Any]:
    rows = query.subquery()
    return select(func.json_group_array(func.json_array(*rows.c), type_=Text))


def _create_private(path: Path) -> None:
    """Make a new database file readable by its owner alone; WAL and shared memory take over the file's mode."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"No directory {path.parent} for the database {path.name}. Create it first.")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigurationError(f"Cannot create the database {path}: {error.strerror}.") from error
