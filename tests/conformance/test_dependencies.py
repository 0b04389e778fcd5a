"""Jobs that wait for others: released once, skipped all the way down, brought back by a retry; on every database."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, func, select

import fencepost
from fencepost.errors import DependencyError
from fencepost.job import BusyPolicy, Concurrency, Dependency, NewJob, Priority, Reason, When
from fencepost.planning.outcome import Outcome, Verb
from fencepost.queue import QueueSettings
from fencepost.store import Store
from fencepost.store.tables import dependencies, jobs
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, claimed_ids, job, new, other_stores, put, row, statements, states


def after(*ids: str, when: str = "success") -> dict[str, Any]:
    """The options of a job that waits for others."""
    return {"after": tuple(Dependency(job_id, When(when)) for job_id in ids)}


def waiting(store: Store, *ids: str, when: str = "success", **options: Any) -> str:
    """A job that waits for others, its id."""
    return put(store, **after(*ids, when=when), **options).id


def run(store: Store, *, fails: bool = False) -> list[str]:
    """Claim and end all that is ready, as one worker does. The ids, in order."""
    claims = store.claim("me", kinds=["k"], limit=100)
    for claim in claims:
        assert store.abandon(claim, "no") if fails else store.complete(claim, claim.id)
    return [claim.id for claim in claims]


def run_all(store: Store) -> list[list[str]]:
    """Run until nothing is ready: the ids of each round."""
    rounds = []
    store.promote_due()
    while ids := run(store):
        rounds.append(ids)
        store.promote_due()
    return rounds


def edges(store: Store) -> int:
    count = select(func.count()).select_from(dependencies)
    return store.database.read(lambda conn: int(conn.execute(count).scalar_one()))


# Waiting and release


def test_a_job_starts_when_the_last_of_those_it_waits_for_has_succeeded(store: Store) -> None:
    first, second = put(store).id, put(store).id
    last = waiting(store, first, second)
    store.promote_due()
    claims = {claim.id: claim for claim in store.claim("me", kinds=["k"], limit=10)}
    assert claims.keys() == {first, second}
    assert store.complete(claims[first])
    store.promote_due()
    assert states(store, last) == ["blocked"]
    assert job(store, last).waits_for == f"success of job {second}"
    assert store.complete(claims[second])
    store.promote_due()
    assert claimed_ids(store) == [last]


def test_chains_fan_out_and_fan_in_run_in_their_order(store: Store) -> None:
    root = put(store).id
    left, right = waiting(store, root), waiting(store, root)
    join = waiting(store, left, right)
    assert run_all(store) == [[root], [left, right], [join]]


def test_a_predecessor_that_has_ended_already_counts(store: Store) -> None:
    first = put(store).id
    assert run(store) == [first]
    last = waiting(store, first)
    assert claimed_ids(store) == []
    store.promote_due()
    assert claimed_ids(store) == [last]


def test_a_predecessor_that_ends_before_anybody_looked_counts(store: Store) -> None:
    """Nothing was marked yet when it ended: an enqueue touches no row but its own."""
    first = put(store).id
    claim = claim_one(store)
    last = waiting(store, first)
    assert row(store, first)["has_successors"] is None
    assert store.complete(claim)
    store.promote_due()
    assert claimed_ids(store) == [last]


@pytest.mark.parametrize(
    ("end", "runs"),
    [("complete", {"success", "completion"}), ("fail", {"failure", "completion"}), ("cancel", {"completion"})],
)
def test_each_condition_is_met_by_its_own_ends(store: Store, end: str, runs: set[str]) -> None:
    first = put(store).id
    waits = {when: waiting(store, first, when=when) for when in ("success", "failure", "completion")}
    store.promote_due()
    claim = claim_one(store)
    if end == "complete":
        assert store.complete(claim)
    elif end == "fail":
        assert store.abandon(claim, "no")
    else:
        assert store.cancel(claim)
    store.promote_due()
    assert set(claimed_ids(store)) == {waits[when] for when in runs}
    for when in waits.keys() - runs:
        skipped = job(store, waits[when])
        assert (skipped.state, skipped.reason) == ("skipped", Reason.DEPENDENCY_FAILED)
        assert first in (skipped.last_error or "")


def test_a_retry_of_an_attempt_is_no_end(store: Store, clock: VirtualClock) -> None:
    first = put(store).id
    last = waiting(store, first)
    store.promote_due()
    assert store.retry(claim_one(store), "again", after=5)
    store.promote_due()
    assert states(store, first, last) == ["scheduled", "blocked"]
    clock.advance(5)
    assert run_all(store) == [[first], [last]]


def test_a_released_job_takes_its_place_as_if_it_were_enqueued_then(store: Store, clock: VirtualClock) -> None:
    """A delay counts from the release, an instant stands, and priorities order those that are released together."""
    first = put(store).id
    later = waiting(store, first, delay=10 * SECOND)
    fixed = waiting(store, first, run_at=clock.now() + 5 * SECOND)
    normal = waiting(store, first)
    high = waiting(store, first, priority=Priority.HIGH)
    store.promote_due()
    clock.advance(60)
    assert run(store) == [first]
    store.promote_due()
    assert claimed_ids(store) == [high, fixed, normal]
    assert states(store, later) == ["scheduled"]
    clock.advance(10)
    store.promote_due()
    assert claimed_ids(store) == [later]


def test_a_released_job_waits_for_its_permit_and_its_tenants_turn(store: Store) -> None:
    store.configure_queue("fair", QueueSettings(fair=True))
    first = put(store).id
    one = Concurrency("key", 1, BusyPolicy.QUEUE)
    limited = [waiting(store, first, concurrency=one) for _ in range(2)]
    fair = [waiting(store, first, queue="fair", tenant=tenant) for tenant in ("a", "b")]
    store.promote_due()
    assert run(store) == [first]
    store.promote_due()
    claims = store.claim("me", kinds=["k"], limit=10)
    assert {claim.id for claim in claims} == {limited[0], *fair}
    assert states(store, limited[1]) == ["blocked"]


def test_any_number_of_settlements_that_meet_release_their_successor_once(store: Store) -> None:
    with other_stores(store, 4) as stores:
        firsts = [put(store).id for _ in range(8)]
        last = waiting(store, *firsts)
        store.promote_due()
        claims = [stores[0].claim(f"w{number}", kinds=["k"], limit=2) for number in range(4)]

        def end(number: int) -> list[str]:
            own = stores[number]
            for claim in claims[number]:
                assert own.complete(claim)
                own.promote_due()
            return [claim.id for claim in own.claim("last", kinds=["k"], limit=5)]

        found = at_once([partial(end, number) for number in range(4)])
        found.append([claim.id for claim in store.claim("last", kinds=["k"], limit=5)])
    store.promote_due()
    assert [job_id for ids in found for job_id in ids] == [last]
    assert row(store, last)["attempts"] == 1


def test_a_wide_fan_out_is_released_in_bounded_batches(store: Store) -> None:
    first = put(store).id
    many = {result.id for result in store.enqueue([new(**after(first)) for _ in range(25)])}
    while store.promote_due(batch=10) >= 10:
        pass
    assert run(store) == [first]
    store.promote_due(batch=10)
    assert set(claimed_ids(store)) == many


def test_a_planner_that_is_killed_between_two_batches_leaves_the_rest_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(store).id
    many = {waiting(store, first) for _ in range(5)}
    store.promote_due()
    assert run(store) == [first]
    monkeypatch.setattr(store, "_follow", lambda due, batch: 0)  # it looked, and died
    store.promote_due()
    monkeypatch.undo()
    store.promote_due()
    assert set(claimed_ids(store)) == many


def test_jobs_without_dependencies_cost_no_statement_more(store: Store) -> None:
    with statements(store) as seen:
        put(store)
        assert store.complete(claim_one(store))
        store.promote_due()
    assert not any("fencepost_dependencies" in text for text in seen)


# Skips


def test_what_hangs_on_a_failure_is_skipped_all_the_way_down(store: Store) -> None:
    """A predecessor that is skipped is no success either."""
    root = put(store).id
    chain = [root]
    for _ in range(5):
        chain.append(waiting(store, chain[-1]))
    alarm = waiting(store, chain[-1], when="completion")
    store.promote_due()
    assert run(store, fails=True) == [root]
    store.promote_due()
    assert states(store, *chain) == ["failed", *["skipped"] * 5]
    assert claimed_ids(store) == [alarm]


def test_a_cancelled_parent_starts_none_of_its_children(store: Store) -> None:
    """A running parent and a waiting one, a child of both and a grandchild (C36)."""
    running = put(store).id
    claim = claim_one(store)
    queued = put(store).id
    child = waiting(store, running, queued)
    grandchild = waiting(store, child)
    store.promote_due()
    assert store.cancel_job(running)
    assert store.cancel(claim)
    store.promote_due()
    assert run_all(store) == [[queued]]
    assert states(store, running, child, grandchild) == ["cancelled", "skipped", "skipped"]
    assert job(store, grandchild).reason == Reason.DEPENDENCY_FAILED


@pytest.mark.parametrize("state", ["ready", "scheduled", "blocked"])
def test_a_waiting_parent_that_is_cancelled_is_passed_on(store: Store, state: str) -> None:
    options: dict[str, Any] = {"delay": 60 * SECOND} if state == "scheduled" else {}
    first = put(store, **options).id
    middle = waiting(store, first) if state == "blocked" else first
    last = waiting(store, middle)
    store.promote_due()
    assert states(store, middle) == [state]
    assert store.cancel_job(middle)
    store.promote_due()
    assert states(store, middle, last) == ["cancelled", "skipped"]


def test_a_parent_whose_worker_dies_for_the_last_time_is_passed_on(store: Store, clock: VirtualClock) -> None:
    first = put(store, max_attempts=1).id
    last = waiting(store, first)
    store.promote_due()
    claim_one(store, lease=5)
    clock.advance(6)
    assert store.reclaim_expired() == 1
    store.promote_due()
    assert states(store, first, last) == ["failed", "skipped"]


def test_a_blocked_job_is_cancelled_at_once_and_stays_so(store: Store) -> None:
    first = put(store).id
    last = waiting(store, first)
    store.promote_due()
    assert store.cancel_job(last)
    assert run_all(store) == [[first]]
    assert states(store, last) == ["cancelled"]


def test_a_skipped_job_lets_its_identity_go(store: Store) -> None:
    first = put(store).id
    waiting(store, first, key="a")
    store.promote_due()
    assert store.cancel_job(first)
    store.promote_due()
    assert put(store, key="a").created


# Retry


def test_retrying_a_failed_part_brings_back_what_hung_on_it(store: Store) -> None:
    root = put(store).id
    other = put(store).id
    child = waiting(store, root, other, key="a")
    grandchild = waiting(store, child)
    store.promote_due()
    claims = {claim.id: claim for claim in store.claim("me", kinds=["k"], limit=2)}
    assert store.abandon(claims[root], "no")
    assert store.complete(claims[other])
    store.promote_due()
    assert states(store, child, grandchild) == ["skipped", "skipped"]
    assert store.retry_job(root).created
    assert states(store, root, child, grandchild) == ["ready", "blocked", "blocked"]
    assert job(store, child).last_error is None
    assert not put(store, key="a").created
    assert run_all(store) == [[root], [child], [grandchild]]


def test_a_retry_before_its_failure_was_passed_on_is_waited_for(store: Store) -> None:
    root = put(store).id
    child = waiting(store, root)
    store.promote_due()
    assert run(store, fails=True) == [root]
    assert store.retry_job(root).created
    assert run_all(store) == [[root], [child]]


def test_what_something_else_skipped_is_skipped_again(store: Store) -> None:
    first, second = put(store).id, put(store).id
    child = waiting(store, first, second)
    store.promote_due()
    assert run(store, fails=True) == [first, second]
    store.promote_due()
    assert store.retry_job(first).created
    store.promote_due()
    assert states(store, child) == ["skipped"]
    assert store.retry_job(second).created
    assert run_all(store) == [[first, second], [child]]


def test_a_skipped_job_whose_identity_is_taken_stays_skipped(store: Store) -> None:
    root = put(store).id
    child = waiting(store, root, key="a")
    grandchild = waiting(store, child)
    store.promote_due()
    assert run(store, fails=True) == [root]
    store.promote_due()
    assert put(store, key="a", delay=60 * SECOND).created
    assert store.retry_job(root).created
    assert run_all(store) == [[root]]
    assert states(store, child, grandchild) == ["skipped", "skipped"]


def test_a_person_who_retries_a_skipped_job_runs_it(store: Store) -> None:
    root = put(store).id
    child = waiting(store, root)
    store.promote_due()
    assert run(store, fails=True) == [root]
    store.promote_due()
    assert store.retry_job(child).created
    assert run_all(store) == [[child]]
    assert states(store, root) == ["failed"]


# Enqueue


def test_what_is_not_there_is_not_waited_for(store: Store) -> None:
    """Unknown ids and keys, itself, and a circle are refused, and nothing is stored (C36)."""
    one, two, three = new(), new(), new()
    unknown = new(**after(one.id))
    with pytest.raises(DependencyError, match="not there"):
        store.enqueue([two, unknown])
    keyed = new(after=(Dependency(None, kind="k", key="a"),))
    with pytest.raises(DependencyError, match="there is none"):
        store.enqueue([keyed])
    itself = linked(three, three.id)
    with pytest.raises(DependencyError, match="itself"):
        store.enqueue([itself])
    by_own_key = new(key="a", after=(Dependency(None, kind="k", key="a"),))
    with pytest.raises(DependencyError, match="itself"):
        store.enqueue([by_own_key])
    with pytest.raises(DependencyError, match="circle: k -> k -> k"):
        store.enqueue_together([linked(one, two.id), linked(two, one.id)])
    assert store.list_jobs() == []
    assert edges(store) == 0


def linked(built: NewJob, *ids: str) -> NewJob:
    return NewJob(built.id, built.kind, built.arguments, new(**after(*ids)).options)


def test_an_identity_names_the_live_job_that_holds_it(store: Store) -> None:
    first = put(store, key="a").id
    last = put(store, after=(Dependency(None, kind="k", key="a"),)).id
    assert run_all(store) == [[first], [last]]


def test_an_enqueue_that_is_repeated_adds_nothing(store: Store) -> None:
    """Its commit's answer was lost; what it waited for has ended and gone since."""
    first = put(store).id
    repeated = new(**after(first))
    by_key = new(after=(Dependency(None, kind="k", key="a"),))
    store.enqueue([new(key="a")])
    for _ in range(2):
        assert all(result.created for result in store.enqueue([repeated, by_key]))
    store.promote_due()
    assert len(run(store)) == 2
    store.promote_due()
    assert all(result.created for result in store.enqueue([repeated, by_key]))
    assert set(claimed_ids(store)) == {repeated.id, by_key.id}


