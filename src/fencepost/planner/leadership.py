"""Leadership of one planner: takes the lead when it is free, renews it, and steps down in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fencepost.errors import LeadershipLost
from fencepost.planning.leading import Term
from fencepost.store import DEFAULT_LEADER_LEASE_SECONDS, Lead, Store

__all__ = ["Leadership"]

logger = logging.getLogger("fencepost.planner")


class Leadership:
    """What one planner knows of its own lead. Used by one thread.

    Args:
        store: where.
        holder: the planner's name, unique to it.
        lease_seconds: of the lead; default 5. A third of it passes between renewals.
        monotonic: the process's own clock.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        lease_seconds: float = DEFAULT_LEADER_LEASE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._fenced: Store | None = None
        self._term = Term(-lease_seconds, lease_seconds)
        self.lead: Lead | None = None
        """The lead as it was last taken or renewed; None: somebody else leads."""

    def attend(self) -> Store | None:
        """Take, renew or give up the lead, as it is time for.

        Returns:
            A store for the leader's writes, each of which is fenced; None: somebody else leads.

        Raises:
            StoreUnavailable: the database could not be asked. A lead that was held stays so until its term has ended.
        """
        asked_at = self._monotonic()
        if self.lead is not None:
            if asked_at < self._term.renews_at:
                return self._fenced
            if asked_at >= self._term.ends_at:
                self.step_down("it could not be renewed in time")
        found = self._store.lead(self._holder, lease=self._lease_seconds)
        if found is None:
            if self.lead is not None:
                self.step_down("another planner took it")
            return None
        if self.lead != found:
            if self.lead is not None:
                self.step_down("it ran out, and was taken anew")
            self.lead, self._fenced = found, self._store.fenced(found)
            logger.info("%s leads the planners, epoch %d.", self._holder, found.epoch)
        self._term = Term(asked_at, self._lease_seconds)
        return self._fenced

    def insist(self) -> None:
        """Between two transactions of a leader: renew if it is time.

        Raises:
            LeadershipLost: this is not the leader any more that it was.
            StoreUnavailable: the database could not be asked.
        """
        before = self.lead
        self.attend()
        if before is None or self.lead != before:
            raise LeadershipLost(f"{self._holder} does not lead any more.")

    def step_down(self, why: str) -> None:
        """Stop believing that this planner leads. Nothing is asked and nothing written."""
        if self.lead is not None:
            logger.warning("%s leads no longer (epoch %d): %s.", self._holder, self.lead.epoch, why)
        self.lead = self._fenced = None

    def release(self) -> bool:
        """Give the lead up so that another planner gets it at once. Returns whether it was still held."""
        lead, self.lead, self._fenced = self.lead, None, None
        return lead is not None and self._store.release_lead(lead)

    @property
    def seconds_to_renewal(self) -> float:
        """How long a leader may sleep."""
        return max(0.0, self._term.renews_at - self._monotonic())
