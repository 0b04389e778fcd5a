"""The capabilities that a dialect offers, with a general way wherever there is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Insert, Select, Table, Update, bindparam, exc
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.engine.interfaces import Dialect as SQLDialect
from sqlalchemy.sql import ClauseElement

from fencepost.job import Micros
from fencepost.store.finding import Finding
from fencepost.store.tables import jobs

__all__ = ["Dialect", "Fault", "Given", "RowUpdate", "compiled_sql", "driver_rows"]

RowUpdate = Callable[[ColumnElement[bool], Callable[[str], ColumnElement[Any]]], Update]
"""Defines a guarded update of many rows once: from (the criterion on the id, access to a row's own values)."""


class Fault(Enum):
    """What a database error means for the caller."""

    TRANSIENT = "transient"
    """Busy, locked, deadlock, serialisation, lost connection: the same call may succeed later."""
    PERMANENT = "permanent"
    """It will fail again."""


@lru_cache(maxsize=512)
def compiled_sql(statement: ClauseElement, dialect: SQLDialect) -> tuple[str, tuple[str, ...] | None]:
    """A statement as the driver takes it: its text, and its parameters' order (None where it takes names).

    Only for statements that are module constants or cached themselves: the cache keys on their identity.
    """
    compiled = statement.compile(dialect=dialect)
    order = getattr(compiled, "positiontup", None)
    return str(compiled), tuple(order) if order is not None else None


def driver_rows(order: tuple[str, ...] | None, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    """Rows of values under `names`, as the driver takes them for a statement with the parameter order `order`."""
    if order is None:
        return [dict(zip(names, row, strict=True)) for row in rows]
    if order == tuple(names):
        return rows
    places = [names.index(name) for name in order]
    return [tuple(row[place] for place in places) for row in rows]


class Given:
    """Rows of values under names, with the columns in which all rows agree taken apart: most columns of a batch.

    Attributes:
        varying: the names of the others; the first name is always among them.
        columns: their values, a tuple a name.
        shared: the one value of each name that is the same in all rows.
    """

    __slots__ = ("columns", "shared", "varying")

    def __init__(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        self.shared: dict[str, Any] = {}
        varying: list[str] = []
        self.columns: list[tuple[Any, ...]] = []
        for place, (name, values) in enumerate(zip(names, zip(*rows, strict=True), strict=True)):
            if place and values.count(values[0]) == len(values):
                self.shared[name] = values[0]
            else:
                varying.append(name)
                self.columns.append(values)
        self.varying = tuple(varying)


class Dialect(ABC):
    """One database's way of doing what the store needs."""

    name: ClassVar[str]
    driver: ClassVar[str]
    """The SQLAlchemy driver name used for a URL that names none."""
    drivers: ClassVar[tuple[str, ...]] = ()
    """The drivers, as SQLAlchemy names them, through which an engine may talk."""
    extra: ClassVar[str | None] = None
    """The extra that installs the driver."""
    skip_locked: ClassVar[bool] = True
    """Whether rows locked by others can be passed over (SQLite has one writer and needs none of it)."""
    looks_first: ClassVar[bool] = False
    """Whether to see in a read-only transaction if there is anything to do, before a write transaction keeps every
    other writer out."""
    writes_alone: ClassVar[bool] = False
    """Whether nobody else can write while a write transaction is open, so that a search finds the same rows twice."""
    probes_in_recursion: ClassVar[bool] = True
    """Whether MIN(column) above a bound is one probe of its index inside a recursive CTE too, and not a scan."""
    claims_in_one_statement: ClassVar[bool] = False
    """Whether UPDATE ... RETURNING can claim and read at once, in rank order."""
    max_statement_bytes: ClassVar[int] = 4 * 1024 * 1024
    """How much payload goes into one statement of a bulk insert."""

    @abstractmethod
    def create_engine(self, url: URL, *, pool_size: int, synchronous: str, busy_timeout: float) -> Engine:
        """An engine of our own for `url`."""

    @abstractmethod
    def adopt_engine(self, engine: Engine) -> Engine:
        """The application's engine, with the isolation that the store needs on the connections it borrows."""

    def refuse_absent(self, url: URL) -> None:  # noqa: B027 - a server says so itself
        """Raise ConfigurationError where opening `url` would make a new database, or one that nobody else sees."""

    def facts(self, conn: Connection, *, is_thorough: bool) -> dict[str, str]:
        """The versions and settings that `judge` looks at, by the database's own names for them."""
        return {}

    def judge(self, facts: Mapping[str, str], *, payload_bytes: int) -> list[Finding]:
        """What this kind of database can have wrong: at least one finding a check, also where all is well."""
        return []

    @abstractmethod
    def now(self, conn: Connection) -> Micros:
        """The database's clock."""

    def now_and_pin(self, conn: Connection) -> Micros:
        """The database's clock; and from here to the transaction's end, hot statements keep their index plans."""
        return self.now(conn)

    @abstractmethod
    def classify(self, error: exc.DBAPIError) -> Fault:
        """Whether an error of the driver may pass."""

    def migrating(self, engine: Engine) -> AbstractContextManager[None]:
        """Keep other processes from migrating meanwhile, where DDL commits and so ends the locks of its transaction."""
        return nullcontext()

    def lock_migrations(self, conn: Connection) -> None:  # noqa: B027 - SQLite has one writer as it is
        """Wait for others that migrate, and have them wait for the end of this transaction, the migration's own."""

    def bounding_idleness(self, conn: Connection, seconds: float) -> AbstractContextManager[None]:
        """Let the server end this transaction if its client stays silent for so long in the middle of it.

        Whoever froze, or was cut off, then holds no lock any longer. Nothing where there is no server.
        """
        return nullcontext()

    @abstractmethod
    def ignoring_conflicts(self, table: Table) -> Insert:
        """An INSERT that leaves out rows that some unique index holds already, and nothing else."""

    @abstractmethod
    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """An INSERT that overwrites the row with the same `key`."""

    def reading_latest(self, query: Select[Any]) -> Select[Any]:
        """The query, made to read what is committed now and not an old snapshot, in a transaction not ours."""
        return query

    def fetch_rows(
        self, conn: Connection, query: Select[Any], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        """The rows of a query that may have many, in any order."""
        return conn.execute(query, dict(parameters)).fetchall()

    def insert_rows(self, conn: Connection, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert jobs, leaving out those whose id or identity is held already. Serves any driver."""
        sql, order = compiled_sql(self._insert_statement(columns), conn.dialect)
        conn.exec_driver_sql(sql, list(driver_rows(order, columns, rows)))

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _insert_statement(self, columns: tuple[str, ...]) -> Insert:
        return self.ignoring_conflicts(jobs).values({column: bindparam(column) for column in columns})

    def update_rows(
        self,
        conn: Connection,
        define: RowUpdate,
        names: tuple[str, ...],
        rows: Sequence[tuple[Any, ...]],
    ) -> list[bool]:
        """Run one guarded update per row, in the connection's transaction. Returns, for each, whether its guard held.

        Args:
            conn: in a transaction.
            define: the statement, defined once for every way of running it. Module-level: it is a cache key.
            names: the names of the row's values; the first is the job's id.
            rows: the values.
        """
        sql, order = compiled_sql(self._row_statement(define, names), conn.dialect)
        return [conn.exec_driver_sql(sql, row).rowcount == 1 for row in driver_rows(order, names, rows)]

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _row_statement(self, define: RowUpdate, names: tuple[str, ...]) -> Update:
        # The prefix keeps a value's name apart from the column's: SQLAlchemy reserves those in an UPDATE.
        def value(name: str) -> ColumnElement[Any]:
            return bindparam(name, type_=jobs.c[name.removeprefix("_")].type)

        return define(jobs.c.id == value(names[0]), value)