def test_a_job_that_is_there_already_waits_for_nothing_new(store: Store) -> None:
    first = put(store).id
    held = put(store, key="a", delay=60 * SECOND).id
    again = put(store, key="a", **after(first))
    assert (again.id, again.created) == (held, False)
    assert edges(store) == 0


def test_a_workflow_part_that_is_live_already_is_waited_for(store: Store) -> None:
    held = put(store, key="a").id
    part = new(key="a")
    rest = new(**after(part.id))
    results = store.enqueue_together([part, rest])
    assert results[0].id == held
    assert run_all(store) == [[held], [rest.id]]


def test_a_graph_is_stored_whole_or_not_at_all(store: Store) -> None:
    parts = [new() for _ in range(3)]
    with pytest.raises(DependencyError):
        store.enqueue_together([*parts, new(**after(new().id))])
    assert store.list_jobs() == []


def test_a_large_graph_finds_its_way(store: Store) -> None:
    """More than fit into one statement, and a fan-in of all of them."""
    parts = [new() for _ in range(1200)]
    last = new(**after(*(part.id for part in parts)))
    store.enqueue_together([*parts, last])
    store.promote_due()
    assert job(store, last.id).waits_for.count("success of job") == 5  # type: ignore[union-attr]
    claims = store.claim("me", kinds=["k"], limit=1500)
    assert all(claim.has_successors for claim in claims)
    store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims])
    while store.promote_due() >= 500:
        pass
    assert claimed_ids(store) == [last.id]


