"""The passes and their order: make the occurrences that are due, promote, wake for tokens, take back what was left."""

from __future__ import annotations

from fencepost.store import Store

__all__ = ["RECLAIM_SECONDS", "housekeep", "seconds_until_next"]

_BATCH = 500
_SCHEDULES = 100
_LONGEST_SECONDS = 0.5  # another process may enqueue something that is due before what we know of

RECLAIM_SECONDS = 1.0
"""How often expired leases are looked for: a small share of any sensible lease."""


def housekeep(store: Store, *, reclaims: bool) -> int:
    """Run the passes until each has nothing left to do, in short transactions.

    Args:
        store: where.
        reclaims: whether expired leases are looked for this time.

    Returns:
        How many jobs became ready (or final).
    """
    moved = 0
    while True:
        planned = store.materialise_due(batch=_SCHEDULES)
        moved += planned
        if planned < _SCHEDULES:
            break
    while True:
        promoted = store.promote_due(batch=_BATCH)
        moved += promoted
        if promoted < _BATCH:
            break
    moved += store.wake_due()
    if reclaims:
        moved += store.wake_freed()
    while reclaims:
        reclaimed = store.reclaim_expired(batch=_BATCH)
        moved += reclaimed
        if reclaimed < _BATCH:
            break
    return moved


def seconds_until_next(store: Store) -> float:
    """How long the planner may sleep: until the next job or schedule is due, and never long."""
    instants = [at for at in (store.next_wake(), store.next_fire_at()) if at is not None]
    if not instants:
        return _LONGEST_SECONDS
    return min(_LONGEST_SECONDS, max(0.0, (min(instants) - store.now()) / 1_000_000))
