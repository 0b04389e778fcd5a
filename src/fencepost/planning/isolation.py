"""Which jobs of a claimed batch may run together.

A job that kills its process takes every job beside it down, and each of them loses an attempt: a poison job
with three attempts could exhaust a whole batch of innocents. So a job whose last attempt died with its worker
(a *suspect*) is started alone out of its batch: a second crash then costs only itself and what was started just
before it. And a suspect on its last attempt (its *last chance*) runs with nothing beside it: another's crash must
not fail it for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.job import Claim, Reason

__all__ = ["is_last_chance", "is_suspect", "isolate_suspects"]


def is_suspect(claim: Claim) -> bool:
    """Whether the job's last attempt ended because its worker died."""
    return claim.reason == Reason.LEASE_EXPIRED


def is_last_chance(claim: Claim) -> bool:
    """Whether the job is a suspect that fails for good if its worker dies once more."""
    return is_suspect(claim) and claim.attempt >= claim.max_attempts


def isolate_suspects(batch: Sequence[Claim]) -> tuple[Sequence[Claim], Sequence[Claim]]:
    """Split a batch, in rank order, into what to run now and what to hand back at once.

    What runs is all that stands before the first suspect or, if that is the first, the suspect alone.
    """
    for index, claim in enumerate(batch):
        if claim.reason is not None and is_suspect(claim):
            cut = max(index, 1)
            return batch[:cut], batch[cut:]
    return batch, ()
