"""Producers, workers and the planner at once: what they lock does not make them fail (L4)."""

from __future__ import annotations

import threading
from functools import partial

import pytest

import fencepost
from fencepost.job import State
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from tests.jobs import at_once, new, other_stores, rows

JOBS = 240


@pytest.mark.parametrize("bulk", [1, 60])
def test_enqueue_claim_settle_heartbeat_promote_and_retention_at_once_lose_nothing(
    app: fencepost.App, bulk: int
) -> None:
    """L4, J3, J5: no producer sees a deadlock, every job is started once, and the counts add up."""
    store = app.store
    done = threading.Event()
    succeeded: list[str] = []

    def produce(own: Store, part: int) -> int:
        batch = [new(delay=n % 3, key=f"{part}.{n}" if n % 2 else None) for n in range(JOBS // 2)]
        for start in range(0, len(batch), bulk):
            assert all(result.created for result in own.enqueue(batch[start : start + bulk]))
        return len(batch)

    def work(own: Store, owner: str) -> int:
        finished = 0
        while not done.is_set():
            claims = own.claim(owner, kinds=["k"], limit=7)
            if claims:
                assert all(claim.attempt == 1 for claim in claims)
                assert own.heartbeat(owner, [claim.lease for claim in claims]).renewed == {c.id for c in claims}
                assert all(own.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims]))
                succeeded.extend(claim.id for claim in claims)
                finished += len(claims)
            if len(succeeded) >= JOBS:
                done.set()
        return finished

    def plan(own: Store) -> int:
        while not done.is_set():
            own.promote_due(batch=20)
            own.reclaim_expired(batch=20)
            own.prune(3600, batch=20)
        return 0

    with other_stores(store, 6) as (one, two, three, four, five, six):
        counts = at_once(
            [
                partial(produce, one, 1),
                partial(produce, two, 2),
                partial(work, three, "w3"),
                partial(work, four, "w4"),
                partial(plan, five),
                partial(plan, six),
            ]
        )
    assert counts[0] + counts[1] == counts[2] + counts[3] == JOBS
    assert sorted(succeeded) == sorted(set(succeeded))
    stored = rows(store)
    assert len(stored) == JOBS
    assert {found["state"] for found in stored} == {State.SUCCEEDED}
    assert {found["attempts"] for found in stored} == {1}
