"""Fair queues: tenants share a queue by weight, on every database."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from fencepost.job import Priority, Reason, State
from fencepost.planning.fairness import MOST_LEAD
from fencepost.queue import QueueSettings
from fencepost.store import Store, turns
from fencepost.testing import VirtualClock
from tests.jobs import MINUTE, SECOND, at_once, claim_one, new, other_stores, promote_all, put, row, statements

QUEUE = "default"


AHEAD = 100


@pytest.fixture(autouse=True)
def fair(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AHEAD", AHEAD)
    store.configure_queue(QUEUE, QueueSettings(fair=True))


def flood(store: Store, tenant: str, number: int, kind: str = "k") -> list[str]:
    return [result.id for result in store.enqueue([new(kind, tenant=tenant) for _ in range(number)])]


def drain(store: Store, most: int, *, batch: int = 10, kinds: str = "k") -> list[str]:
    """The tenants of the next jobs, in the order in which they are started by a worker whose planner keeps up."""
    started: list[str] = []
    while len(started) < most:
        promote_all(store)
        claims = store.claim("me", kinds=list(kinds), limit=min(batch, most - len(started)))
        if not claims:
            break
        started += [claim.tenant or "" for claim in claims]
    return started


def test_a_fresh_job_starts_within_one_round_however_many_of_another_tenant_wait(store: Store) -> None:
    flood(store, "big", 1000)
    assert set(drain(store, 40)) == {"big"}
    put(store, tenant="small")
    assert drain(store, 2, batch=1).count("small") == 1


def test_a_fresh_job_overtakes_a_full_window(store: Store) -> None:
    """Whoever has no job among those that had their turn gets one, though no more fit."""
    flood(store, "big", AHEAD + 50)
    promote_all(store)
    put(store, tenant="small")
    assert promote_all(store) == 1
    assert "small" in [claim.tenant for claim in store.claim("me", kinds=["k"], limit=2)]


def test_shares_follow_the_weights_within_five_percent(store: Store) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    for tenant, weight in weights.items():
        store.set_weight(QUEUE, tenant, weight)
        flood(store, tenant, 300)
    counts = Counter(drain(store, 400, batch=50))
    for tenant, weight in weights.items():
        assert counts[tenant] == pytest.approx(400 * weight / 8, rel=0.05)


def test_a_weight_that_is_set_at_run_time_shows_after_the_window(store: Store) -> None:
    flood(store, "a", 600)
    flood(store, "b", 600)
    assert Counter(drain(store, 100, batch=50)) == {"a": 50, "b": 50}
    store.set_weight(QUEUE, "a", 3)
    drain(store, AHEAD, batch=50)
    counts = Counter(drain(store, 200, batch=50))
    assert counts["a"] == pytest.approx(150, rel=0.05)
    store.set_weight(QUEUE, "a", None)
    assert store.weights(QUEUE) == {}


def test_an_idle_tenant_gains_no_credit(store: Store) -> None:
    put(store, tenant="idle")
    flood(store, "busy", 400)
    drain(store, 201, batch=20)
    flood(store, "idle", 300)
    counts = Counter(drain(store, 100))
    assert counts["idle"] == pytest.approx(50, abs=2)


def test_a_kind_that_nobody_serves_gives_no_credit_either(store: Store) -> None:
    """Its job waits from the beginning; the virtual time passes it by."""
    described = {"host": "h", "pid": 1, "concurrency": 1, "running": 0, "queues": None}
    served = {"kinds": '["k"]', "lease": 3600 * SECOND, "started_at": store.now()}
    store.record_worker(described | served | {"owner": "w"})
    put(store, kind="unserved", tenant="idle")
    flood(store, "busy", 400)
    drain(store, 200, batch=20)
    flood(store, "idle", 300)
    counts = Counter(drain(store, 100))
    assert counts["idle"] == pytest.approx(50, abs=2)


def test_jobs_of_one_tenant_start_in_the_order_in_which_they_came(store: Store, clock: VirtualClock) -> None:
    expected = flood(store, "a", 30)
    clock.advance(1)
    expected += flood(store, "a", 30)
    flood(store, "b", 60)
    started: list[str] = []
    while len(started) < 60:
        promote_all(store)
        started += [claim.id for claim in store.claim("me", kinds=["k"], limit=7) if claim.tenant == "a"]
    assert started == expected


def test_jobs_without_a_tenant_share_as_one(store: Store) -> None:
    store.enqueue([new() for _ in range(50)])
    flood(store, "a", 50)
    counts = Counter(drain(store, 40))
    assert counts == {"": 20, "a": 20}


def test_a_tenant_shares_over_its_kinds_and_gains_nothing_by_having_many(store: Store) -> None:
    for kind in "xyz":
        flood(store, "many", 60, kind)
    flood(store, "one", 180, "x")
    counts = Counter(drain(store, 120, kinds="xyz"))
    assert counts["one"] == pytest.approx(60, abs=2)


def test_critical_and_high_jobs_go_before_all_turns(store: Store) -> None:
    flood(store, "big", 20)
    promote_all(store)
    urgent = [put(store, tenant="big", priority=Priority.HIGH).id, put(store, priority=Priority.CRITICAL).id]
    assert [claim.id for claim in store.claim("me", kinds=["k"], limit=2)] == urgent[::-1]


def test_low_jobs_come_after_a_tenants_own_and_not_after_the_others(store: Store) -> None:
    low = put(store, tenant="a", priority=Priority.LOW).id
    first = put(store, tenant="a").id
    flood(store, "b", 10)
    promote_all(store)
    claims = store.claim("me", kinds=["k"], limit=4)
    assert [claim.id for claim in claims if claim.tenant == "a"] == [first, low]


def test_jobs_that_become_due_take_their_turn_too(store: Store, clock: VirtualClock) -> None:
    store.enqueue([new(tenant="later", delay=SECOND) for _ in range(20)])
    flood(store, "now", 100)
    drain(store, 20)
    clock.advance(2)
    counts = Counter(drain(store, 20))
    assert counts["later"] == 10


def test_a_job_that_waits_for_its_turn_becomes_urgent_in_time(store: Store, clock: VirtualClock) -> None:
    flood(store, "a", AHEAD + 1)
    clock.advance(1)
    deadline = store.now() + 10 * MINUTE
    last = put(store, tenant="a", deadline=deadline).id
    promote_all(store)
    assert row(store, last)["state"] == State.BLOCKED
    clock.advance(9 * 60 + 1)
    promote_all(store)
    assert claim_one(store).id == last


def test_a_job_that_is_handed_back_keeps_its_place_and_a_retry_takes_a_turn(store: Store, clock: VirtualClock) -> None:
    flood(store, "a", 30)
    flood(store, "b", 30)
    promote_all(store)
    first, second = store.claim("me", kinds=["k"], limit=2)
    store.release("me", [first.lease])
    assert claim_one(store).id == first.id
    store.retry(second, "again", after=1)
    clock.advance(2)
    promote_all(store)
    assert row(store, second.id)["state"] == State.READY
    assert claim_one(store).id != second.id  # its tenant has had turns since


def test_a_job_that_waits_for_its_turn_can_be_cancelled_and_replaced(store: Store) -> None:
    job_id = put(store, tenant="a", key="x").id
    assert row(store, job_id)["state"] == State.BLOCKED
    replaced = put(store, arguments='{"n":2}', tenant="b", key="x", on_conflict="replace")
    assert (replaced.id, replaced.replaced) == (job_id, True)
    promote_all(store)
    assert claim_one(store).arguments == '{"n":2}'
    gone = put(store, tenant="a").id
    assert store.cancel_job(gone)
    assert promote_all(store) == 0


def test_a_producer_that_does_not_know_the_queue_to_be_fair_breaks_nothing(store: Store) -> None:
    """Its jobs come in by arrival."""
    flood(store, "a", 40)
    promote_all(store)
    with other_stores(store, 1) as (other,):
        other.ensure_schema()
        other.database.known_queues.learn({})
        other.enqueue([new(tenant="b") for _ in range(10)])
    assert Counter(drain(store, 100)) == {"a": 40, "b": 10}


def test_what_waits_for_its_turn_gets_it_when_the_queue_is_fair_no_more(store: Store) -> None:
    flood(store, "a", 5)
    store.configure_queue(QUEUE, QueueSettings())
    flood(store, "b", 5)
    assert Counter(drain(store, 100)) == {"a": 5, "b": 5}


def test_a_paused_queue_gives_no_turns(store: Store) -> None:
    flood(store, "a", 5)
    store.set_paused(QUEUE, paused=True)
    assert promote_all(store) == 0
    assert not store.turns_wait
    store.set_paused(QUEUE, paused=False)
    assert len(drain(store, 5)) == 5


def test_planners_that_race_give_each_job_one_turn_and_keep_the_shares(store: Store) -> None:
    flood(store, "a", 300)
    flood(store, "b", 300)
    with other_stores(store, 3) as others:
        given = at_once([partial(promote_all, other) for other in (store, *others)])
    assert sum(given) == AHEAD
    assert Counter(claim.tenant for claim in store.claim("me", kinds=["k"], limit=100)) == {"a": 50, "b": 50}


def test_more_tenants_than_a_batch_holds_have_their_turns_alike(store: Store) -> None:
    """Though workers drain each batch before the next pass."""
    store.enqueue([new(tenant=f"t{i}") for _ in range(3) for i in range(40)])
    started: list[str] = []
    while store.give_turns(batch=10):
        started += [claim.tenant or "" for claim in store.claim("me", kinds=["k"], limit=10)]
    counts = Counter(started[:40])
    assert len(counts) == 40
    assert max(counts.values()) == 1


def test_a_fair_queue_that_drains_quickly_does_not_fall_behind_other_queues(store: Store, clock: VirtualClock) -> None:
    """Its virtual time is moved back towards the clock, and the order stays."""
    store.set_weight(QUEUE, "a", 0.01)  # 100 ms of virtual time a job
    expected = flood(store, "a", 1000)
    started: list[str] = []
    for _ in range(9):
        promote_all(store)
        started += [claim.id for claim in store.claim("me", kinds=["k"], limit=100)]
    clock.advance(1)
    flood(store, "a", 10)
    promote_all(store)
    plain = put(store, queue="other").id
    claims = store.claim("me", kinds=["k"], limit=101)
    started += [claim.id for claim in claims if claim.id != plain]
    assert started == expected[: len(started)]
    ranks = [row(store, claim.id)["created_at"] for claim in claims]
    assert len(ranks) == 101
    assert MOST_LEAD == 60 * SECOND


def test_a_queue_that_is_not_fair_costs_an_enqueue_and_a_claim_nothing(store: Store) -> None:
    store.configure_queue(QUEUE, QueueSettings())
    put(store)
    put(store, queue="another")
    store.claim("me", kinds=["k"], limit=2)
    with statements(store) as plain:
        put(store, queue="another")
        claim_one(store)
    store.configure_queue(QUEUE, QueueSettings(fair=True))
    with statements(store) as fair:
        put(store, queue="another")
        claim_one(store)
    assert len(plain) == len(fair)


def test_the_reasons_know_what_was_shed() -> None:
    assert Reason("shed") is Reason.SHED
