"""Group commit: enqueues that happen at the same time in one process share transactions.

Each caller is answered only after the commit that holds its jobs. Whoever finds nobody at work leads: it takes
all that waits, commits it, and goes on until nothing waits. While it commits, the next group gathers, so a group
is as large as the load makes it, and a lone caller waits for nobody.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sqlalchemy import exc

from fencepost.errors import ConfigurationError, FencepostError, StoreUnavailable
from fencepost.job import EnqueueResult, NewJob
from fencepost.store import Store
from fencepost.store.batches import ENQUEUE_BATCH

__all__ = ["Enqueuer"]


class _Entry:
    __slots__ = ("future", "jobs")

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.future: Future[list[EnqueueResult]] = Future()


class Enqueuer:
    """Enqueues through group commit, for threads and for event loops.

    Args:
        store: where.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reset()
        _enqueuers.add(self)

    def _reset(self) -> None:
        # Also after a fork: the parent's leader and its thread do not exist in the child.
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()
        self._is_led = False
        self._thread: ThreadPoolExecutor | None = None

    def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs; returns after their commit."""
        entry = _Entry(jobs)
        if self._join(entry):
            self._lead(until=entry)
        return entry.future.result()

    async def aenqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs from an event loop, which does not wait on the database."""
        entry = _Entry(jobs)
        if self._join(entry):
            self._hand_over()
        # Shielded: a caller that is cancelled does not take back what others' commit may store at this moment.
        return await asyncio.shield(asyncio.wrap_future(entry.future))

    def _join(self, entry: _Entry) -> bool:
        """Add an entry. Returns whether the caller has to lead."""
        with self._lock:
            self._waiting.append(entry)
            leads, self._is_led = not self._is_led, True
            return leads

    def _hand_over(self) -> None:
        """Let a thread of ours lead."""
        try:
            with self._lock:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, thread_name_prefix="fencepost-enqueue")
            self._thread.submit(self._lead)
        except RuntimeError as error:  # no thread can be started, or the interpreter is shutting down
            with self._lock:
                stranded, self._waiting, self._is_led = self._waiting, deque(), False
            for entry in stranded:
                entry.future.set_exception(StoreUnavailable(f"No thread could be started to enqueue: {error}"))

    def _lead(self, until: _Entry | None = None) -> None:
        """Commit what waits. A caller leads until its own entry is done; a thread of ours takes over from there."""
        try:
            while group := self._next_group():
                self._commit(group)
                if until is not None and until.future.done():
                    break
        finally:
            with self._lock:
                self._is_led = bool(self._waiting)
                hands_over = self._is_led
            if hands_over:
                self._hand_over()

    def _next_group(self) -> list[_Entry]:
        with self._lock:
            group: list[_Entry] = []
            size = 0
            while self._waiting and (not group or size + len(self._waiting[0].jobs) <= ENQUEUE_BATCH):
                group.append(self._waiting.popleft())
                size += len(group[-1].jobs)
            return group

    def _commit(self, group: list[_Entry]) -> None:
        try:
            results = self._store.enqueue([job for entry in group for job in entry.jobs])
        except (FencepostError, exc.SQLAlchemyError) as error:
            if len(group) == 1 or isinstance(error, ConfigurationError):
                for entry in group:
                    entry.future.set_exception(error)
                return
            for entry in group:  # one that the database refuses must not fail the others
                self._commit([entry])
            return
        except BaseException as error:  # the leader was interrupted; the others were not
            for entry in group:
                entry.future.set_exception(
                    StoreUnavailable(f"The enqueue was interrupted by {type(error).__name__}. Enqueue again.")
                )
            raise
        start = 0
        for entry in group:
            entry.future.set_result(results[start : start + len(entry.jobs)])
            start += len(entry.jobs)


_enqueuers: weakref.WeakSet[Enqueuer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for enqueuer in list(_enqueuers):
        enqueuer._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
