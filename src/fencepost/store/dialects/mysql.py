"""MariaDB (10.6+) and MySQL (8.0.16+): SKIP LOCKED, but neither RETURNING on UPDATE nor partial indexes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Insert, Select, Table, Update, bindparam, create_engine, exc, text
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.engine import URL, Connection, Engine

from fencepost.errors import StoreUnavailable
from fencepost.job import Micros
from fencepost.store.dialects import mysql_settings as settings
from fencepost.store.dialects.base import Dialect, Fault, RowUpdate, compiled_sql, driver_rows
from fencepost.store.finding import Finding
from fencepost.store.tables import jobs

__all__ = ["MySQL"]

# NOW() would pass through the session's time zone, where one hour of autumn stands for two.
_CLOCK = text("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
_SET_WAIT_TIMEOUT = text("SET SESSION wait_timeout = :limit")
_RESET_WAIT_TIMEOUT = text("SET SESSION wait_timeout = DEFAULT")
_LOCK_SECONDS, _LOCK_TRIES = 60, 10
_SILENCE_SECONDS = 300

_TRANSIENT_CODES = frozenset(
    {
        1040,  # too many connections
        1053,  # server shutdown in progress
        1205,  # lock wait timeout
        1213,  # deadlock
        1290,  # --read-only: a replica that is being promoted
        1317,  # query interrupted
        1836,  # read-only mode
        1927,  # connection was killed
        2002,
        2003,  # cannot connect
        2006,
        2013,  # server has gone away; lost connection
        2014,  # commands out of sync: the connection is unusable
        4031,  # disconnected for inactivity
    }
)


class MySQL(Dialect):
    """PyMySQL. READ COMMITTED keeps InnoDB from locking the gaps between rows, the source of most deadlocks."""

    name = "mysql"
    driver = "mysql+pymysql"
    drivers = ("pymysql",)
    extra = "mysql"
    probes_in_recursion: ClassVar[bool] = False  # only above a constant; and loose scans depend on fresh statistics

    def create_engine(self, url: URL, *, pool_size: int, synchronous: str, busy_timeout: float) -> Engine:
        """An engine with strict READ COMMITTED connections in utf8mb4."""
        return create_engine(
            url.set(drivername=self.driver),
            pool_size=pool_size,
            max_overflow=-1,
            # Every transaction of ours is ended where it began; the pool's own ROLLBACK would be a round trip more.
            pool_reset_on_return=None,
            isolation_level="READ COMMITTED",
            connect_args={
                "charset": "utf8mb4",
                "connect_timeout": 10,
                # A server that is silent but not gone. Longer than our statements and their waits for locks take.
                "read_timeout": _SILENCE_SECONDS,
                "write_timeout": _SILENCE_SECONDS,
                # Lenient modes cut what does not fit; a cut payload would be a lost one.
                "init_command": "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
            },
        )

    def adopt_engine(self, engine: Engine) -> Engine:
        """The same pool, with READ COMMITTED on the connections that the store borrows."""
        return engine.execution_options(isolation_level="READ COMMITTED")

    def facts(self, conn: Connection, *, is_thorough: bool) -> dict[str, str]:
        """Variables as this session sees them, and how the jobs table is kept."""
        return settings.facts(conn)

    def judge(self, facts: Mapping[str, str], *, payload_bytes: int) -> list[Finding]:
        """Version, isolation, character set, packet size, engine, and whether a commit reaches the disk."""
        return settings.judge(facts, payload_bytes=payload_bytes)

    def now(self, conn: Connection) -> Micros:
        """UTC_TIMESTAMP(6)."""
        return int(conn.execute(_CLOCK).scalar_one())

    def classify(self, error: exc.DBAPIError) -> Fault:
        """By error number; PyMySQL's bare InterfaceError(0) is a connection that was closed."""
        if error.connection_invalidated:
            return Fault.TRANSIENT
        arguments = getattr(error.orig, "args", ())
        code = arguments[0] if arguments else None
        if isinstance(error, exc.InterfaceError) and code == 0:
            return Fault.TRANSIENT
        return Fault.TRANSIENT if code in _TRANSIENT_CODES else Fault.PERMANENT

    @contextmanager
    def migrating(self, engine: Engine) -> Iterator[None]:
        """A named lock for this database, held by a connection: DDL commits, so no row lock would last."""
        with engine.connect() as conn:
            take = text("SELECT GET_LOCK(CONCAT('fencepost:', DATABASE()), :seconds)")
            if not any(conn.execute(take, {"seconds": _LOCK_SECONDS}).scalar() == 1 for _ in range(_LOCK_TRIES)):
                raise StoreUnavailable(
                    f"Another process has been migrating this database for {_LOCK_SECONDS * _LOCK_TRIES} s. "
                    "Look for it with SHOW PROCESSLIST, then migrate again."
                )
            try:
                yield
            finally:
                conn.execute(text("SELECT RELEASE_LOCK(CONCAT('fencepost:', DATABASE()))"))

    @contextmanager
    def bounding_idleness(self, conn: Connection, seconds: float) -> Iterator[None]:
        """wait_timeout, which ends silent connections and with them their transactions; given back at the end.

        MariaDB has a limit for transactions alone, MySQL has not.
        """
        conn.execute(_SET_WAIT_TIMEOUT, {"limit": max(1, math.ceil(seconds))})
        try:
            yield
        finally:
            # On a connection that broke this fails too, and what broke it is what the caller is to hear.
            with suppress(exc.SQLAlchemyError):
                conn.execute(_RESET_WAIT_TIMEOUT)

    def ignoring_conflicts(self, table: Table) -> Insert:
        """INSERT ... ON DUPLICATE KEY UPDATE of nothing; INSERT IGNORE would swallow every other error too."""
        key = next(iter(table.primary_key.columns))
        return insert(table).on_duplicate_key_update({key.name: table.c[key.name]})

    def upsert(self, table: Table, values: Mapping[str, Any], *, key: str) -> Insert:
        """INSERT ... ON DUPLICATE KEY UPDATE."""
        return insert(table).values(dict(values)).on_duplicate_key_update(dict(values))

    def reading_latest(self, query: Select[Any]) -> Select[Any]:
        """A locking read: under REPEATABLE READ a plain one would not see who took an identity meanwhile."""
        return query.with_for_update(read=True)

    def update_rows(
        self, conn: Connection, define: RowUpdate, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> list[bool]:
        """One UPDATE ... WHERE id IN (...) for the rows that share all other values, which most do."""
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            groups[row[1:]].append(place)
        sql, order = compiled_sql(self._row_statement(define, names), conn.dialect)
        held = [True] * len(rows)
        for shared, places in groups.items():
            if len(places) > 1:
                savepoint = conn.begin_nested()
                parameters = dict(zip(names[1:], shared, strict=True))
                parameters["ids"] = [rows[place][0] for place in places]
                if conn.execute(self._group_statement(define, names), parameters).rowcount == len(places):
                    savepoint.commit()
                    continue
                savepoint.rollback()
            for place in places:
                (row,) = driver_rows(order, names, [rows[place]])
                held[place] = conn.exec_driver_sql(sql, row).rowcount == 1
        return held

    @lru_cache(maxsize=64)  # noqa: B019 - dialects live as long as the program
    def _group_statement(self, define: RowUpdate, names: tuple[str, ...]) -> Update:
        def value(name: str) -> ColumnElement[Any]:
            return bindparam(name, type_=jobs.c[name.removeprefix("_")].type)

        return define(jobs.c.id.in_(bindparam("ids", expanding=True)), value)
