"""The settler: writes outcomes in groups, one transaction a group, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from sqlalchemy import exc

from fencepost.context import lease_lost_text
from fencepost.errors import StoreUnavailable
from fencepost.job import Reason
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from fencepost.worker.execution import Board, Execution, Stop
from fencepost.worker.threads import PASSING, WorkerThread

__all__ = ["Settler"]

logger = logging.getLogger("fencepost.worker")

_GROUP = 1000
_GROUP_BYTES = 4 * 1024 * 1024
_REFUSAL_CHARS = 1000


class Settler:
    """Takes outcomes from any thread; writes what has gathered while it wrote the last group.

    Args:
        store: where.
        on_returned: told when jobs were given back, which are due now or at an instant that nobody knows of yet.
    """

    def __init__(self, store: Store, on_returned: Callable[[], None]) -> None:
        self._store = store
        self._on_returned = on_returned
        self._outcomes: deque[tuple[Execution, Outcome]] = deque()
        self._wake = threading.Event()
        self._is_repetition = False
        self.settled = 0
        """How many settlements held."""
        self.succeeded = 0
        self.failed = 0
        """How many of them say that the attempt failed, whether or not the job is tried again."""
        self.lost = 0
        """How many came too late."""

    def put(self, execution: Execution, outcome: Outcome) -> None:
        """Take an outcome. Costs no more than an append."""
        self._outcomes.append((execution, outcome))
        self.wake()

    def wake(self) -> None:
        """There is something to write."""
        if not self._wake.is_set():
            self._wake.set()

    def run(self, thread: WorkerThread, board: Board) -> None:
        """The thread's body: until it is asked to stop and everything is written."""
        while True:
            self._wake.wait()
            self._wake.clear()
            while group := self._next_group():
                self._is_repetition = False
                if thread.persist(lambda group=group: self._write(group, board), "settling") is None:  # type: ignore[misc]
                    left = len(group) + len(self._outcomes)
                    logger.error("%d settlements were not written before the worker stopped.", left)
                    return
            reports = board.take_progress()
            if reports:
                thread.persist(lambda reports=reports: self._store.report_progress(reports) or True, "progress")  # type: ignore[misc,func-returns-value]
            if thread.stopping.is_set() and not self._outcomes:
                return

    def _next_group(self) -> list[tuple[Execution, Outcome]]:
        group: list[tuple[Execution, Outcome]] = []
        size = 0
        while self._outcomes and len(group) < _GROUP and size < _GROUP_BYTES:
            group.append(self._outcomes.popleft())
            size += len(group[-1][1].result or "")
        return group

    def _write(self, group: list[tuple[Execution, Outcome]], board: Board) -> bool:
        """Write a group; what was written is taken out of it, so that a repetition goes on with the rest."""
        try:
            self._settle(group, board)
        except (*PASSING, exc.StatementError) as error:  # StatementError: a value that no driver takes
            self._store.now()  # raises where the database is away: then the whole group waits for it
            if len(group) == 1:
                self._settle_alone(group, board, error)
                return True
            # It answers, so it refuses one of them. That one must not keep the others waiting.
            while group:
                single = [group.pop(0)]
                try:
                    self._write(single, board)
                finally:
                    group[:0] = single  # empty, unless it is still to be written
        return True

    def _settle(self, group: list[tuple[Execution, Outcome]], board: Board) -> None:
        settlements = [(execution.claim, outcome) for execution, outcome in group]
        is_repetition, self._is_repetition = self._is_repetition, True  # of this group, unless it is answered below
        held = self._store.settle(settlements, is_repetition=is_repetition)
        # What came back is ready at once, and so is who waited for what is free now.
        if any(
            outcome.is_returning or execution.claim.gives_back or execution.claim.has_successors
            for execution, outcome in group
        ):
            self._on_returned()
        board.settled([execution for execution, _ in group])
        self.settled += sum(held)
        for (execution, outcome), answer in zip(group, held, strict=True):
            if answer:
                if outcome.verb is Verb.COMPLETE:
                    self.succeeded += 1
                elif outcome.verb in (Verb.RETRY, Verb.ABANDON):
                    self._report_failure(execution, outcome)
                continue
            self.lost += 1
            if execution.stop_reason is not Stop.LEASE_LOST:  # that was said when it was found out
                logger.warning("%s", lease_lost_text(execution.claim))
        group.clear()

    def _settle_alone(self, group: list[tuple[Execution, Outcome]], board: Board, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            try:
                self._settle(group, board)  # it may have come back between the two questions
            except StoreUnavailable as again:
                self._store.now()  # MySQL closes the connection on what is too large, so this is a refusal
                error = again
            else:
                return
        self._settle_otherwise(group, board, error)

    def _settle_otherwise(self, group: list[tuple[Execution, Outcome]], board: Board, error: Exception) -> None:
        """The database takes everything but this outcome's own values (a result beyond its packet size, say)."""
        ((execution, outcome),) = group
        what = "result" if outcome.result is not None else f"outcome ({outcome.verb})"
        text = f"The {what} was refused by the database: {type(error).__name__}: {error}"[:_REFUSAL_CHARS]
        reason = Reason.UNENCODABLE_RESULT if outcome.result is not None else Reason.ABANDONED
        logger.error("Job %s (%s): %s", execution.claim.id, execution.claim.kind, text)
        group[:] = [(execution, Outcome(Verb.ABANDON, error=text, reason=reason))]
        self._settle(group, board)

    def _report_failure(self, execution: Execution, outcome: Outcome) -> None:
        self.failed += 1
        claim = execution.claim
        fields = {"job_id": claim.id, "kind": claim.kind, "queue": claim.queue, "attempt": claim.attempt}
        error = (outcome.error or "").strip()
        if outcome.verb is Verb.ABANDON or claim.attempt >= claim.max_attempts:
            text = "Job %s (%s) failed for good at attempt %d of %d: %s"
            logger.error(text, claim.id, claim.kind, claim.attempt, claim.max_attempts, error, extra=fields)
        elif outcome.reason is not Reason.TIMEOUT:  # the watchdog has said that
            text = "Job %s (%s): attempt %d of %d failed and will be repeated: %s"
            last_line = error.rsplit("\n", 1)[-1]
            logger.warning(text, claim.id, claim.kind, claim.attempt, claim.max_attempts, last_line, extra=fields)
