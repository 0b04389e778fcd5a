"""`app.queue(...)` and `app.queues`: what people say of queues, checked, and what they do to them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from fencepost.errors import ConfigurationError
from fencepost.options import check_name
from fencepost.planning.fairness import HEAVIEST, LIGHTEST
from fencepost.queue import DEFAULT_WAIT_SECONDS, Overflow, QueueSettings
from fencepost.store import QueueCounts, Store
from fencepost.store.tables import NAME_CHARS, QUEUE_CHARS
from fencepost.timing import micros

if TYPE_CHECKING:
    from fencepost.app import App

__all__ = ["AskedQueue", "Queues", "build_settings"]

_MOST_PENDING = 1_000_000


class AskedQueue(TypedDict, total=False):
    """The keywords of `app.queue(...)`."""

    fair: bool
    max_pending: int | None
    overflow: Overflow | Literal["wait", "reject", "shed_lowest", "shed_oldest"]
    wait: float | timedelta


def build_settings(**asked: Unpack[AskedQueue]) -> QueueSettings:
    """Settings in the store's units.

    Raises:
        ConfigurationError: what cannot be, with what would be right.
    """
    unknown = sorted(asked.keys() - AskedQueue.__annotations__.keys())
    if unknown:
        known = ", ".join(sorted(AskedQueue.__annotations__))
        raise ConfigurationError(f"A queue has no setting {unknown[0]!r}. There are: {known}")
    most = asked.get("max_pending")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= _MOST_PENDING):
        raise ConfigurationError(f"max_pending is a whole number from 1 to {_MOST_PENDING:,}, or None; not {most!r}")
    try:
        overflow = Overflow(str(asked.get("overflow", Overflow.REJECT)))
    except ValueError:
        raise ConfigurationError(f"overflow is one of {', '.join(Overflow)}; not {asked.get('overflow')!r}") from None
    if most is None and "overflow" in asked:
        raise ConfigurationError("overflow says what happens beyond max_pending: give that too, max_pending=10_000")
    if "wait" in asked and overflow is not Overflow.WAIT:
        raise ConfigurationError("wait says for how long overflow='wait' waits: it needs that overflow")
    return QueueSettings(
        bool(asked.get("fair")), most, overflow, micros(asked.get("wait", DEFAULT_WAIT_SECONDS), "wait")
    )


class Queues:
    """`app.queues`: look at queues, and act on them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, QueueSettings] = {}

    @property
    def _store(self) -> Store:
        return self._app.store

    def declare(self, name: str, **asked: Unpack[AskedQueue]) -> QueueSettings:
        """Remember what the code declares; see `App.queue`."""
        name = check_name(name, "queue", QUEUE_CHARS)
        settings = build_settings(**asked)
        if self._declared.get(name, settings) != settings:
            raise ConfigurationError(f"The queue {name!r} is declared twice, with different settings")
        self._declared[name] = settings
        self._store.database.known_queues.declare(name, settings)
        return settings

    def sync(self) -> None:
        """Write the declared settings. A worker does this when it starts, and `app.migrate()`."""
        for name, settings in self._declared.items():
            if self._store.queue_settings(name) != settings:
                self._store.configure_queue(name, settings)
            else:
                self._store.database.known_queues.written(name, settings)

    def list(self) -> builtins.list[QueueCounts]:
        """Every queue that has live jobs, is paused, or has settings, by name."""
        return self._store.queue_counts()

    def get(self, name: str) -> QueueCounts:
        """One queue; one that nobody has used yet is empty and has no settings."""
        name = check_name(name, "queue", QUEUE_CHARS)
        return next((found for found in self.list() if found.name == name), QueueCounts(name, 0, 0, 0, 0, None))

    def set(self, name: str, **asked: Unpack[AskedQueue]) -> QueueSettings:
        """Give a queue settings at run time, all of them: what is left out gets its default. See `App.queue`.

        Other processes take them over within a second or so if they run a worker, and when they start otherwise; the
        bound of a queue that they know as bounded is always the database's. What the code declares is written again
        when a worker starts.

        Raises:
            ConfigurationError: what cannot be, with what would be right.
        """
        name = check_name(name, "queue", QUEUE_CHARS)
        settings = build_settings(**asked)
        self._store.configure_queue(name, settings)
        self._app._wake_workers()
        return settings

    def pause(self, name: str) -> None:
        """Let a queue's jobs wait: nothing in it is claimed until it is resumed. Running jobs end."""
        self._store.set_paused(check_name(name, "queue", QUEUE_CHARS), paused=True)

    def resume(self, name: str) -> None:
        """Let a paused queue's jobs be claimed again."""
        self._store.set_paused(check_name(name, "queue", QUEUE_CHARS), paused=False)
        self._app._wake_workers()

    def set_weight(self, queue: str, tenant: str, weight: float | None) -> None:
        """Give a tenant its weight in a fair queue, from the next turns on: at most 1,000 jobs of each kind have had
        theirs and are started by the old one.

        Args:
            queue: which.
            tenant: as in `using(tenant=...)`; "" stands for jobs without one.
            weight: from 0.01 to 100; a tenant of weight 2 has twice as many jobs started as one of weight 1, the
                default, while both have jobs waiting. None: the default again.

        Raises:
            ConfigurationError: a weight out of range.
        """
        if weight is not None and (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float))
            or not math.isfinite(weight)
            or not LIGHTEST <= weight <= HEAVIEST
        ):
            raise ConfigurationError(f"weight is a number from {LIGHTEST:g} to {HEAVIEST:g}, not {weight!r}")
        queue = check_name(queue, "queue", QUEUE_CHARS)
        tenant = check_name(tenant, "tenant", NAME_CHARS) if tenant else ""
        self._store.set_weight(queue, tenant, None if weight is None else float(weight))

    def weights(self, queue: str) -> Mapping[str, float]:
        """The weights that were set in a queue, by tenant; all others have 1."""
        return self._store.weights(check_name(queue, "queue", QUEUE_CHARS))