# Retention


def test_retention_never_takes_what_a_live_job_depends_on(store: Store, clock: VirtualClock) -> None:
    """J10: not while it waits, and not while it runs and may ask for the result."""
    first, slow = put(store).id, put(store, delay=86_400 * SECOND).id
    last = waiting(store, first, slow)
    assert run(store) == [first]
    store.promote_due()
    clock.advance(2 * 86_400)
    until = clock.now()
    assert store.prune(60) == 0
    assert store.delete_final([first], until) == 0
    store.promote_due()
    assert run(store) == [slow]
    store.promote_due()
    claim = claim_one(store)
    clock.advance(3600)
    assert store.prune(60) == 0
    assert dict(store.results_of_predecessors(last))[first] == f'"{first}"'
    assert store.complete(claim)
    clock.advance(3600)
    assert store.prune(60) == 3
    assert edges(store) == 0


def test_a_predecessor_that_was_deleted_behind_our_back_strands_nobody(store: Store, clock: VirtualClock) -> None:
    """It is found out in time that nobody will ever tell."""
    first, second = put(store).id, put(store).id
    strict, lenient = waiting(store, first), waiting(store, second, when="completion")
    store.promote_due()
    store.database.write(lambda conn: conn.execute(delete(jobs).where(jobs.c.id.in_([first, second]))))
    clock.advance(301)
    store.promote_due()
    assert states(store, strict) == ["skipped"]
    assert claimed_ids(store) == [lenient]


