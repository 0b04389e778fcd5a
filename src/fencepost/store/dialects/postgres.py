"""PostgreSQL: SKIP LOCKED, RETURNING, arrays instead of long VALUES lists, and index plans that stay put."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Insert,
    Table,
    Text,
    Update,
    bindparam,
    cast,
    create_engine,
    exc,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import URL, Connection, Engine

from fencepost.job import Micros
from fencepost.store.dialects.base import Dialect, Fault, RowUpdate, compiled_sql
from fencepost.store.tables import jobs

__all__ = ["Postgres"]

_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_CLOCK = text(f"SELECT {_NOW}")
# Without fresh statistics the planner answers a claim or a settlement of some hundred rows with a hash join over
# a sequential scan of the whole table. These settings last for the transaction, so a pooler cannot leak them.
_CLOCK_AND_PIN = text(
    f"SELECT {_NOW}, set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), "
    "set_config('enable_mergejoin', 'off', true)"
)
_MIGRATION_LOCK = 0x66656E6365  # "fence"

_TRANSIENT_STATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now: starting up or shutting down
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
        "25006",  # read_only_sql_transaction: a standby that is being promoted
        "53300",  # too_many_connections
    }
)


class Postgres(Dialect):
    """psycopg 3, blocking, without server-side prepared statements: it works behind a pooler as it is."""

    name = "postgresql"
    driver = "postgresql+psycopg"
    drivers = ("psycopg",)
    extra = "postgres"
    claims_in_one_statement: ClassVar[bool] = True

    def create_engine(self, url: URL, *, pool_size: int, synchronous: str, busy_timeout: float) -> Engine:
        """An engine with connections of READ COMMITTED isolation."""
        return create_engine(
            url.set(drivername=self.driver),
            pool_size=pool_size,
            max_overflow=-1,
            isolation_level="READ COMMITTED",
            # A pooler in transaction mode lands each transaction on another server connection, which knows
            # nothing of statements prepared before.
            connect_args={"prepare_threshold": None, "connect_timeout": 10, "application_name": "fencepost"},
        )

    def adopt_engine(self, engine: Engine) -> Engine:
        """The same pool, with READ COMMITTED on the connections that the store borrows."""
        return engine.execution_options(isolation_level="READ COMMITTED")

    def now(self, conn: Connection) -> Micros:
        """clock_timestamp(): the instant of the call, not of the transaction's start."""
        return int(conn.execute(_CLOCK).scalar_one())

    def now_and_pin(self, conn: Connection) -> Micros:
        """The clock and the planner's settings in one round trip."""
        return int(conn.execute(_CLOCK_AND_PIN).scalar_one())

    def classify(self, error: exc.DBAPIError) -> Fault:
        """By SQLSTATE; an operational error without one is a connection that broke."""
        if error.connection_invalidated:
            return Fault.TRANSIENT
        state = getattr(error.orig, "sqlstate", None)
        if state is None:
            return Fault.TRANSIENT if isinstance(error, exc.OperationalError) else Fault.PERMANENT
        return Fault.TRANSIENT if state in _TRANSIENT_STATES or state.startswith("08") else Fault.PERMANENT

    def lock_migrations(self, conn: Connection) -> None:
        """A transaction-level advisory lock: poolers keep it with the transaction."""
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})

    def ignoring_conflicts(self, table: Table) -> Insert:
        """INSERT ... ON CONFLICT DO NOTHING."""
        return insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """INSERT ... ON CONFLICT (key) DO UPDATE."""
        return insert(table).values(dict(values)).on_conflict_do_update(index_elements=[key], set_=dict(values))

    def insert_rows(self, conn: Connection, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        """One INSERT ... SELECT FROM unnest(arrays), whatever the number of rows."""
        if conn.dialect.driver != "psycopg":  # an application's own connection may use another driver
            conn.execute(self._insert_statement(columns), [dict(zip(columns, row, strict=True)) for row in rows])
            return
        sql, _ = compiled_sql(self._unnest_insert(columns), conn.dialect)
        conn.exec_driver_sql(sql, _as_arrays(columns, rows))

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _unnest_insert(self, columns: tuple[str, ...]) -> Insert:
        source = _unnest(columns)
        return self.ignoring_conflicts(jobs).from_select(list(columns), select(*(source(c) for c in columns)))

    def update_rows(
        self, conn: Connection, define: RowUpdate, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> list[bool]:
        """One UPDATE ... FROM unnest(arrays) ... RETURNING id: the ids that come back are those whose guard held."""
        sql, _ = compiled_sql(self._unnest_update(define, names), conn.dialect)
        held = {row[0] for row in conn.exec_driver_sql(sql, _as_arrays(names, rows))}
        return [row[0] in held for row in rows]

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _unnest_update(self, define: RowUpdate, names: tuple[str, ...]) -> Update:
        source = _unnest(names)
        statement = define(jobs.c.id == source(names[0]), source)
        return statement.returning(cast(jobs.c.id, Text))


def _unnest(names: Sequence[str]) -> Callable[[str], ColumnElement[Any]]:
    columns = [jobs.c[name.removeprefix("_")] for name in names]
    arrays = [bindparam(name, type_=ARRAY(column.type)) for name, column in zip(names, columns, strict=True)]
    table = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    return lambda name: table.c[name]


def _as_arrays(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
