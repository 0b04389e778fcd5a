"""The passes and their order: make the occurrences that are due, promote, take back what was left behind."""

from __future__ import annotations

from fencepost.store import Store
from fencepost.store.batches import PASS_BATCH, SCHEDULE_BATCH

__all__ = ["RECLAIM_SECONDS", "housekeep", "seconds_until_next"]

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
        planned = store.materialise_due(batch=SCHEDULE_BATCH)
        moved += planned
        if planned < SCHEDULE_BATCH:
            break
    while True:
        promoted = store.promote_due(batch=PASS_BATCH)
        moved += promoted
        if promoted < PASS_BATCH:
            break
    if reclaims:
        moved += store.wake_freed()
    while reclaims:
        reclaimed = store.reclaim_expired(batch=PASS_BATCH)
        moved += reclaimed
        if reclaimed < PASS_BATCH:
            break
    return moved


def seconds_until_next(store: Store) -> float:
    """How long the planner may sleep: until the next job or schedule is due, and never long."""
    instants = [at for at in (store.next_wake(), store.next_plan_at()) if at is not None]
    if not instants:
        return _LONGEST_SECONDS
    return min(_LONGEST_SECONDS, max(0.0, (min(instants) - store.now()) / 1_000_000))
