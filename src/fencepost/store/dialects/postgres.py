"""PostgreSQL: SKIP LOCKED, RETURNING, arrays instead of long VALUES lists, and index plans that stay put."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Insert,
    String,
    Table,
    Text,
    Update,
    bindparam,
    create_engine,
    exc,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.types import TypeEngine

from fencepost.job import Micros
from fencepost.store.dialects import postgres_settings as settings
from fencepost.store.dialects.base import Dialect, Fault, Given, RowUpdate, compiled_sql
from fencepost.store.finding import Finding
from fencepost.store.tables import jobs

__all__ = ["Postgres"]

_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_CLOCK = text(f"SELECT {_NOW}")
# Without fresh statistics the planner answers a claim or a settlement of some hundred rows with a hash join over
# a sequential scan of the whole table, and a claim of one with a sort of all that is ready. These settings last for
# the transaction, so a pooler cannot leak them.
_PINNED = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin")
_CLOCK_AND_PIN = text(f"SELECT {_NOW}, " + ", ".join(f"set_config('{name}', 'off', true)" for name in _PINNED))
_BOUND_IDLENESS = text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)")
_PLACE = "place"  # WITH ORDINALITY: counts from 1
_MIGRATION_LOCK = 0x66656E6365  # "fence"

# A refused connection has no SQLSTATE, only the words of the server, or (the last line) of pgbouncer.
_REFUSED = re.compile(
    r"FATAL: .*(does not exist|authentication failed|no pg_hba\.conf entry|permission denied"
    r"|no such (database|user)|unsupported startup parameter)"
)

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

    def facts(self, conn: Connection, *, is_thorough: bool) -> dict[str, str]:
        """Settings as this session sees them."""
        return settings.facts(conn)

    def judge(self, facts: Mapping[str, str], *, payload_bytes: int) -> list[Finding]:
        """Version, isolation, encoding, and whether a commit reaches the disk."""
        return settings.judge(facts)

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
            if _REFUSED.search(str(error.orig)):
                return Fault.PERMANENT
            return Fault.TRANSIENT if isinstance(error, exc.OperationalError) else Fault.PERMANENT
        return Fault.TRANSIENT if state in _TRANSIENT_STATES or state.startswith("08") else Fault.PERMANENT

    def lock_migrations(self, conn: Connection) -> None:
        """A transaction-level advisory lock: poolers keep it with the transaction.

        Not on a connection beside it: those who wait for the lock would use up a small pool, and its holder, who
        needs one more, would wait for them.
        """
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})

    @contextmanager
    def bounding_idleness(self, conn: Connection, seconds: float) -> Iterator[None]:
        """idle_in_transaction_session_timeout, for this transaction: poolers cannot leak it."""
        conn.execute(_BOUND_IDLENESS, {"limit": f"{max(1, round(seconds * 1000))}ms"})
        yield

    def ignoring_conflicts(self, table: Table) -> Insert:
        """INSERT ... ON CONFLICT DO NOTHING."""
        return insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """INSERT ... ON CONFLICT (key) DO UPDATE."""
        return insert(table).values(dict(values)).on_conflict_do_update(index_elements=[key], set_=dict(values))

    def insert_rows(self, conn: Connection, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        """One INSERT ... SELECT FROM unnest(arrays) of the columns that differ, whatever the number of rows."""
        if conn.dialect.driver != "psycopg":  # an application's own connection may use another driver
            conn.execute(self._insert_statement(columns), [dict(zip(columns, row, strict=True)) for row in rows])
            return
        given = Given(columns, rows)
        sql, _ = compiled_sql(self._unnest_insert(columns, given.varying), conn.dialect)
        conn.exec_driver_sql(sql, _parameters(given))

    @lru_cache(maxsize=256)  # noqa: B019 - dialects live as long as the program
    def _unnest_insert(self, columns: tuple[str, ...], varying: tuple[str, ...]) -> Insert:
        source = _unnest(varying)
        return self.ignoring_conflicts(jobs).from_select(list(columns), select(*(source(c) for c in columns)))

    def update_rows(
        self, conn: Connection, define: RowUpdate, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> list[bool]:
        """One UPDATE ... FROM unnest(arrays) ... RETURNING the places of the rows whose guard held.

        Places and not ids: of two attempts of one job in a group only the later one's guard can hold.
        """
        given = Given(names, rows)
        sql, _ = compiled_sql(self._unnest_update(define, names[0], given.varying), conn.dialect)
        held = {row[0] for row in conn.exec_driver_sql(sql, _parameters(given))}
        return [place in held for place in range(1, len(rows) + 1)]

    @lru_cache(maxsize=256)  # noqa: B019 - dialects live as long as the program
    def _unnest_update(self, define: RowUpdate, id_name: str, varying: tuple[str, ...]) -> Update:
        source = _unnest(varying)
        return define(jobs.c.id == source(id_name), source).returning(source(_PLACE))


def _unnest(varying: Sequence[str]) -> Callable[[str], ColumnElement[Any]]:
    """Access to the values of `varying` as columns of unnest(arrays), and to all other names as parameters."""
    arrays = [bindparam(name, type_=ARRAY(_element(name))) for name in varying]
    table = func.unnest(*arrays).table_valued(*varying, with_ordinality=_PLACE, name="given").render_derived()
    own = {*varying, _PLACE}
    return lambda name: table.c[name] if name in own else bindparam(name, type_=_element(name))


def _element(name: str) -> TypeEngine[Any]:
    column = jobs.c[name.removeprefix("_")]
    # A cast to VARCHAR(n) cuts what is longer; an assignment from TEXT refuses it.
    return Text() if isinstance(column.type, String) and column is not jobs.c.id else column.type


def _parameters(given: Given) -> dict[str, Any]:
    return given.shared | {name: list(values) for name, values in zip(given.varying, given.columns, strict=True)}
