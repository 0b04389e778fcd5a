"""The rank: one integer that orders the ready jobs of a queue, so that a claim is one index range scan.

    rank = tier * 2**60 + sort_at

`tier` decides first, `sort_at` (microseconds) within it. It never changes while a job is ready, except for
the one move of a job with a deadline to the urgent tier, so order costs nothing at claim time.
"""

from __future__ import annotations

from fencepost.job import Micros, Priority

__all__ = [
    "EARLY_CLAIM",
    "LOW_PRIORITY_AGING",
    "TIER_BOUNDS",
    "URGENCY_WINDOW",
    "early_at",
    "fixed_start_rank",
    "rank",
    "urgent_at",
    "urgent_rank",
]

_TIER = 2**60  # microseconds reach 2**60 only in the year 38505
_FIXED_TIER, _URGENT_TIER = -1, 2
_TIERS = {Priority.CRITICAL: 0, Priority.HIGH: 1, Priority.NORMAL: 3, Priority.LOW: 3}

TIER_BOUNDS = tuple(tier * _TIER for tier in range(5))
"""Where the tiers begin, and where the last one ends: within two of them, jobs stand by one rule."""

LOW_PRIORITY_AGING: Micros = 5 * 60 * 1_000_000
"""A low job that has waited this much longer than a normal one overtakes it; never a high or critical one."""

URGENCY_WINDOW: Micros = 60 * 1_000_000
"""How long before its latest start a normal or low job with a deadline becomes urgent."""


EARLY_CLAIM: Micros = 1_000_000
"""How long before its fixed start a job may be claimed: longer than a worker sleeps between two looks."""


def rank(priority: Priority, arrival: Micros, *, aging: Micros = LOW_PRIORITY_AGING) -> int:
    """The rank of a job that became ready at `arrival`: smaller goes first, FIFO between equals.

    Linear in `arrival`, so that a batch may rank its rows by adding 1 µs a row.
    """
    sort_at = arrival + aging if priority is Priority.LOW else arrival
    return _TIERS[priority] * _TIER + sort_at


def urgent_at(
    priority: Priority, deadline: Micros | None, duration_hint: Micros, *, window: Micros = URGENCY_WINDOW
) -> Micros | None:
    """When a ready job moves to the urgent tier, or None if it never does (critical and high are above it)."""
    if deadline is None or priority in (Priority.CRITICAL, Priority.HIGH):
        return None
    return max(0, deadline - duration_hint - window)


def urgent_rank(deadline: Micros, duration_hint: Micros) -> int:
    """The rank in the urgent tier: earliest latest-start first."""
    return _URGENT_TIER * _TIER + max(0, deadline - duration_hint)


def early_at(start_at: Micros) -> Micros:
    """From when on a job with a fixed start may be claimed, and its start awaited in the worker."""
    return max(0, start_at - EARLY_CLAIM)


def fixed_start_rank(start_at: Micros) -> int:
    """The rank of a job with a fixed start, whatever its priority: a start is kept only by who is claimed in time."""
    return _FIXED_TIER * _TIER + max(0, start_at)
