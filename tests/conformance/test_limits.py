"""Limits: permits for any job, semaphores with weights, token buckets, all at once; on every database."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import URL, delete, select

import fencepost
from fencepost.job import BusyPolicy, Claim, Concurrency, Options, Priority, Rate, Reason, State
from fencepost.schedule import Every, NewSchedule
from fencepost.store import Database, Gate, Store
from fencepost.store.demands import digest_of
from fencepost.store.tables import holdings, jobs, limits
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, job, new, other_stores, overwrite, put, row, statements, states

LEASE = 30


def claim_all(store: Store, limit: int = 100, owner: str = "me", kinds: tuple[str, ...] = ("k",)) -> list[Claim]:
    return store.claim(owner, kinds=kinds, limit=limit, lease=LEASE)


def in_turn(store: Store, clock: VirtualClock, number: int, **options: Any) -> list[str]:
    """Jobs with the same options, enqueued one after the other."""
    ids = []
    for _ in range(number):
        ids.append(put(store, **options).id)
        clock.advance(1e-6)
    return ids


def gpu(amount: int = 1) -> dict[str, Any]:
    return {"resources": (("gpu", amount),)}


def semaphore(store: Store, capacity: int, name: str = "gpu") -> int:
    return store.declare_capacity(Gate.RESOURCE, name, capacity)


def bucket(store: Store, per_second: float, burst: int, name: str = "api") -> int:
    return store.declare_bucket(Gate.RESOURCE, name, per_second, burst)


def started(store: Store, clock: VirtualClock, seconds: float, *, step: float = 0.05) -> list[int]:
    """The instants at which jobs start while a worker and a planner are at it, and each job ends at once."""
    instants: list[int] = []
    for _ in range(round(seconds / step)):
        store.wake_due()
        for claim in claim_all(store):
            instants.append(clock.now())
            assert store.complete(claim)
        clock.advance(step)
    return instants


def most_in_a_window(instants: list[int], seconds: float) -> int:
    return max((sum(1 for at in instants if first <= at < first + seconds * SECOND) for first in instants), default=0)


# Semaphores


def test_running_jobs_hold_no_more_of_a_semaphore_than_there_is(store: Store, clock: VirtualClock) -> None:
    """By weight, best rank first, and what ends gives back its own share alone."""
    semaphore(store, 5)
    ids = in_turn(store, clock, 4, **gpu(2))
    first, second = claim_all(store)
    assert states(store, *ids) == ["running", "running", "blocked", "blocked"]
    assert store.complete(first)
    assert states(store, *ids) == ["succeeded", "running", "ready", "blocked"]
    assert [claim.id for claim in claim_all(store)] == [ids[2]]
    assert store.complete(second)
    assert [claim.id for claim in claim_all(store)] == [ids[3]]


def test_a_small_demand_does_not_overtake_a_large_one_that_waits(store: Store, clock: VirtualClock) -> None:
    """Or the large one would wait for ever."""
    semaphore(store, 4)
    (small,) = in_turn(store, clock, 1, **gpu(2))
    (holder,) = claim_all(store)
    (large,) = in_turn(store, clock, 1, **gpu(4))
    assert claim_all(store) == []
    (later,) = in_turn(store, clock, 1, **gpu(1))
    assert claim_all(store) == []
    assert states(store, small, large, later) == ["running", "blocked", "blocked"]
    assert store.complete(holder)
    (claim,) = claim_all(store)
    assert claim.id == large
    assert store.complete(claim)
    assert [claim.id for claim in claim_all(store)] == [later]


def test_a_semaphore_never_leaks_whatever_becomes_of_the_holder(store: Store, clock: VirtualClock) -> None:
    """S8: a share counts while its attempt runs: reclaimed, deleted, or left behind, it is free."""
    semaphore(store, 1)
    ids = in_turn(store, clock, 3, **gpu())
    claim_all(store)
    clock.advance(LEASE + 1)
    assert store.reclaim_expired() == 1
    (again,) = claim_all(store)
    with store.transaction() as conn:
        conn.execute(delete(jobs).where(jobs.c.id == again.id))
    assert store.wake_freed() == 1
    (third,) = claim_all(store)
    assert {again.id, third.id} <= set(ids)
    store.prune(0)
    with store.database.reading() as conn:
        assert [str(held.job_id) for held in conn.execute(select(holdings))] == [third.id]


def test_a_lease_that_ran_out_gives_its_share_to_who_asks(store: Store, clock: VirtualClock) -> None:
    """S6: in the claim itself, before any planner has come by; and the superseded holder frees nothing."""
    semaphore(store, 1)
    (first,) = in_turn(store, clock, 1, **gpu())
    (old,) = claim_all(store)
    clock.advance(LEASE + 1)
    (second, third) = in_turn(store, clock, 2, **gpu())
    (taken,) = claim_all(store, owner="other", limit=1)
    assert not store.complete(old)
    assert claim_all(store, owner="third") == []
    assert Counter(states(store, first, second, third)) == {"running": 1, "blocked": 2}
    assert store.complete(taken)
    assert len(claim_all(store)) == 1


def test_a_semaphore_that_is_raised_wakes_who_waits_and_one_that_is_lowered_stops_nobody(
    store: Store, clock: VirtualClock
) -> None:
    """Limits change at run time, both ways."""
    semaphore(store, 1)
    ids = in_turn(store, clock, 6, **gpu())
    claim_all(store)
    assert semaphore(store, 3) == 2
    running = claim_all(store)
    assert len(running) == 2
    semaphore(store, 1)
    assert states(store, *ids)[:3] == ["running"] * 3
    for claim in running:
        assert store.complete(claim)
    assert claim_all(store) == []


# Buckets


def test_a_bucket_lets_through_no_more_than_burst_and_rate(store: Store, clock: VirtualClock) -> None:
    """C38: in any window, and all that the rate allows."""
    store.enqueue([new(rate=Rate("big", 5, 10)) for _ in range(80)])
    instants = started(store, clock, 8)
    assert len(instants) == 10 + 5 * 8 - 1 or len(instants) == 10 + 5 * 8
    for seconds in (0.2, 1, 3):
        assert most_in_a_window(instants, seconds) <= 10 + 5 * seconds


def test_after_a_rest_no_more_than_the_burst_runs_at_once(store: Store, clock: VirtualClock) -> None:
    """C38: tokens of idle time do not add up beyond it."""
    store.enqueue([new(rate=Rate("big", 5, 10)) for _ in range(10)])
    assert len(claim_all(store)) == 10
    clock.advance(3600)
    store.enqueue([new(rate=Rate("big", 5, 10)) for _ in range(50)])
    assert len(claim_all(store)) == 10


def test_a_crash_frees_no_tokens(store: Store, clock: VirtualClock) -> None:
    """C38: who died had them; the attempt that follows needs others."""
    ids = in_turn(store, clock, 3, rate=Rate("k", 0.1, 2))
    assert len(claim_all(store)) == 2
    clock.advance(1)
    overwrite(store, ids[0], lease_until=clock.now() - 1)
    assert store.reclaim_expired() == 1
    assert claim_all(store) == []
    assert states(store, *ids) == ["blocked", "running", "blocked"]


def test_one_busy_key_does_not_keep_the_others_waiting(store: Store, clock: VirtualClock) -> None:
    """C38: 300 jobs of one customer stand before five of each other one, which are done at once."""
    store.enqueue([new(rate=Rate("big", 5, 5), priority=Priority.HIGH) for _ in range(300)])
    small = [put(store, rate=Rate(f"s{n % 5}", 5, 5)).id for n in range(25)]
    done = {claim.id for claim in claim_all(store, 30)}
    done |= {claim.id for claim in claim_all(store, 30)}
    assert done >= set(small)


def test_those_who_wait_for_tokens_are_woken_when_they_come_in_rank_order(store: Store, clock: VirtualClock) -> None:
    """And the planner knows the instant."""
    ids = in_turn(store, clock, 4, rate=Rate("k", 2, 1))
    assert [claim.id for claim in claim_all(store)] == ids[:1]
    high = put(store, rate=Rate("k", 2, 1), priority=Priority.HIGH).id
    assert claim_all(store) == []
    due = store.next_due()
    assert due is not None
    assert 0.49 * SECOND < due - clock.now() <= 0.5 * SECOND
    assert store.wake_due() == 0
    clock.advance(0.5)
    assert store.wake_due() == 1
    assert [claim.id for claim in claim_all(store)] == [high]
    clock.advance(0.5)
    assert store.wake_due() == 1
    assert [claim.id for claim in claim_all(store)] == ids[1:2]


def test_a_newcomer_does_not_take_the_token_for_which_another_waits(store: Store, clock: VirtualClock) -> None:
    first, second = in_turn(store, clock, 2, rate=Rate("k", 1, 1))
    claim_all(store)
    clock.advance(1)
    late = put(store, rate=Rate("k", 1, 1)).id
    assert claim_all(store) == []
    assert store.wake_due() == 1
    assert [claim.id for claim in claim_all(store)] == [second]
    assert states(store, first, second, late) == ["running", "running", "blocked"]


def test_a_bucket_changes_at_run_time_both_ways(store: Store, clock: VirtualClock) -> None:
    """From the next start on; what was spent stays spent."""
    bucket(store, 1, 2)
    store.enqueue([new(resources=(("api", 1),)) for _ in range(40)])
    assert len(started(store, clock, 2)) in (3, 4)
    bucket(store, 10, 10)
    assert 17 <= len(started(store, clock, 1)) <= 18  # eight more may be there at once, and ten come
    bucket(store, 1, 1)
    assert len(started(store, clock, 2)) <= 3


def test_a_rate_key_can_be_held_to_another_rate_than_its_jobs_say(store: Store, clock: VirtualClock) -> None:
    """Until that is deleted."""
    store.enqueue([new(rate=Rate("k", 1, 1)) for _ in range(30)])
    assert len(started(store, clock, 1)) == 1
    store.declare_bucket(Gate.RATE, "k", 10, 5)
    assert len(started(store, clock, 1)) >= 10
    assert store.delete_limit(Gate.RATE, "k")
    assert len(started(store, clock, 2)) <= 4


def test_a_bucket_charges_by_weight(store: Store, clock: VirtualClock) -> None:
    """And the heavy one that waits is not starved by light ones."""
    bucket(store, 10, 10)
    (light,) = in_turn(store, clock, 1, resources=(("api", 4),))
    claim_all(store)
    (heavy,) = in_turn(store, clock, 1, resources=(("api", 10),))
    assert claim_all(store) == []
    after = in_turn(store, clock, 3, resources=(("api", 1),))
    assert claim_all(store) == []
    clock.advance(0.4)
    store.wake_due()
    assert [claim.id for claim in claim_all(store)] == [heavy]
    assert states(store, light, *after) == ["running", "blocked", "blocked", "blocked"]
    clock.advance(0.3)
    store.wake_due()
    assert [claim.id for claim in claim_all(store)] == after


# Several at once


def test_what_a_job_needs_it_gets_all_at_once_or_not_at_all(store: Store, clock: VirtualClock) -> None:
    """A job that lacks one thing takes nothing of the others."""
    semaphore(store, 1)
    bucket(store, 0.001, 2)
    everything: dict[str, Any] = {
        "concurrency": Concurrency("k"),
        "rate": Rate("r", 0.001, 5),
        "resources": (("api", 1), ("gpu", 1)),
    }
    first, second = in_turn(store, clock, 2, **everything)
    (claim,) = claim_all(store)
    assert claim.id == first
    assert states(store, second) == ["blocked"]
    with store.database.reading() as conn:
        assert len(conn.execute(select(holdings)).fetchall()) == 1
    assert next(one for one in store.list_limits() if one.kind == "bucket").free == 1
    other = put(store, rate=Rate("r", 0.001, 5)).id
    assert [found.id for found in claim_all(store)] == [other]
    assert store.complete(claim)
    (claim,) = claim_all(store)
    assert claim.id == second


def test_who_is_woken_at_one_gate_and_lacks_another_passes_the_room_on(store: Store, clock: VirtualClock) -> None:
    """So that no room lies idle while somebody waits for it."""
    semaphore(store, 1, "gpu")
    semaphore(store, 1, "disk")
    (holder_of_gpu,) = in_turn(store, clock, 1, **gpu())
    (first,) = claim_all(store)
    both = put(store, resources=(("disk", 1), ("gpu", 1))).id
    clock.advance(1)
    (last,) = in_turn(store, clock, 1, **gpu())
    assert claim_all(store) == []
    put(store, "k", priority=Priority.HIGH, resources=(("disk", 1),))
    claim_all(store)
    assert store.complete(first)
    assert [claim.id for claim in claim_all(store)] == [last]
    assert states(store, holder_of_gpu, both) == ["succeeded", "blocked"]
    assert job(store, both).waits_for == "resource 'disk'"


def test_jobs_that_need_the_same_things_in_any_order_never_stand_in_each_others_way(url: URL) -> None:
    """Gates are locked in one order: racing workers finish all, and hold to every limit throughout."""
    store = Store(Database(url), migrates=False)
    semaphore(store, 3, "a")
    semaphore(store, 2, "b")
    number = 45
    demands = [(("a", 1), ("b", 1)), (("b", 2),), (("a", 2),)]
    store.enqueue([new(resources=demands[n % 3], concurrency=Concurrency(f"key {n % 2}", 2)) for n in range(number)])
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []
    lock = threading.Lock()

    def work(owner: str) -> None:
        while len(done) < number:
            for claim in store.claim(owner, kinds=["k"], limit=3, lease=60):
                assert claim.limits is not None
                with lock:
                    held.update(dict(claim.limits.resources))
                    for name in held:
                        most[name] = max(most[name], held[name])
                with lock:
                    held.subtract(dict(claim.limits.resources))
                assert store.complete(claim)
                with lock:
                    done.append(claim.id)

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(work, f"worker {i}") for i in range(4)]:
            future.result(60)
    assert len(done) == len(set(done)) == number
    assert most["a"] <= 3
    assert most["b"] <= 2
    store.close()


def test_a_skip_policy_skips_only_where_its_own_key_is_busy(store: Store, clock: VirtualClock) -> None:
    """S7: who lacks tokens waits."""
    rate = Rate("r", 0.1, 1)
    options: dict[str, Any] = {"concurrency": Concurrency("k", 2, BusyPolicy.SKIP), "rate": rate}
    ids = in_turn(store, clock, 2, **options)
    claim_all(store)
    assert states(store, *ids) == ["running", "blocked"]


# What can never be met, and what is not there


def test_a_job_waits_for_a_resource_until_somebody_declares_it(store: Store, clock: VirtualClock) -> None:
    """And says so; those beside it that need less are not held up."""
    waiting = put(store, **gpu()).id
    plain = put(store).id
    assert [claim.id for claim in claim_all(store)] == [plain]
    assert job(store, waiting).waits_for == "resource 'gpu'"
    assert semaphore(store, 1) == 1
    assert [claim.id for claim in claim_all(store)] == [waiting]


def test_a_demand_that_can_never_be_met_stands_in_nobodys_way(store: Store, clock: VirtualClock) -> None:
    """Until the limit is raised."""
    semaphore(store, 2)
    large, small = [*in_turn(store, clock, 1, **gpu(3)), *in_turn(store, clock, 1, **gpu(1))]
    assert [claim.id for claim in claim_all(store)] == [small]
    assert job(store, large).waits_for == "resource 'gpu', which never has 3"
    assert semaphore(store, 5) == 1
    assert [claim.id for claim in claim_all(store)] == [large]


def test_a_limit_that_is_lowered_below_what_somebody_waits_for_puts_that_one_aside(
    store: Store, clock: VirtualClock
) -> None:
    semaphore(store, 3)
    amounts = (2, 3, 1)
    _, large, small = [job_id for amount in amounts for job_id in in_turn(store, clock, 1, **gpu(amount))]
    (holder,) = claim_all(store)  # all three in one claim: the small one does not overtake the large one there either
    semaphore(store, 2)
    assert store.complete(holder)
    assert [claim.id for claim in claim_all(store)] == [small]
    assert job(store, large).waits_for == "resource 'gpu', which never has 3"


def test_what_is_known_never_to_be_there_is_refused_at_enqueue(app: fencepost.App) -> None:
    """And not what another process has raised since."""

    @app.job(kind="k")
    def work() -> None: ...

    app.limits.set_semaphore("gpu", capacity=2)
    with pytest.raises(fencepost.ConfigurationError, match="takes 3 of 'gpu' could never start: there are 2"):
        work.using(resources={"gpu": 3}).enqueue()
    app.store.declare_capacity(Gate.RESOURCE, "gpu", 3)
    assert work.using(resources={"gpu": 3}).enqueue().created
    app.limits.set_semaphore("gpu", capacity=0)
    assert work.using(resources={"gpu": 3}).enqueue().created


# Floods


def test_a_flood_of_one_saturated_key_does_not_keep_a_claim_from_others(store: Store, clock: VirtualClock) -> None:
    """However many stand at the head: a claim reads and refuses no more of them than it asked for."""
    key = Concurrency("busy")
    store.enqueue([new(concurrency=key, priority=Priority.CRITICAL) for _ in range(400)])
    assert len(claim_all(store, 1)) == 1
    plain = [put(store).id for _ in range(5)]
    assert {claim.id for claim in claim_all(store, 10)} == set(plain)
    with store.database.reading() as conn:
        blocked = len(conn.execute(select(jobs.c.id).where(jobs.c.state == State.BLOCKED.value)).fetchall())
    assert blocked <= 20


def test_jobs_of_other_keys_behind_a_flood_are_found_in_the_same_call(store: Store, clock: VirtualClock) -> None:
    """Where nothing else is there, the call goes on past those that it refused."""
    store.enqueue([new(concurrency=Concurrency("busy"), priority=Priority.CRITICAL) for _ in range(200)])
    assert len(claim_all(store, 1)) == 1
    others = {put(store, concurrency=Concurrency(f"key {n}")).id for n in range(40)}
    found = {claim.id for _ in range(40) for claim in claim_all(store, 10)}
    assert found == others


def test_a_job_without_limits_costs_no_statement_more(store: Store) -> None:
    """Neither to claim nor to settle."""
    put(store)
    with statements(store) as sent:
        (claim,) = claim_all(store)
        assert store.complete(claim)
    assert not [text for text in sent if "fencepost_limits" in text or "fencepost_permits" in text]
    assert not [text for text in sent if "fencepost_holdings" in text]


def test_a_worker_of_one_queue_finds_jobs_under_limits_there(store: Store, clock: VirtualClock) -> None:
    """Whichever of the lines they stand in: fresh, promoted, given back, retried by hand."""
    key = Concurrency("k")
    first = put(store, queue="q", concurrency=key, delay=SECOND, **gpu()).id
    semaphore(store, 1)
    clock.advance(1)
    assert store.promote_due() == 1
    line = row(store, first)["line"]

    def claim() -> Claim:
        (found,) = store.claim("me", kinds=["k"], queues=["q"], limit=5, lease=LEASE)
        return found

    claim()
    assert store.release("me") == 1
    assert row(store, first)["line"] == line
    assert store.abandon(claim(), "no")
    store.retry_job(first)
    assert row(store, first)["line"] == line
    assert store.retry(claim(), "again", after=0)
    assert row(store, first)["line"] == line
    claim()


# Concurrency keys


def test_a_keys_slots_can_be_set_whatever_its_jobs_say(store: Store, clock: VirtualClock) -> None:
    """Both ways, until that is deleted."""
    ids = in_turn(store, clock, 6, concurrency=Concurrency("k", 2))
    running = claim_all(store)
    assert len(running) == 2
    assert store.declare_capacity(Gate.CONCURRENCY, "k", 4) == 2
    running += claim_all(store)
    assert len(running) == 4
    store.declare_capacity(Gate.CONCURRENCY, "k", 1)
    for claim in running[:3]:
        assert store.complete(claim)
    assert claim_all(store) == []
    assert store.complete(running[3])
    assert [claim.id for claim in claim_all(store)] == [ids[4]]
    assert store.delete_limit(Gate.CONCURRENCY, "k")
    assert store.wake_freed() == 1
    assert [claim.id for claim in claim_all(store)] == [ids[5]]


@pytest.mark.parametrize("way", ["cancelled", "expired"])
def test_a_holder_that_ends_while_it_waits_for_its_retry_skips_those_who_wait_for_its_success(
    store: Store, clock: VirtualClock, way: str
) -> None:
    """S7: under queue_on_success it is the job that counts, not the attempt."""
    options: dict[str, Any] = {"concurrency": Concurrency("k", 1, BusyPolicy.QUEUE_ON_SUCCESS)}
    holder = put(store, deadline=clock.now() + 5 * SECOND, **options).id
    clock.advance(1)
    (waiting,) = in_turn(store, clock, 1, **options)
    (claim,) = claim_all(store)
    assert store.retry(claim, "again", after=10)
    assert claim_all(store) == []
    if way == "cancelled":
        assert store.cancel_job(holder)
    else:
        clock.advance(10)
        store.promote_due()
        assert claim_all(store) == []
    assert states(store, waiting) == ["skipped"]
    assert job(store, waiting).reason == Reason.DEPENDENCY_FAILED
    (fresh,) = in_turn(store, clock, 1, **options)
    assert [claim.id for claim in claim_all(store)] == [fresh]


def test_racing_releases_and_claims_leave_no_room_idle(store: Store, clock: VirtualClock) -> None:
    """L3: stores with connections of their own, claiming and completing at once."""
    semaphore(store, 2)
    ids = in_turn(store, clock, 30, **gpu())
    with other_stores(store, 3) as others:

        def work(place: int, other: Store) -> None:
            for _ in range(200):
                for claim in claim_all(other, 2, f"w{place}"):
                    other.complete(claim)
                if place == 0 and set(states(other, *ids)) == {"succeeded"}:
                    return

        at_once([lambda place=place, other=other: work(place, other) for place, other in enumerate(others)])  # type: ignore[misc]
    assert Counter(states(store, *ids)) == {"succeeded": 30}


# Options


def test_a_key_may_be_a_function_of_the_arguments(app: fencepost.App) -> None:
    """By their names; the handler's defaults stand for what was not given, and None is no limit."""

    @app.job(
        kind="k",
        concurrency=lambda user_id: (f"user-{user_id}", 2),
        rate=lambda customer: None if customer is None else (customer, 5, 10),
    )
    def work(user_id: int, customer: str | None = None, other: int = 0) -> None: ...

    app.enqueue_many([work.build(user_id=7, customer="acme"), work.build(8), work.using(concurrency=None).build(9)])
    seven, eight, nine = (claim for claim in sorted(claim_all(app.store), key=lambda claim: claim.id))
    assert seven.concurrency == Concurrency("user-7", 2)
    assert seven.limits is not None
    assert seven.limits.rate == Rate("acme", 5.0, 10)
    assert (eight.concurrency, eight.limits) == (Concurrency("user-8", 2), None)
    assert (nine.concurrency, nine.limits) == (None, None)


