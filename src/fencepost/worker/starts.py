"""Fixed starts in a worker: claimed a little ahead, an attempt waits here for its instant."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fencepost.job import Claim, Micros
from fencepost.planning.fixed_start import StartFigures, is_kept, outcome_of_miss
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from fencepost.worker.execution import Execution
from fencepost.worker.executors import Executor
from fencepost.worker.threads import WorkerThread

__all__ = ["Starts", "is_early"]


def is_early(claim: Claim) -> bool:
    """Whether a claim came before its job may start."""
    return claim.start is not None and claim.start.at > claim.claimed_at


class Starts:
    """Holds attempts until their instants and starts them then. They take slots, and their leases are renewed.

    The database's clock is read once for each batch and followed with the monotonic one from there, so that neither a
    step of the host's clock nor a slow answer moves a start by more than the time of that one question.

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
        self._stopped = False
        self.figures = StartFigures()
        """What became of those that waited here."""

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, executions: Sequence[Execution]) -> None:
        """Hold these until their instants.

        Raises:
            StoreUnavailable: the clock could not be read; nothing is held.
        """
        asked = time.monotonic()
        now = self._store.now()
        at_now = (asked + time.monotonic()) / 2
        with self._changed:
            for execution in executions:
                start = execution.claim.start
                assert start is not None, "only fixed starts are held"
                instant = at_now + (start.at - now) / 1_000_000
                heapq.heappush(self._waiting, (instant, next(self._numbers), execution))
            self._changed.notify()

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
            execution.finish(Outcome(Verb.RELEASE))

    def _start(self, execution: Execution, instant: float) -> None:
        start = execution.claim.start
        assert start is not None
        now: Micros = start.at + round((time.monotonic() - instant) * 1_000_000)
        missed = outcome_of_miss(execution.claim, now)  # a process that was frozen while it waited
        if missed is not None:
            self.figures = _counted(self.figures, missed)
            execution.finish(missed)
            return
        if is_kept(start, now):
            self.figures = replace(self.figures, kept=self.figures.kept + 1)
        else:
            self.figures = replace(self.figures, late=self.figures.late + 1)
        self._executors[execution.handler.executor].start([execution])


def _counted(figures: StartFigures, missed: Outcome) -> StartFigures:
    if missed.verb is Verb.SKIP:
        return replace(figures, skipped=figures.skipped + 1)
    return replace(figures, failed=figures.failed + 1)
