"""The planner's thread: leads, or stands by for the lead.

    stands by ──the lead is free: takes it──▶ leads ──passes, renewal, passes, ...──┐
        ▲                                      ▲ └──────────────────────────────────┘
        └── superseded, or not renewed in time ┴── a clean stop gives it up

Whoever leads runs the passes. Promotion is besides what any planner may do, as any worker may claim: it is guarded by
the row's own instant. One that stands by promotes what its own process has just enqueued, which the leader may see half
a second later, and what is overdue because nobody leads at this moment.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import exc

from fencepost.errors import LeadershipLost, StoreUnavailable
from fencepost.planner.leadership import Leadership
from fencepost.planner.passes import (
    LOOK_SECONDS,
    RECLAIM_SECONDS,
    PassLog,
    housekeep,
    promote,
    seconds_until_next,
    seconds_until_wake,
)
from fencepost.planner.retention import RetentionPass
from fencepost.store import Lead, Pass, Store
from fencepost.worker.threads import WorkerThread

__all__ = ["Planner"]

T = TypeVar("T")

_SHORTEST_PAUSE_SECONDS = 0.005
_REUNION_SECONDS = 6.0  # the longest pause between two tries of a heartbeat, and a second
_OVERDUE_SECONDS = 1.0  # a leader that lives promotes within half a second
_RECORD_SECONDS = 5.0


class Planner:
    """The body of the planner's thread.

    Args:
        store: where.
        holder: the name under which it leads: the worker's.
        lease_seconds: of the lead.
        is_fresh: whether this worker's own heartbeat has been heard lately.
        on_moved: called when jobs became ready.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        lease_seconds: float,
        is_fresh: Callable[[], bool],
        on_moved: Callable[[], None],
    ) -> None:
        self._store = store
        self._leadership = Leadership(store, holder, lease_seconds=lease_seconds)
        self._is_fresh = is_fresh
        self._on_moved = on_moved
        self._wake = threading.Event()
        self._reclaims_from = 0.0
        self._reclaimed_at = -math.inf
        self._looked_at = -math.inf
        self._own_until = -math.inf
        self._begin_lead()

    def _begin_lead(self) -> None:
        self._epoch = 0
        self._log = PassLog()
        self._retention = RetentionPass()
        self._recorded_at = -math.inf

    def wake(self) -> None:
        """Something was enqueued in this process, or the thread is to stop."""
        self._wake.set()

    def run(self, thread: WorkerThread) -> None:
        """The thread's body."""
        self._wake.set()  # whatever was enqueued in this process before
        while not thread.stopping.is_set():
            if self._wake.is_set():
                self._own_until = time.monotonic() + LOOK_SECONDS
                self._wake.clear()
            pause = thread.persist(self._turn, "planning")
            if pause is not None:
                # What is due and did not move is in another planner's hands at this moment.
                self._wake.wait(max(pause, _SHORTEST_PAUSE_SECONDS))
        thread.persist(self._leadership.release, "leaving the lead")

    def housekeep_for_itself(self) -> int:
        """Run the passes once whoever leads: what a worker does that ends when nothing is left.

        Every pass is guarded by the state of what it changes, so that it may run beside a leader's.
        """
        return self._minding_absences(lambda: housekeep(self._store, reclaims=self._may_reclaim()))

    def _turn(self) -> float:
        """Lead or stand by once. Returns the seconds until the next turn."""
        return self._minding_absences(self._lead_or_stand_by)

    def _lead_or_stand_by(self) -> float:
        if self._leadership.lead is None and time.monotonic() < self._looked_at + LOOK_SECONDS:
            return self._stand_by()
        fenced = self._leadership.attend()
        self._looked_at = time.monotonic()
        lead = self._leadership.lead
        if fenced is None or lead is None:
            return self._stand_by()
        try:
            return self._run_passes(fenced, lead)
        except LeadershipLost as lost:
            if self._leadership.lead == lead:  # and it has not been taken anew
                self._leadership.step_down(str(lost))
            self._looked_at = -math.inf
            return 0.0

    def _run_passes(self, fenced: Store, lead: Lead) -> float:
        if lead.epoch != self._epoch:
            self._begin_lead()
            self._epoch = lead.epoch
        reclaims = time.monotonic() - self._reclaimed_at >= RECLAIM_SECONDS and self._may_reclaim()
        try:
            moved = housekeep(fenced, reclaims=reclaims, before_each=self._leadership.insist, log=self._log)
            if reclaims:
                self._reclaimed_at = time.monotonic()
            if moved:
                self._on_moved()
            if not self._retention.seconds_until_due:
                self._leadership.insist()
                self._log.succeeded(Pass.RETENTION, self._retention.run(fenced))
        except exc.SQLAlchemyError:
            self._record(fenced, lead)  # of those that did succeed
            raise
        self._record(fenced, lead)
        return min(
            seconds_until_next(self._store), self._retention.seconds_until_due, self._leadership.seconds_to_renewal
        )

    def _record(self, fenced: Store, lead: Lead) -> None:
        if time.monotonic() - self._recorded_at >= _RECORD_SECONDS:
            fenced.record_passes(lead, self._log.reports())
            self._recorded_at = time.monotonic()

    def _stand_by(self) -> float:
        ahead = seconds_until_wake(self._store)
        is_own = time.monotonic() < self._own_until
        if ahead <= (0.0 if is_own else -_OVERDUE_SECONDS):
            if promote(self._store):
                self._on_moved()
            ahead = seconds_until_wake(self._store)
        return max(0.0, min(LOOK_SECONDS, ahead if is_own else LOOK_SECONDS))

    def _may_reclaim(self) -> bool:
        """Whether expired leases may be taken back.

        While this process is frozen, its own leases run out, and while the database is away, those of all living
        workers. Afterwards their heartbeats get the first word, and only who stays silent loses its jobs.
        """
        return time.monotonic() >= self._reclaims_from and self._is_fresh()

    def _minding_absences(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
        except (StoreUnavailable, exc.SQLAlchemyError):
            self._reclaims_from = math.inf
            raise
        if self._reclaims_from == math.inf:
            self._reclaims_from = time.monotonic() + _REUNION_SECONDS
        return answer