def test_a_jobs_own_key_holds_for_the_occurrences_of_its_schedule(store: Store, clock: VirtualClock) -> None:
    """And what it names of rates and resources; where overlap= asks for a key, a job has that one."""
    options = Options(concurrency=Concurrency("k"), rate=Rate("r", 1, 2), resources=(("gpu", 1),))
    store.save_schedule(NewSchedule("s", "k", "{}", options, Every(SECOND)))
    semaphore(store, 5)
    clock.advance(1)
    store.materialise_due()
    (claim,) = claim_all(store)
    assert claim.concurrency == options.concurrency
    assert claim.limits is not None
    assert (claim.limits.rate, claim.limits.resources) == (options.rate, options.resources)


def test_a_schedule_without_limits_keeps_its_digest(store: Store) -> None:
    """Or an upgrade would start every schedule anew."""
    store.save_schedule(NewSchedule("s", "k", "{}", Options(), Every(SECOND)))
    with store.database.reading() as conn:
        stored = str(conn.exec_driver_sql("SELECT options FROM fencepost_schedules").scalar())
    assert not {"rate", "resources", "concurrency", "computed"} & set(stored.replace('"', " ").split())


def test_a_row_whose_limits_cannot_be_read_is_quarantined(store: Store) -> None:
    """L6: it does not start without them."""
    damaged = put(store, rate=Rate("r", 1, 1)).id
    overwrite(store, damaged, limits='{"rate": ["r"]}')
    assert claim_all(store) == []
    assert job(store, damaged).reason == Reason.UNDECODABLE


