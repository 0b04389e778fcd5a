"""Claims made by hand, for tests of pure functions."""

from __future__ import annotations

from typing import Any

from fencepost.job import Backoff, Claim, Hold, Lease, Priority


def attempt(**changed: Any) -> Claim:
    """An attempt: the first of three, of a normal job that was due at 1,000."""
    values: dict[str, Any] = {
        "lease": Lease("01890000-0000-7000-8000-000000000000", "w", 1),
        "kind": "k",
        "queue": "default",
        "arguments": "{}",
        "attempt": 1,
        "max_attempts": 3,
        "priority": Priority.NORMAL,
        "created_at": 1_000,
        "run_at": 1_000,
        "deadline": None,
        "duration_hint": 0,
        "hold": Hold.LIVE,
        "timeout_seconds": None,
        "backoff": Backoff(base=2, jitter=0),
        "keep_result": True,
        "tags": (),
        "tenant": None,
        "schedule": None,
        "scheduled_for": None,
        "trigger": None,
        "concurrency": None,
        "reason": None,
        "history": None,
        "claimed_at": 1_000,
    }
    return Claim(**(values | changed))