# The public face


def test_a_workflow_hands_results_on_by_name(app: fencepost.App) -> None:
    seen: dict[str, Any] = {}

    @app.job(kind="double")
    def double(number: int) -> int:
        return 2 * number

    @app.job(kind="total")
    def total(ctx: fencepost.JobContext) -> int:
        seen.update(ctx.dependencies)
        return sum(ctx.dependencies.values())

    flow = fencepost.Workflow()
    flow.add("sum", total.build(), after=["one", "two"])
    flow.add("one", double.build(1))
    flow.add("two", double.build(2), after={"one": "completion"})
    handles = app.enqueue_graph(flow)
    alone = total.using(after=handles["sum"]).enqueue()
    assert alone.job().waits_for == f"success of job {handles['sum'].id}"
    app.run_worker(burst=True)
    assert handles["sum"].result(0) == 6
    assert alone.result(0) == 6
    assert seen == {"one": 2, "two": 4, handles["sum"].id: 6}


def test_a_job_and_what_waits_for_it_are_enqueued_in_ones_own_transaction(
    app: fencepost.App, note: fencepost.JobFunction[..., None]
) -> None:
    before = note.enqueue(1)
    with app.store.transaction() as conn:
        first = note.using(connection=conn).enqueue(2)
        second = note.using(connection=conn, after=[first, before]).enqueue(3)
    flow = fencepost.Workflow()
    flow.add("only", note.build(5), after=second)
    with app.store.database.engine.connect() as conn:
        taken_back = note.using(connection=conn, after=second).enqueue(4)
        app.enqueue_graph(flow, connection=conn)
        conn.rollback()
    assert second.job().state == "blocked"
    with pytest.raises(DependencyError, match="not there"):
        note.using(after=taken_back).enqueue(6)
    assert edges(app.store) == 2


def test_a_workflow_refuses_what_cannot_be(app: fencepost.App, note: fencepost.JobFunction[..., None]) -> None:
    flow = fencepost.Workflow()
    flow.add("a", note.build(1), after="b")
    with pytest.raises(DependencyError, match="which the workflow has not"):
        app.enqueue_graph(flow)
    flow.add("b", note.build(2), after="a")
    with pytest.raises(DependencyError, match="in a circle"):
        app.enqueue_graph(flow)
    with pytest.raises(fencepost.ConfigurationError, match="unique"):
        flow.add("a", note.build(3))
    itself = fencepost.Workflow()
    itself.add("a", note.build(1), after="a")
    with pytest.raises(DependencyError, match="itself"):
        app.enqueue_graph(itself)
    assert app.jobs.list() == []
    assert app.enqueue_graph(fencepost.Workflow()) == {}
