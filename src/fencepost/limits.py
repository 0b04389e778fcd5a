"""`app.limits`: named buckets and semaphores, and what keys are held to, declared and changed at run time."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

from fencepost.errors import ConfigurationError
from fencepost.limit_options import MOST_AMOUNT, check_burst, check_rate, check_text, check_whole
from fencepost.store import Gate, Limit, Store
from fencepost.store.tables import KEY_CHARS

__all__ = ["Limits"]

_MOST_SLOTS = 10_000


class Limits:
    """`app.limits`: what limits jobs, on all queues and nodes of this database. A change holds from the next start on.

    Lowering a limit stops nobody who runs already. What is raised wakes those who wait at once.
    """

    def __init__(self, store: Store, on_woken: Callable[[], None]) -> None:
        self._store = store
        self._on_woken = on_woken
        self._known: dict[str, int] = {}

    def set_bucket(self, name: str, *, rate: float, burst: int = 1) -> None:
        """Create a token bucket, or change it: `resources={name: amount}` takes `amount` tokens for each start.

        Args:
            name: of at most 512 characters; buckets and semaphores share the names.
            rate: tokens a second, above 0.
            burst: how many it holds, at least 1; default 1. It begins full; changed, what was spent stays spent.

        Raises:
            ConfigurationError: a name or number that cannot be.
            StoreUnavailable: the database could not be asked.
        """
        check_text(name, "a bucket's name", KEY_CHARS)
        per_second = check_rate(rate)
        self._store.declare_bucket(Gate.RESOURCE, name, per_second, check_burst(burst, per_second))
        self._known[name] = burst
        self._on_woken()

    def set_semaphore(self, name: str, *, capacity: int) -> None:
        """Create a semaphore, or change it: running jobs with `resources={name: amount}` hold at most `capacity` of it.

        Args:
            name: of at most 512 characters; buckets and semaphores share the names.
            capacity: how much there is; 0 lets nobody start.

        Raises:
            ConfigurationError: a name or number that cannot be.
            StoreUnavailable: the database could not be asked.
        """
        check_text(name, "a semaphore's name", KEY_CHARS)
        self._store.declare_capacity(Gate.RESOURCE, name, check_whole(capacity, "capacity", 0, MOST_AMOUNT))
        self._known[name] = capacity
        self._on_woken()

    def set_rate(self, key: str, *, rate: float, burst: int = 1) -> None:
        """Hold a rate key to this, whatever its jobs say in `rate=`. Arguments and errors as for `set_bucket`."""
        check_text(key, "a rate's key", KEY_CHARS)
        per_second = check_rate(rate)
        self._store.declare_bucket(Gate.RATE, key, per_second, check_burst(burst, per_second))
        self._on_woken()

    def set_concurrency(self, key: str, *, slots: int) -> None:
        """Give a concurrency key so many slots, whatever its jobs say in `concurrency=`.

        Args:
            key: of at most 512 characters.
            slots: up to 10,000; 0 lets nobody start.

        Raises:
            ConfigurationError: a key or number that cannot be.
            StoreUnavailable: the database could not be asked.
        """
        check_text(key, "a concurrency key", KEY_CHARS)
        self._store.declare_capacity(Gate.CONCURRENCY, key, check_whole(slots, "slots", 0, _MOST_SLOTS))
        self._on_woken()

    def list(self) -> builtins.list[Limit]:
        """What is declared, by kind and name, with what is free and how many wait at this moment."""
        found = self._store.list_limits()
        self._known |= {one.name: _most(one) for one in found if one.kind in ("bucket", "semaphore")}
        return found

    def delete(self, name: str, *, kind: str = "resource") -> bool:
        """Remove what was declared.

        What jobs say of a rate or a concurrency key counts again. Who needs a resource that is gone waits until it is
        declared again.

        Args:
            name: or the key.
            kind: "resource" (a bucket or semaphore; the default), "rate" or "concurrency".

        Returns:
            Whether it was there.

        Raises:
            ConfigurationError: another kind.
            StoreUnavailable: the database could not be asked.
        """
        try:
            gate = Gate(kind)
        except ValueError:
            raise ConfigurationError(f"kind is one of {', '.join(sorted(Gate))}; not {kind!r}") from None
        if gate is Gate.RESOURCE:
            self._known.pop(name, None)
        return self._store.delete_limit(gate, name)

    def refuse_impossible(self, resources: Sequence[tuple[str, int]]) -> None:
        """Refuse amounts that are known never to be there; of what this process has not seen, nothing is known.

        Raises:
            ConfigurationError: an amount beyond the burst or capacity, as it stands in the database now.
        """
        if all(amount <= self._known.get(name, amount) for name, amount in resources):
            return
        self.list()  # it may have been raised elsewhere
        for name, amount in resources:
            most = self._known.get(name, amount)
            if amount > most > 0:  # at 0 somebody has stopped it for a while
                raise ConfigurationError(
                    f"A job that takes {amount:,} of {name!r} could never start: there are {most:,}. Ask for less, or "
                    "raise it with app.limits.set_bucket or set_semaphore."
                )


def _most(limit: Limit) -> int:
    return (limit.burst if limit.capacity is None else limit.capacity) or 0
