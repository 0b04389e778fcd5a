"""The list of workers, for people. Nothing is decided by it: a worker that is not listed keeps its leases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection

from fencepost.job import Micros
from fencepost.labels import LabelSet, label_set
from fencepost.store.dialects import Dialect
from fencepost.store.rows import instant
from fencepost.store.tables import workers

__all__ = ["WorkerRecord", "forget_silent_workers", "forget_worker", "list_workers", "record_worker"]


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process as it last reported itself. `queues=None`: all of them; `lease` in seconds."""

    owner: str
    host: str
    pid: int
    concurrency: int
    queues: tuple[str, ...] | None
    kinds: tuple[str, ...]
    running: int
    lease: float
    started_at: datetime | None
    seen_at: datetime | None
    labels: dict[str, str]

    def is_alive(self, now: datetime) -> bool:
        """Whether it has reported within its lease, three of its heartbeats: one that has not holds no lease either."""
        return self.seen_at is not None and now - self.seen_at <= timedelta(seconds=self.lease)

    def serves(self, queue: str, kind: str, needs: LabelSet | None) -> bool:
        """Whether it would claim jobs of this kind in this queue that need these labels (None: unreadable ones)."""
        return kind in self.kinds and self.serves_queue(queue) and self.has(needs)

    def serves_queue(self, queue: str) -> bool:
        """Whether it claims from this queue."""
        return self.queues is None or queue in self.queues

    def has(self, needs: LabelSet | None) -> bool:
        """Whether it has all of these labels."""
        return needs is not None and needs <= self.labels.items()


def record_worker(dialect: Dialect, conn: Connection, values: dict[str, Any], seen_at: Micros) -> None:
    """Write a worker's row, or write it anew."""
    conn.execute(dialect.upsert(workers, values | {"seen_at": seen_at}, key="owner"))


def forget_worker(conn: Connection, owner: str) -> None:
    """Remove a worker that stopped."""
    conn.execute(delete(workers).where(workers.c.owner == owner))


def forget_silent_workers(conn: Connection, before: Micros) -> int:
    """Remove workers that have not reported since `before`: they were killed, and nobody else removes them."""
    return conn.execute(delete(workers).where(workers.c.seen_at < before)).rowcount


def list_workers(conn: Connection) -> list[WorkerRecord]:
    """All recorded workers, longest-running first."""
    return [
        WorkerRecord(
            owner=row.owner,
            host=row.host,
            pid=row.pid,
            concurrency=row.concurrency,
            queues=None if row.queues is None else tuple(json.loads(row.queues)),
            kinds=tuple(json.loads(row.kinds)),
            running=row.running,
            lease=row.lease / 1_000_000,
            started_at=instant(row.started_at),
            seen_at=instant(row.seen_at),
            labels=dict(label_set(row.labels) or ()),
        )
        for row in conn.execute(select(workers).order_by(workers.c.started_at))
    ]
