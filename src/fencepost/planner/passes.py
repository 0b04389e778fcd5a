"""The passes and their order: make the occurrences that are due, promote, take back what was left behind."""

from __future__ import annotations

from fencepost.store import Store

__all__ = ["RECLAIM_SECONDS", "housekeep", "seconds_until_next"]

_BATCH = 500
_SCHEDULES = 100
_MOST_TURN_PASSES = 10  # then the other passes have their turn too
_TURNS_SECONDS = 0.05  # a window of 1,000 jobs of a kind lasts as long at 20,000 jobs a second
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
    for _ in range(_MOST_TURN_PASSES):
        if not store.turns_wait:
            break
        given = store.give_turns(batch=_BATCH)
        moved += given
        if not given:
            break
    if reclaims:
        store.learn_queues()
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
    longest = _TURNS_SECONDS if store.turns_wait else _LONGEST_SECONDS
    if not instants:
        return longest
    return min(longest, max(0.0, (min(instants) - store.now()) / 1_000_000))
