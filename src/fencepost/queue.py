"""Plain data: what a queue can be told, and how it stands. Nothing here touches the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fencepost.job import Micros

__all__ = ["DEFAULT_WAIT_SECONDS", "KnownQueues", "Overflow", "QueueSettings"]

DEFAULT_WAIT_SECONDS = 30.0  # as for a request that somebody waits for


class Overflow(StrEnum):
    """What an enqueue does when its queue holds `max_pending` waiting jobs."""

    WAIT = "wait"
    """Wait until there is room, for a bounded time, then `QueueFull`: backpressure."""
    REJECT = "reject"
    """`QueueFull` at once, and nothing is stored."""
    SHED_LOWEST = "shed_lowest"
    """Store it, and skip the waiting job that would have been started last; that may be the new one."""
    SHED_OLDEST = "shed_oldest"
    """Store it, and skip the job that has waited longest."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue treats its jobs, in the store's units.

    Attributes:
        fair: whether tenants share it by weight (start-time fair queueing) instead of first come, first served.
        max_pending: how many jobs may wait in it at most; None: any number.
        overflow: what an enqueue beyond that does.
        wait: for how long one waits with `overflow="wait"`, in microseconds.
    """

    fair: bool = False
    max_pending: int | None = None
    overflow: Overflow = Overflow.REJECT
    wait: Micros = 30_000_000


class KnownQueues:
    """What this process knows of the queues' settings: what the database said last, and what the code declares.

    A queue that is not known here is treated as a plain one, which does no harm: jobs of a fair queue then come in by
    arrival. Replaced whole, so that threads read it without a lock.
    """

    def __init__(self) -> None:
        self.declared: dict[str, QueueSettings] = {}
        self.fair: frozenset[str] = frozenset()
        """The names of the fair ones."""
        self.bounded: Mapping[str, QueueSettings] = {}
        """Those with a bound, by name."""
        self._stored: Mapping[str, QueueSettings] = {}

    def declare(self, name: str, settings: QueueSettings) -> None:
        """The code says so; it holds in this process until the database has it."""
        self.declared = self.declared | {name: settings}
        self._settle()

    def learn(self, stored: Mapping[str, QueueSettings]) -> None:
        """The database said so."""
        self._stored = stored
        self._settle()

    def written(self, name: str, settings: QueueSettings) -> None:
        """These settings stand in the database now."""
        self.declared = {known: declared for known, declared in self.declared.items() if known != name}
        self.learn({**self._stored, name: settings})

    def _settle(self) -> None:
        known = {**self._stored, **self.declared}
        self.fair = frozenset(name for name, settings in known.items() if settings.fair)
        self.bounded = {name: settings for name, settings in known.items() if settings.max_pending is not None}
