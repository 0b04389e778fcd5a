"""The floor on SQLite, with the standard library's driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.floor import OWNER, QUEUE, Claimed, Row

_SCHEMA = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    priority TEXT NOT NULL,
    payload TEXT NOT NULL,
    rank INTEGER NOT NULL,
    run_at INTEGER,
    lease_until INTEGER,
    lease_owner TEXT,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    finished_at INTEGER
);
CREATE INDEX jobs_ready ON jobs (queue, rank) WHERE state = 'ready';
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
"""
_INSERT = f"INSERT INTO jobs ({', '.join(Row._fields)}) VALUES ({', '.join('?' * len(Row._fields))})"
# One writer at a time, so nothing has to be locked; by rowid, which spares a search in the primary key's index.
_CLAIM = """
UPDATE jobs SET state = 'running', lease_until = ?, lease_owner = ?, attempts = attempts + 1
WHERE rowid IN (SELECT rowid FROM jobs WHERE queue = ? AND state = 'ready' ORDER BY rank LIMIT ?)
RETURNING id, kind, payload, attempts
"""
_SETTLE = """
UPDATE jobs SET state = 'succeeded', lease_until = NULL, lease_owner = NULL, finished_at = ?
WHERE id IN ({ids}) AND state = 'running' AND lease_owner = ?
"""


class SQLiteFloor:
    """One file in WAL mode; synchronous=FULL flushes it at every commit."""

    has_bulk_load: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def create(self) -> None:
        """See `Floor`."""
        self._connection.executescript(_SCHEMA)

    def clear(self) -> None:
        """See `Floor`."""
        self._connection.execute("DELETE FROM jobs")

    def insert(self, rows: Sequence[Row]) -> None:
        """A prepared INSERT for each row of the transaction: there is no round trip to save."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_INSERT, [(str(row.id), *row[1:]) for row in rows])
        self._connection.execute("COMMIT")

    def bulk_load(self, rows: Sequence[Row]) -> None:
        """SQLite has nothing faster."""
        raise NotImplementedError

    def claim(self, limit: int, lease_until: int) -> Sequence[Claimed]:
        """UPDATE ... RETURNING; a single statement is a transaction of its own."""
        rows = self._connection.execute(_CLAIM, (lease_until, OWNER, QUEUE, limit))
        return [Claimed._make(row) for row in rows]

    def settle(self, claimed: Sequence[Claimed], finished_at: int) -> int:
        """One UPDATE ... IN (...) for the whole batch."""
        statement = _SETTLE.format(ids=", ".join("?" * len(claimed)))
        return self._connection.execute(statement, (finished_at, *(job.id for job in claimed), OWNER)).rowcount

    def close(self) -> None:
        """See `Floor`."""
        self._connection.close()
