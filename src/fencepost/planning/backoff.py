"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import math

from fencepost.job import Backoff, BackoffSpec

__all__ = ["backoff_seconds"]


def backoff_seconds(attempt: int, policy: BackoffSpec, draw: float) -> float:
    """Seconds to wait before attempt `attempt + 1`.

    Args:
        attempt: attempts spent so far, at least 1. Snoozes do not count.
        policy: a constant, one number per attempt (the last repeats), or a `Backoff`.
        draw: the jitter, in [0, 1), passed in so that a test can name it.

    Raises:
        ValueError: `attempt` < 1.

    Full jitter: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, got {attempt}")
    if isinstance(policy, Backoff):
        if policy.base == 0:
            return 0.0
        # In logarithms, so that attempt 5,000 meets the cap instead of an OverflowError.
        exponent = (attempt - 1) * math.log(policy.factor) + math.log(policy.base)
        delay = policy.cap if exponent >= math.log(policy.cap) else math.exp(exponent)
        return delay * (1 - policy.jitter) + delay * policy.jitter * draw
    if isinstance(policy, (int, float)):
        return float(policy)
    return float(policy[min(attempt, len(policy)) - 1])