def test_an_enqueue_that_replaces_takes_the_new_limits(store: Store) -> None:
    put(store, key="x", delay=SECOND, rate=Rate("r", 1, 1))
    put(store, key="x", delay=SECOND, on_conflict=fencepost.OnConflict.REPLACE, **gpu())
    (stored,) = store.list_jobs()
    assert row(store, stored.id)["limits"] == '{"resources":{"gpu":1}}'


# Figures and housekeeping


def test_limits_are_listed_with_what_is_free_and_who_waits(app: fencepost.App) -> None:
    store = app.store
    app.limits.set_semaphore("gpu", capacity=3)
    app.limits.set_bucket("api", rate=0.001, burst=2)
    app.limits.set_concurrency("k", slots=1)
    app.limits.set_rate("r", rate=0.001, burst=1)
    store.enqueue(
        [
            *(new(**gpu(2)) for _ in range(2)),
            *(new(resources=(("api", 1),)) for _ in range(3)),
            *(new(concurrency=Concurrency("k", 9)) for _ in range(2)),
            *(new(rate=Rate("r", 100, 100)) for _ in range(2)),
        ]
    )
    claim_all(store)
    found = {(one.kind, one.name): (one.free, one.waiting) for one in app.limits.list()}
    assert found == {
        ("semaphore", "gpu"): (1, 1),
        ("bucket", "api"): (0, 1),
        ("concurrency", "k"): (0, 1),
        ("rate", "r"): (0, 1),
    }


def test_rows_of_rate_keys_that_rest_are_pruned(store: Store, clock: VirtualClock) -> None:
    """And say nothing that a new row would not say."""
    store.enqueue([new(rate=Rate(f"r{n}", 1, 1)) for n in range(5)])
    assert len(claim_all(store)) == 5
    store.declare_bucket(Gate.RATE, "r0", 1, 1)
    clock.advance(2)
    store.prune(0)
    with store.database.reading() as conn:
        assert [left.name for left in conn.execute(select(limits))] == ["r0"]


def test_digests_of_gates_of_different_kinds_differ() -> None:
    assert len({digest_of(gate, "x") for gate in Gate}) == len(Gate)
