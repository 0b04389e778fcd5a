"""One attempt inside a worker, from its claim until its settlement is written; and the board of all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from fencepost.context import JobContext
from fencepost.job import Claim, Lease
from fencepost.planning.outcome import Outcome
from fencepost.registry import Handler
from fencepost.store import Store

__all__ = ["Board", "Execution", "Stop"]


class Stop(StrEnum):
    """Why an attempt should stop before its handler returns."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


class Execution:
    """One attempt. It holds a slot until its handler returned, and its lease until its settlement is written.

    The two differ: a timed-out handler on a thread is settled while it still runs, and keeps its slot; a finished
    one waits for the settler, and no longer needs a slot.
    """

    __slots__ = (
        *("_board", "claim", "decided", "discards_return", "gave_up_at", "handler", "has_begun", "on_stop"),
        *("stop_reason", "task"),
    )

    def __init__(self, claim: Claim, handler: Handler, board: Board) -> None:
        self.claim = claim
        self.handler = handler
        self.decided = False
        """Whether its outcome is fixed: what the handler does from here on changes nothing."""
        self.discards_return = False
        """Whether what the handler returns is lost, since it settled the job without a result."""
        self.has_begun = False
        """Whether its handler has been, or is about to be, called."""
        self.stop_reason: Stop | None = None
        self.on_stop: Callable[[Execution], None] | None = None
        """Told of a stop while it waits for its start."""
        self.task: Any = None
        """What an executor needs to stop it."""
        self.gave_up_at: float | None = None
        """The monotonic instant at which its timeout passes."""
        self._board = board

    def begin(self) -> bool:
        """Called by an executor before the handler starts. False: it should not start any more."""
        if self.stop_reason is not None:
            return False
        self.has_begun = True
        if self.claim.timeout_seconds is not None:
            self.gave_up_at = time.monotonic() + self.claim.timeout_seconds
            self._board.watch(self)
        return True

    def context(self, store: Store) -> JobContext:
        """What the handler is given."""
        return JobContext(self.claim, self.handler, store, self)

    def decide(self, outcome: Outcome) -> bool:
        """Fix the outcome and hand it to the settler, unless it is fixed already."""
        return self._board.decide(self, outcome)

    def finish(self, outcome: Outcome | None) -> None:
        """Called by an executor once, when the handler has returned. None: there is nothing to settle."""
        self._board.returned(self, outcome)

    # What a JobContext asks of it

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop."""
        return self.stop_reason is not None

    def report(self, fraction: float, note: str | None) -> None:
        """Keep the newest progress for the settler to write."""
        self._board.report(self, fraction, note)

    def settled(self, *, has_result: bool) -> None:
        """The handler has settled the job itself, in a transaction of its own, with a result or without."""
        self.decided = True
        self.discards_return = not has_result
        self._board.completed_by_handler(self)


class Board:
    """All attempts of this worker: which take a slot, which leases it holds, which have a timeout.

    The same job may stand here twice, when an earlier lease was lost.

    Args:
        on_decided: takes what the settler has to write.
        on_free: called when a slot became free.
        on_report: called when progress waits to be written.
    """

    def __init__(
        self,
        on_decided: Callable[[Execution, Outcome], None],
        on_free: Callable[[], None],
        on_report: Callable[[], None],
    ) -> None:
        self._lock = threading.Lock()
        self._running: set[Execution] = set()
        self._held: set[Execution] = set()
        self._timed: set[Execution] = set()
        self._progress: dict[Execution, tuple[Lease, float, str | None]] = {}
        self._on_decided = on_decided
        self._on_free = on_free
        self._on_report = on_report
        self.timed = threading.Event()
        """Set while some attempt has a timeout to watch."""
        self.self_settled = 0
        """How many attempts their handlers completed, in transactions of their own."""
        self.lost = 0
        """How many attempts ended without a settlement, because their lease was gone."""

    def add(self, executions: Sequence[Execution]) -> None:
        """Claimed: from here their leases are renewed."""
        with self._lock:
            self._running.update(executions)
            self._held.update(executions)

    def watch(self, execution: Execution) -> None:
        """Watch its timeout."""
        with self._lock:
            self._timed.add(execution)
        self.timed.set()

    def decide(self, execution: Execution, outcome: Outcome) -> bool:
        """Fix an outcome once: the timeout and the handler's return may race for it."""
        with self._lock:
            if execution.decided:
                return False
            execution.decided = True
        self._on_decided(execution, outcome)
        return True

    def report(self, execution: Execution, fraction: float, note: str | None) -> None:
        """Keep the newest progress of an attempt."""
        with self._lock:
            self._progress[execution] = (execution.claim.lease, fraction, note)
        self._on_report()

    def take_progress(self) -> list[tuple[Lease, float, str | None]]:
        """The progress to write since the last call."""
        if not self._progress:
            return []
        with self._lock:
            reports, self._progress = self._progress, {}
        return list(reports.values())

    def settled(self, executions: Sequence[Execution]) -> None:
        """Their leases are no longer ours."""
        with self._lock:
            self._let_go(executions)

    def completed_by_handler(self, execution: Execution) -> None:
        """Its handler settled it, in a transaction of its own."""
        with self._lock:
            self._let_go((execution,))
            self.self_settled += 1

    def returned(self, execution: Execution, outcome: Outcome | None) -> None:
        """Its handler returned: the slot is free. No outcome: its lease is gone, and there is nothing to settle."""
        with self._lock:
            is_first = not execution.decided
            if is_first:
                if outcome is None:
                    self._let_go((execution,))
                    self.lost += 1
                else:
                    execution.decided = True
            self._running.discard(execution)
            if execution.gave_up_at is not None:
                self._timed.discard(execution)
                if not self._timed:
                    self.timed.clear()
        if is_first and outcome is not None:
            self._on_decided(execution, outcome)
        self._on_free()

    def _let_go(self, executions: Sequence[Execution]) -> None:
        self._held.difference_update(executions)
        if self._progress:
            for execution in executions:
                self._progress.pop(execution, None)

    def running(self) -> list[Execution]:
        """The attempts whose handlers have not returned."""
        with self._lock:
            return list(self._running)

    def running_by(self, executor: str) -> int:
        """How many slots an executor's attempts take."""
        with self._lock:
            return sum(1 for execution in self._running if execution.handler.executor == executor)

    def overdue(self) -> list[Execution]:
        """Undecided attempts whose timeout has passed."""
        now = time.monotonic()
        with self._lock:
            return [
                execution
                for execution in self._timed
                if not execution.decided and execution.gave_up_at is not None and execution.gave_up_at <= now
            ]

    def held(self) -> list[Execution]:
        """The attempts whose leases are to be renewed."""
        with self._lock:
            return list(self._held)

    @property
    def slots_taken(self) -> int:
        """How many handlers run or are about to."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits to be settled."""
        return not self._running and not self._held
