"""Leadership by a process's own clock: when to renew, and when to step down without having asked anybody."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Term"]


@dataclass(frozen=True, slots=True)
class Term:
    """The time for which a leader may believe that it leads, on its monotonic clock.

    It counts from before the request was sent: the database's lease began later, so it ends later too.

    Attributes:
        asked_at: seconds on the monotonic clock when the lead was asked for.
        lease: seconds.
    """

    asked_at: float
    lease: float

    @property
    def renews_at(self) -> float:
        """When to renew: after a third, so that two tries may fail."""
        return self.asked_at + self.lease / 3

    @property
    def ends_at(self) -> float:
        """When to step down, unless it was renewed."""
        return self.asked_at + self.lease
