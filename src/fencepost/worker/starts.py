"""Fixed starts in a worker: claimed a little ahead, an attempt waits here for its instant."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Mapping, Sequence

from fencepost.job import Claim, Micros
from fencepost.planning.fixed_start import outcome_of_miss
from fencepost.planning.rank import EARLY_CLAIM
from fencepost.store import Store
from fencepost.worker.execution import Execution
from fencepost.worker.executors import Executor
from fencepost.worker.outcomes import not_started
from fencepost.worker.threads import WorkerThread

__all__ = ["Starts", "is_early", "is_far"]

_PROMPT_SECONDS = 0.005  # of a question on a network that is well
_MOST_QUESTIONS = 4


def is_early(claim: Claim) -> bool:
    """Whether a claim came before its job may start."""
    return claim.start is not None and claim.start.at > claim.claimed_at


def is_far(claim: Claim) -> bool:
    """Whether a claim came so early that its start is not to be awaited in a worker."""
    return claim.start is not None and claim.start.at - claim.claimed_at > EARLY_CLAIM


class Starts:
    """Holds attempts until their instants and starts them then. They take slots, and their leases are renewed.

    The database's clock is read for each batch and followed with the monotonic one from there, so that no step of the
    host's clock moves a start. What it said was true at some instant before its answer came, and is taken as true of
    that instant: a slow answer makes a start late, by its time at most, and never early. So a slow one is asked again.

    Args:
        store: whose clock it is.
        executors: by the handlers' `executor`.
    """

    def __init__(self, store: Store, executors: Mapping[str, Executor]) -> None:
        self._store = store
        self._executors = executors
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Execution]] = []
        self._numbers = itertools.count()

    def count(self, *, in_processes: bool) -> int:
        """How many wait here that run in processes of their own, or of the others."""
        with self._changed:
            found = sum(entry[2].handler.executor == "process" for entry in self._waiting)
            return found if in_processes else len(self._waiting) - found

    def hold(self, executions: Sequence[Execution]) -> None:
        """Hold these until their instants.

        Raises:
            StoreUnavailable: the clock could not be read; nothing is held.
        """
        at_now, now = self._read_clock()
        with self._changed:
            for execution in executions:
                execution.on_stop = self._drop
                start = execution.claim.start
                assert start is not None, "only fixed starts are held"
                instant = at_now + (start.at - now) / 1_000_000
                heapq.heappush(self._waiting, (instant, next(self._numbers), execution))
            self._changed.notify()
        for execution in executions:
            if execution.stop_reason is not None:  # since before it waited here
                self._drop(execution)

    def _read_clock(self) -> tuple[float, Micros]:
        """A monotonic instant, and what the database's clock says then, or a little more."""
        best: tuple[float, float, Micros] | None = None
        for _ in range(_MOST_QUESTIONS):
            asked = time.monotonic()
            now = self._store.now()
            answered = time.monotonic()
            if best is None or answered - asked < best[0]:
                best = answered - asked, answered, now
            if best[0] <= _PROMPT_SECONDS:
                break
        assert best is not None
        return best[1:]

    def _drop(self, execution: Execution) -> None:
        """Let go of one that is to stop: a slot and a lease are not kept for what will not start."""
        with self._changed:
            left = [entry for entry in self._waiting if entry[2] is not execution]
            if len(left) == len(self._waiting):
                return  # it has started, and its executor sees to it
            heapq.heapify(left)
            self._waiting = left
            self._changed.notify()
        execution.finish(not_started(execution))

    def run(self, thread: WorkerThread) -> None:
        """The thread's body."""
        while not thread.stopping.is_set():
            with self._changed:
                pause = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if pause is None or pause > 0:
                    self._changed.wait(pause)
                    continue
                instant, _, execution = heapq.heappop(self._waiting)
            self._start(execution, instant)

    def stop(self) -> None:
        """Give back what waits, for another worker to start in time."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
            self._changed.notify()
        for _, _, execution in waiting:
            execution.finish(not_started(execution))

    def _start(self, execution: Execution, instant: float) -> None:
        start = execution.claim.start
        assert start is not None
        now: Micros = start.at + round((time.monotonic() - instant) * 1_000_000)
        missed = outcome_of_miss(execution.claim, now)  # a process that was frozen while it waited
        if missed is not None:
            execution.finish(missed)
            return
        self._executors[execution.handler.executor].start([execution])
