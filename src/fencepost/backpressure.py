"""Enqueues into bounded queues: each queue's jobs in transactions of their own, waiting for room where that is asked.

They stand apart from the group commit, so that a full queue neither delays nor fails the enqueues of others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from fencepost.errors import QueueFull
from fencepost.job import EnqueueResult, NewJob
from fencepost.queue import QueueSettings
from fencepost.store import Store
from fencepost.store.batches import ENQUEUE_BATCH

__all__ = ["bounded_steps", "enqueue_within_bounds"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25


def bounded_steps(
    store: Store, jobs: Sequence[NewJob], bounded: Mapping[str, QueueSettings]
) -> Generator[float, None, list[EnqueueResult]]:
    """Store jobs, some of them of bounded queues. Yields seconds to pause before it goes on, and returns the results.

    A generator, so that a thread sleeps in the pauses and an event loop does something else.

    Raises:
        QueueFull: some were not stored; it says how many were.
    """
    by_queue, others = _by_queue(jobs, bounded)
    results: dict[str, EnqueueResult] = {}

    def keep(stored: Sequence[NewJob], answers: Sequence[EnqueueResult]) -> None:
        results.update({job.id: answer for job, answer in zip(stored, answers, strict=True)})

    for queue, waiting in by_queue.items():
        started_at, pause = time.monotonic(), _FIRST_PAUSE
        for start in range(0, len(waiting), ENQUEUE_BATCH):
            left = waiting[start : start + ENQUEUE_BATCH]
            while True:
                try:
                    placed = store.enqueue_bounded(queue, left)
                except QueueFull as error:
                    raise _told(error, len(results)) from None
                part, left = left[: len(placed.results)], left[len(placed.results) :]
                keep(part, placed.results)
                if not left:
                    break
                if part:  # somebody makes room: the time to wait for it begins anew
                    started_at, pause = time.monotonic(), _FIRST_PAUSE
                waited = time.monotonic() - started_at
                if waited >= placed.wait / 1_000_000:
                    refused = len(waiting) - start - ENQUEUE_BATCH
                    refused = len(left) + max(0, refused)
                    raise QueueFull(queue, placed.max_pending, refused=refused, stored=len(results), waited=waited)
                yield min(pause, max(0.0, placed.wait / 1_000_000 - waited))
                pause = min(_LONGEST_PAUSE, pause * 1.5)
    if others:
        keep(others, store.enqueue(others))
    return [results[job.id] for job in jobs]


def enqueue_within_bounds(
    store: Store, conn: Any, jobs: Sequence[NewJob], bounded: Mapping[str, QueueSettings]
) -> list[EnqueueResult]:
    """Store jobs, some of them of bounded queues, in the application's own transaction.

    Raises:
        QueueFull: what the transaction has inserted before stays in it; the application commits it or rolls it back.
    """
    by_queue, others = _by_queue(jobs, bounded)
    results: dict[str, EnqueueResult] = {}
    for queue, own in by_queue.items():
        try:
            answers = store.enqueue_bounded_within(conn, queue, own)
        except QueueFull as error:
            raise _told(error, len(results)) from None
        results.update({job.id: answer for job, answer in zip(own, answers, strict=True)})
    if others:
        answers = store.enqueue_within(conn, others)
        results.update({job.id: answer for job, answer in zip(others, answers, strict=True)})
    return [results[job.id] for job in jobs]


def _told(error: QueueFull, stored: int) -> QueueFull:
    return QueueFull(error.queue, error.max_pending, refused=error.refused, stored=stored)


def _by_queue(
    jobs: Sequence[NewJob], bounded: Mapping[str, QueueSettings]
) -> tuple[dict[str, list[NewJob]], list[NewJob]]:
    by_queue: dict[str, list[NewJob]] = defaultdict(list)
    others: list[NewJob] = []
    for job in jobs:
        # What waits for other jobs does not wait in the queue yet, as little as what is not due.
        is_bounded = job.options.queue in bounded and not job.options.after
        (by_queue[job.options.queue] if is_bounded else others).append(job)
    return by_queue, others
