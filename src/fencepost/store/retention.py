"""Retention: final jobs older than a cutoff go, in bounded batches (J10)."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select
from sqlalchemy.engine import Connection

from fencepost.job import Micros
from fencepost.store.tables import jobs

__all__ = ["prune_batch"]

# Served by the `finished` index. Only final rows have `finished_at`: a job scheduled for next year is not old.
_OLD = (
    select(jobs.c.id)
    .where(jobs.c.finished_at < bindparam("cutoff"))
    .order_by(jobs.c.finished_at)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
_DELETE = delete(jobs).where(jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.finished_at < bindparam("cutoff"))


def prune_batch(conn: Connection, cutoff: Micros, *, batch: int) -> int:
    """Delete up to `batch` jobs that were final before `cutoff`. Returns how many went."""
    ids = [row.id for row in conn.execute(_OLD, {"cutoff": cutoff, "batch": batch})]
    return conn.execute(_DELETE, {"ids": ids, "cutoff": cutoff}).rowcount if ids else 0
