"""A settlement that is repeated because its commit's answer was lost finds its job as it left it.

The guard does not hold a second time, so nothing is written twice; but to say that the lease was lost would be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.engine import Connection

from fencepost.job import Claim, Micros, Reason, State
from fencepost.planning.outcome import Outcome, Verb, next_state
from fencepost.store.tables import jobs

__all__ = ["stand_as_settled"]

_WAITING = (State.READY, State.SCHEDULED)

# Served by the primary key, and asked only where a repetition was refused.
_STANDING = select(
    *(jobs.c[name] for name in ("id", "lease_token", "state", "reason", "attempts", "cancel_requested_at"))
).where(jobs.c.id.in_(bindparam("ids", expanding=True)))


def stand_as_settled(conn: Connection, settlements: Sequence[tuple[Claim, Outcome]], now: Micros) -> list[bool]:
    """For each, whether its job stands as this settlement leaves it, with the token of this attempt.

    The token grows at every claim, so the job has not been claimed since. What another may have made of the same
    attempt (a reclaim, say) differs in its reason or its count. A job that has moved on since is not recognised.
    """
    ids = [claim.id for claim, _ in settlements]
    standing = {str(row.id): row for row in conn.execute(_STANDING, {"ids": ids})}
    return [_is_left_by(standing.get(claim.id), claim, outcome, now) for claim, outcome in settlements]


def _is_left_by(row: Any, claim: Claim, outcome: Outcome, now: Micros) -> bool:
    if row is None or row.lease_token != claim.lease.token:
        return False
    if outcome.verb is Verb.COMPLETE:
        return bool(row.state == State.SUCCEEDED)
    if outcome.is_returning and row.cancel_requested_at is not None and row.state == State.CANCELLED:
        return bool(row.reason == Reason.CANCELLED)  # it was cancelled instead of coming back
    left = next_state(claim, outcome, now, worker=claim.lease.owner, draw=0.0)
    # It may have become due, or its start may have come nearer, since.
    is_in_state = row.state == left.state if left.finished_at is not None else row.state in _WAITING
    return bool(is_in_state and (row.reason, row.attempts) == (left.reason, left.attempts))
