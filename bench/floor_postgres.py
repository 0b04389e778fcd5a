"""The floor on PostgreSQL, with psycopg 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg

from bench.floor import OWNER, QUEUE, Claimed, Row

_SCHEMA = """
CREATE TABLE jobs (
    id uuid PRIMARY KEY,
    kind text NOT NULL,
    queue text NOT NULL,
    state text NOT NULL,
    priority text NOT NULL,
    payload text NOT NULL,
    rank bigint NOT NULL,
    run_at bigint,
    lease_until bigint,
    lease_owner text,
    attempts int NOT NULL,
    max_attempts int NOT NULL,
    created_at bigint NOT NULL,
    finished_at bigint
);
CREATE INDEX jobs_ready ON jobs (queue, rank) WHERE state = 'ready';
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
"""
# What the rows of a batch share travels once, what differs as arrays: half as fast again as an array a column, and
# four times as fast as a VALUES list.
_INSERT = """
INSERT INTO jobs (id, kind, queue, state, priority, payload, rank, attempts, max_attempts, created_at)
SELECT id, %s, %s, %s, %s, payload, rank, %s, %s, %s
FROM unnest(%s::uuid[], %s::text[], %s::bigint[]) AS row (id, payload, rank)
"""
_COPY = f"COPY jobs ({', '.join(Row._fields)}) FROM STDIN"
# = ANY (ARRAY (...)) instead of IN (...): without fresh statistics, IN may become a hash join over the whole table.
_CLAIM = """
UPDATE jobs SET state = 'running', lease_until = %s, lease_owner = %s, attempts = attempts + 1
WHERE id = ANY (ARRAY (
    SELECT id FROM jobs WHERE queue = %s AND state = 'ready' ORDER BY rank LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, kind, payload, attempts
"""
_SETTLE = """
UPDATE jobs SET state = 'succeeded', lease_until = NULL, lease_owner = NULL, finished_at = %s
WHERE id = ANY (%s) AND state = 'running' AND lease_owner = %s
"""


class PostgresFloor:
    """One connection in autocommit; the server's default settings, so every commit is flushed."""

    has_bulk_load: ClassVar[bool] = True

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def create(self) -> None:
        """See `Floor`."""
        self._cursor.execute(_SCHEMA)

    def clear(self) -> None:
        """See `Floor`."""
        self._cursor.execute("TRUNCATE jobs")

    def insert(self, rows: Sequence[Row]) -> None:
        """One INSERT ... SELECT FROM unnest(arrays), which psycopg prepares after some uses."""
        shared = rows[0]
        self._cursor.execute(
            _INSERT,
            (
                *(shared.kind, shared.queue, shared.state, shared.priority),
                *(shared.attempts, shared.max_attempts, shared.created_at),
                *([row.id for row in rows], [row.payload for row in rows], [row.rank for row in rows]),
            ),
        )

    def bulk_load(self, rows: Sequence[Row]) -> None:
        """COPY: no ON CONFLICT and no RETURNING, so a batch whose acknowledgement was lost cannot be repeated."""
        with self._cursor.copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)

    def claim(self, limit: int, lease_until: int) -> Sequence[Claimed]:
        """One statement: pick, lock, update, return."""
        rows = self._cursor.execute(_CLAIM, (lease_until, OWNER, QUEUE, limit))
        return [Claimed._make(row) for row in rows]

    def settle(self, claimed: Sequence[Claimed], finished_at: int) -> int:
        """One UPDATE ... = ANY (array) for the whole batch."""
        return self._cursor.execute(_SETTLE, (finished_at, [job.id for job in claimed], OWNER)).rowcount

    def close(self) -> None:
        """See `Floor`."""
        self._connection.close()
