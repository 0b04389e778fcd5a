"""The passes and their order: make the occurrences that are due, promote, wake for tokens, take back what was left."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import exc

from fencepost.job import Micros
from fencepost.store import Pass, PassReport, Store
from fencepost.store.batches import PASS_BATCH, SCHEDULE_BATCH

__all__ = [
    "LOOK_SECONDS",
    "RECLAIM_SECONDS",
    "PassLog",
    "housekeep",
    "promote",
    "seconds_until_next",
    "seconds_until_wake",
]

LOOK_SECONDS = 0.5
"""How long a planner sleeps at most: another process may enqueue something that is due before what we know of."""
_MOST_TURN_PASSES = 10  # then the other passes have their turn too
TURNS_SECONDS = 0.05
"""How long it sleeps while jobs wait for their turn: a window of 1,000 lasts as long at 20,000 jobs a second."""

RECLAIM_SECONDS = 1.0
"""How often expired leases are looked for: a small share of any sensible lease."""


class PassLog:
    """When each pass last succeeded under one lead, and how much it moved; see `Store.record_passes`.

    Args:
        monotonic: the process's own clock.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._passes: dict[str, tuple[float, int]] = {}

    def succeeded(self, name: Pass, moved: int) -> None:
        """A pass came to its end."""
        _, before = self._passes.get(name, (0.0, 0))
        self._passes[name] = (self._monotonic(), before + moved)

    def reports(self) -> list[PassReport]:
        """Of every pass that has succeeded so far."""
        now = self._monotonic()
        return [PassReport(name, _micros(now - at), moved) for name, (at, moved) in self._passes.items()]


def _micros(seconds: float) -> Micros:
    return round(seconds * 1_000_000)


def housekeep(
    store: Store, *, reclaims: bool, before_each: Callable[[], None] = lambda: None, log: PassLog | None = None
) -> int:
    """Run the passes until each has nothing left to do, in short transactions.

    A pass that the database refuses (a damaged row, a missing right) does not keep the others from their work; its
    error is raised at the end. One that cannot be asked at all ends them at once.

    Args:
        store: where; a leader's is fenced.
        reclaims: whether expired leases are looked for this time.
        before_each: called before each transaction: a leader renews its lead there, and raises if it has none.
        log: told of each pass that came to its end.

    Returns:
        How many jobs became ready (or final).

    Raises:
        StoreUnavailable: the database could not be asked.
        LeadershipLost: the store's lead does not hold any more.
    """
    passes: list[tuple[Pass, Callable[[], int], int]] = [
        (Pass.MATERIALISE, lambda: store.materialise_due(batch=SCHEDULE_BATCH), SCHEDULE_BATCH),
        (Pass.PROMOTE, lambda: store.promote_due(batch=PASS_BATCH), PASS_BATCH),
        (Pass.TOKENS, store.wake_due, 0),
        (Pass.TURNS, lambda: _give_turns(store, before_each), 0),
    ]
    if reclaims:
        store.learn_queues()
        passes += [
            (Pass.PERMITS, store.wake_freed, 0),
            (Pass.RECLAIM, lambda: store.reclaim_expired(batch=PASS_BATCH), PASS_BATCH),
        ]
    total = 0
    refused: exc.SQLAlchemyError | None = None
    for name, run, batch in passes:
        try:
            moved = _until_done(run, batch, before_each)
        except exc.SQLAlchemyError as error:
            refused = refused or error
        else:
            total += moved
            if log is not None:
                log.succeeded(name, moved)
    if refused is not None:
        raise refused
    return total


def promote(store: Store) -> int:
    """The promotion pass alone. Returns how many jobs became ready."""
    return _until_done(lambda: store.promote_due(batch=PASS_BATCH), PASS_BATCH, lambda: None)


def _give_turns(store: Store, before_each: Callable[[], None]) -> int:
    """Go on giving turns in fair queues where the promotion left some waiting."""
    total = 0
    for _ in range(_MOST_TURN_PASSES):
        if not store.turns_wait:
            break
        before_each()
        given = store.give_turns(batch=PASS_BATCH)
        total += given
        if not given:
            break
    return total


def _until_done(run: Callable[[], int], batch: int, before_each: Callable[[], None]) -> int:
    """Repeat a pass while it fills its batches; with a batch of 0, once."""
    total = 0
    while True:
        before_each()
        moved = run()
        total += moved
        if not batch or moved < batch:
            return total


def seconds_until_wake(store: Store) -> float:
    """How long until the next job is due: negative if one is overdue, infinite if none waits for an instant."""
    wake_at = store.next_wake()
    return float("inf") if wake_at is None else (wake_at - store.now()) / 1_000_000


def seconds_until_next(store: Store) -> float:
    """How long a leader may sleep: until the next job or schedule is due, and never long."""
    instants = [at for at in (store.next_wake(), store.next_plan_at()) if at is not None]
    longest = TURNS_SECONDS if store.turns_wait else LOOK_SECONDS
    if not instants:
        return longest
    return min(longest, max(0.0, (min(instants) - store.now()) / 1_000_000))
