"""The passes and their order: promote what is due, take back what was left behind."""

from __future__ import annotations

from fencepost.store import Store

__all__ = ["RECLAIM_SECONDS", "housekeep", "seconds_until_next"]

_BATCH = 500
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
        promoted = store.promote_due(batch=_BATCH)
        moved += promoted
        if promoted < _BATCH:
            break
    while reclaims:
        reclaimed = store.reclaim_expired(batch=_BATCH)
        moved += reclaimed
        if reclaimed < _BATCH:
            break
    return moved


def seconds_until_next(store: Store) -> float:
    """How long the planner may sleep: until the next job is due, and never long."""
    wake_at = store.next_wake()
    if wake_at is None:
        return _LONGEST_SECONDS
    return min(_LONGEST_SECONDS, max(0.0, (wake_at - store.now()) / 1_000_000))
