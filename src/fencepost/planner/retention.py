"""The retention pass: walks along the final jobs, a bounded batch at a time, and deletes what the rules do not keep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fencepost.job import Micros, State
from fencepost.planning.retention import Final, Rules, Tally, newest_that_may_go, next_batch
from fencepost.store import Store

__all__ = ["RetentionPass", "Walk"]

_REST_SECONDS = 60.0
_SHARE = 10  # of the time between two beginnings of a walk, at most one part in so many is spent walking
_FIRST_BATCH = 200
_BEFORE_ALL_IDS = "00000000-0000-0000-0000-000000000000"
_LATEST: Micros = 2**62


class Walk:
    """Once along the final jobs, from the newest that may have to go to the oldest.

    Each step reads a batch without any lock and deletes what goes of it in a short transaction. Batches are smaller
    where a step took long. A walk that is not finished may be dropped: the next one begins at its own start, and what
    was deleted is gone.

    Args:
        rules: what is kept.
        now: the database's clock, from which ages count.
        spares_last_success: whether the newest successful occurrence of each schedule stays: a live occurrence of it
            asks for it (`ctx.previous_success`).
        monotonic: the process's own clock.
    """

    def __init__(
        self,
        rules: Rules,
        now: Micros,
        *,
        spares_last_success: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        start = newest_that_may_go(rules, now)
        self.is_over = start is None
        self._place = (start or 0, _BEFORE_ALL_IDS)
        self._tally = Tally(rules, now)
        self._spares = spares_last_success
        self._newest_success: dict[str, Micros | None] = {}
        self._monotonic = monotonic
        self._batch = _FIRST_BATCH

    def step(self, store: Store) -> int:
        """Read and judge one batch. Returns how many were deleted."""
        began = self._monotonic()
        found = store.final_jobs(self._place, batch=self._batch)
        # What ended while this walk goes on is the next one's business, so a place never comes back.
        gone = [job for job in found if self._tally.goes(job) and not self._is_spared(store, job)]
        deleted = store.delete_final([job.id for job in gone], found[0].finished_at) if gone else 0
        if len(found) < self._batch:
            self.is_over = True
        else:
            self._place = (found[-1].finished_at, found[-1].id)
            self._batch = next_batch(self._batch, self._monotonic() - began)
        return deleted

    def _is_spared(self, store: Store, job: Final) -> bool:
        if not self._spares or job.schedule is None or job.state != State.SUCCEEDED:
            return False
        if job.schedule not in self._newest_success:
            self._newest_success[job.schedule] = store.previous_success(job.schedule, _LATEST)
        return self._newest_success[job.schedule] == job.scheduled_for


class RetentionPass:
    """Runs walks by the stored rules, for a leader: a step at a time, and a rest after each walk.

    Args:
        monotonic: the process's own clock.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._walk: Walk | None = None
        self._began_at = 0.0
        self._next_at = -math.inf

    @property
    def seconds_until_due(self) -> float:
        """How long until the next step."""
        return max(0.0, self._next_at - self._monotonic())

    def run(self, store: Store) -> int:
        """One step, if it is time for one. Returns how many jobs were deleted."""
        started = self._monotonic()
        if started < self._next_at:
            return 0
        if self._walk is None:
            self._walk, self._began_at = Walk(store.retention_rules(), store.now(), monotonic=self._monotonic), started
        deleted = 0 if self._walk.is_over else self._walk.step(store)
        ended = self._monotonic()
        if self._walk.is_over:
            self._walk = None
            self._next_at = ended + max(_REST_SECONDS, _SHARE * (ended - self._began_at))
        else:
            self._next_at = ended + (
                ended - started
            )  # as long a pause as it took: others get half of the time at least
        return deleted
