"""SQLite: one writer at a time, so a claim needs no row locks; the host's clock is the database's."""

from __future__ import annotations

import json
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
from fencepost.store.dialects.base import Dialect, Fault, RowUpdate
from fencepost.store.tables import jobs

__all__ = ["SQLite", "database_path"]

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
    writing: the SQLITE_BUSY_SNAPSHOT that no busy timeout heals cannot happen.
    """

    name = "sqlite"
    driver = "sqlite+pysqlite"
    drivers = ("pysqlite",)
    skip_locked: ClassVar[bool] = False

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

    def now(self, conn: Connection) -> Micros:
        """The host's clock: every process that can open the file shares it."""
        return time.time_ns() // 1000

    def classify(self, error: exc.DBAPIError) -> Fault:
        """Busy and locked pass; a full disk, a corrupt file and the like do not."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        return Fault.TRANSIENT if code is not None and code & 0xFF in (_BUSY, _LOCKED) else Fault.PERMANENT

    def lock_migrations(self, conn: Connection) -> None:
        """Nothing to do: the transaction began IMMEDIATE, and DDL is transactional."""

    def ignoring_conflicts(self, table: Table) -> Insert:
        """INSERT ... ON CONFLICT DO NOTHING."""
        return insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """INSERT ... ON CONFLICT (key) DO UPDATE."""
        return insert(table).values(dict(values)).on_conflict_do_update(index_elements=[key], set_=dict(values))

    def fetch(self, conn: Connection, query: Select[Any], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows as one JSON value.

        The sqlite3 module lets go of the interpreter lock at every row that it steps to, and in a busy worker each
        return to it can cost milliseconds. One row means one step.
        """
        (text,) = conn.execute(_as_json(query), dict(parameters)).one()
        return json.loads(text)  # type: ignore[no-any-return]

    def update_rows(
        self, conn: Connection, define: RowUpdate, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> list[bool]:
        """Two statements over json_each(rows), for the reason that `fetch` gives, instead of one for each row.

        The first says which guards hold, the second writes where they do. Between them nobody writes: this
        transaction holds the one write lock from its beginning.
        """
        if len(rows) == 1:
            return super().update_rows(conn, define, names, rows)
        update = self._json_update(define, names)
        given = {"rows": json.dumps(rows)}
        (text,) = conn.execute(_held_ids(update), given).one()
        held = set(json.loads(text))
        if held:
            written = conn.execute(update, given).rowcount
            assert written == len(held), "a guard changed under the write lock"
        return [row[0] in held for row in rows]

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _json_update(self, define: RowUpdate, names: tuple[str, ...]) -> Update:
        given = func.json_each(bindparam("rows", type_=Text)).table_valued("value", name="given")

        def value(name: str) -> ColumnElement[Any]:
            place = literal_column(f"'$[{names.index(name)}]'", Text)
            return func.json_extract(given.c.value, place, type_=jobs.c[name.removeprefix("_")].type)

        return define(jobs.c.id == value(names[0]), value)


@lru_cache(maxsize=64)
def _held_ids(update: Update) -> Select[Any]:
    held = select(jobs.c.id).where(*update._where_criteria).subquery("held")
    return select(func.json_group_array(held.c.id))


@lru_cache(maxsize=64)
def _as_json(query: Select[Any]) -> Select[Any]:
    rows = query.subquery("picked")
    return select(func.json_group_array(func.json_array(*rows.c)))


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
