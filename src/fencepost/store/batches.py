"""How much goes into one transaction, or onto one page: large enough to cost little, small enough to be short."""

__all__ = [
    "BUCKET_BATCH",
    "ENQUEUE_BATCH",
    "GATE_BATCH",
    "MOST_LISTED",
    "PASS_BATCH",
    "PRUNE_BATCH",
    "SCHEDULE_BATCH",
]

ENQUEUE_BATCH = 1000
PRUNE_BATCH = 1000
PASS_BATCH = 500
"""Jobs that a pass of the planner moves at once."""
SCHEDULE_BATCH = 100
BUCKET_BATCH = 100
GATE_BATCH = 50
MOST_LISTED = 1000
"""Entries on one page of a listing, or of a preview."""
