"""The heartbeat and the watchdog: each on a thread of its own, so that no handler can hold them up."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from fencepost.context import lease_lost_text
from fencepost.job import Micros
from fencepost.labels import encode_labels
from fencepost.store import Store
from fencepost.worker.execution import Board, Execution, Stop
from fencepost.worker.executors import Executor
from fencepost.worker.outcomes import timed_out
from fencepost.worker.threads import WorkerThread

__all__ = ["HeartbeatLoop", "Watchdog", "request_stop"]

logger = logging.getLogger("fencepost.worker")

_WATCH_SECONDS = 0.05


def request_stop(execution: Execution, reason: Stop, executors: Mapping[str, Executor]) -> None:
    """Tell an attempt to stop, once."""
    if execution.stop_reason is None:
        execution.stop_reason = reason
        if execution.on_stop is not None:
            execution.on_stop(execution)
        executors[execution.handler.executor].stop(execution)


class HeartbeatLoop:
    """Renews the leases this worker knows that it holds, and learns which attempts are to stop.

    Args:
        store: with a connection of its own.
        owner: the worker's name.
        board: the attempts.
        executors: to stop attempts.
        lease_seconds: how long a renewed lease lasts; a third of it passes between heartbeats.
        description: the worker's row, for people.
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        board: Board,
        executors: Mapping[str, Executor],
        *,
        lease_seconds: float,
        description: dict[str, Any],
    ) -> None:
        self._store = store
        self._owner = owner
        self._board = board
        self._executors = executors
        self._lease_seconds = lease_seconds
        self._description = description
        self._renewed_at = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether this worker has renewed its leases lately. When it was frozen, or cut off, it has not."""
        return time.monotonic() - self._renewed_at < self._lease_seconds * 2 / 3

    def run(self, thread: WorkerThread) -> None:
        """The thread's body."""
        interval = self._lease_seconds / 3
        thread.persist(self._store.forget_silent_workers, "clearing up")
        while True:
            started = time.monotonic()
            thread.persist(self._beat, "heartbeat")
            if thread.stopping.wait(max(0.0, interval - (time.monotonic() - started))):
                break
        thread.persist(lambda: self._store.forget_worker(self._owner), "leaving")

    def _beat(self) -> bool:
        held = self._board.held()
        asked_at = time.monotonic()
        beat = self._store.heartbeat(
            self._owner, [execution.claim.lease for execution in held], lease=self._lease_seconds
        )
        self._renewed_at = asked_at
        still_held = set(self._board.held())
        leases = sorted(execution.claim.lease for execution in held)
        newest = {lease.job_id: lease.token for lease in leases}  # a job may have been claimed here once more
        for execution in held:
            job_id, _, token = execution.claim.lease
            if job_id in beat.renewed and token == newest[job_id]:
                if job_id in beat.cancelled:
                    request_stop(execution, Stop.CANCEL, self._executors)
            elif execution in still_held and not execution.decided and execution.stop_reason is None:
                logger.warning("%s", lease_lost_text(execution.claim))
                request_stop(execution, Stop.LEASE_LOST, self._executors)
        self._store.record_worker(self._description | {"running": self._board.slots_taken})
        return True

    @staticmethod
    def describe(
        owner: str,
        host: str,
        pid: int,
        concurrency: int,
        queues: frozenset[str] | None,
        kinds: frozenset[str],
        lease: Micros,
        now: Micros,
        labels: Mapping[str, str],
    ) -> dict[str, Any]:
        """The values of a worker's row."""
        return {
            "owner": owner,
            "host": host,
            "pid": pid,
            "concurrency": concurrency,
            "queues": None if queues is None else json.dumps(sorted(queues)),
            "kinds": json.dumps(sorted(kinds)),
            "running": 0,
            "lease": lease,
            "started_at": now,
            "labels": encode_labels(labels),
        }


class Watchdog:
    """Gives attempts up whose timeout has passed.

    Args:
        board: the attempts.
        executors: to stop them.
    """

    def __init__(self, board: Board, executors: Mapping[str, Executor]) -> None:
        self._board = board
        self._executors = executors

    def run(self, thread: WorkerThread) -> None:
        """The thread's body. Sleeps while no attempt has a timeout."""
        while not thread.stopping.is_set():
            self._board.timed.wait()
            for execution in self._board.overdue():
                outcome = timed_out(execution)
                if execution.decide(outcome):
                    kept = (
                        ""
                        if execution.handler.executor != "thread"
                        else (" Its thread cannot be stopped and keeps its slot until it returns.")
                    )
                    logger.warning("Job %s (%s): %s%s", execution.claim.id, execution.claim.kind, outcome.error, kept)
                    request_stop(execution, Stop.TIMEOUT, self._executors)
            thread.stopping.wait(_WATCH_SECONDS)
