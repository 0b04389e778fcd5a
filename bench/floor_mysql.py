"""The floor on MariaDB or MySQL, with PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pymysql

from bench.floor import OWNER, QUEUE, Claimed, Row

# There are no partial indexes: `rank` and `lease_until` are null outside the state that they belong to instead,
# so that a change of state touches no more of the indexes than it must.
_SCHEMA = """
CREATE TABLE jobs (
    id BINARY(16) PRIMARY KEY,
    kind VARCHAR(200) NOT NULL,
    queue VARCHAR(100) NOT NULL,
    state VARCHAR(16) NOT NULL,
    priority VARCHAR(16) NOT NULL,
    payload LONGTEXT NOT NULL,
    `rank` BIGINT,
    run_at BIGINT,
    lease_until BIGINT,
    lease_owner VARCHAR(200),
    attempts INT NOT NULL,
    max_attempts INT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    KEY jobs_ready (queue, `rank`),
    KEY jobs_lease (lease_until)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
"""
_INSERT = f"INSERT INTO jobs ({', '.join(f'`{name}`' for name in Row._fields)}) VALUES "
_VALUES = f"({', '.join(['%s'] * len(Row._fields))})"
# Looked for without locks, then locked by primary key. A locking read of the index itself has to pass over all the
# entries of jobs claimed a moment ago that the server has not purged yet, and costs several times as much.
_CANDIDATES = """
SELECT id FROM jobs FORCE INDEX (jobs_ready)
WHERE queue = %s AND `rank` IS NOT NULL ORDER BY `rank` LIMIT %s
"""
_LOCK = "SELECT id, kind, payload, attempts + 1 FROM jobs WHERE id IN %s AND state = 'ready' FOR UPDATE SKIP LOCKED"
_CLAIM = """
UPDATE jobs SET state = 'running', `rank` = NULL, lease_until = %s, lease_owner = %s, attempts = attempts + 1
WHERE id IN %s
"""
_SETTLE = """
UPDATE jobs SET state = 'succeeded', lease_until = NULL, lease_owner = NULL, finished_at = %s
WHERE id IN %s AND state = 'running' AND lease_owner = %s
"""


class MySQLFloor:
    """One connection in READ COMMITTED; the server's default settings, so every commit is flushed."""

    has_bulk_load: ClassVar[bool] = False

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def create(self) -> None:
        """See `Floor`."""
        self._cursor.execute(_SCHEMA)

    def clear(self) -> None:
        """See `Floor`."""
        self._cursor.execute("TRUNCATE TABLE jobs")

    def insert(self, rows: Sequence[Row]) -> None:
        """One INSERT with a long VALUES list."""
        statement = _INSERT + ", ".join([_VALUES] * len(rows))
        self._cursor.execute(statement, [value for row in rows for value in (row.id.bytes, *row[1:])])

    def bulk_load(self, rows: Sequence[Row]) -> None:
        """LOAD DATA LOCAL is off on most servers."""
        raise NotImplementedError

    def claim(self, limit: int, lease_until: int) -> Sequence[Claimed]:
        """Candidates, SELECT ... FOR UPDATE SKIP LOCKED, UPDATE; the last two in one transaction."""
        self._cursor.execute(_CANDIDATES, (QUEUE, limit))
        candidates = [row[0] for row in self._cursor.fetchall()]
        if not candidates:
            return []
        self._cursor.execute("START TRANSACTION")
        self._cursor.execute(_LOCK, (candidates,))
        claimed = [Claimed._make(row) for row in self._cursor.fetchall()]
        if claimed:
            self._cursor.execute(_CLAIM, (lease_until, OWNER, [job.id for job in claimed]))
        self._connection.commit()
        return claimed

    def settle(self, claimed: Sequence[Claimed], finished_at: int) -> int:
        """One UPDATE ... IN (...) for the whole batch. PyMySQL counts rows changed, and each row changes."""
        return int(self._cursor.execute(_SETTLE, (finished_at, [job.id for job in claimed], OWNER)))

    def close(self) -> None:
        """See `Floor`."""
        self._connection.close()
