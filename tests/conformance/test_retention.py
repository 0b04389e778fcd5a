"""Retention: J10."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, update

import fencepost
from fencepost import Retention
from fencepost.job import Options, State
from fencepost.planner.retention import RetentionPass, Walk
from fencepost.planning.outcome import Outcome, Verb
from fencepost.planning.retention import Rules
from fencepost.retention import build_rules
from fencepost.schedule import Every, Misfire, NewSchedule
from fencepost.store import Pass, Store
from fencepost.store.tables import retention
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, new, other_stores, put, rows, statements
from tests.waiting import until

DAY = 86_400


def test_only_final_jobs_that_ended_before_the_cutoff_are_deleted(store: Store, clock: VirtualClock) -> None:
    """J10: the age counts from the end, not from the beginning."""
    old = []
    for verb in (Verb.COMPLETE, Verb.ABANDON, Verb.CANCEL, Verb.SKIP):
        old.append(put(store).id)
        assert store.settle([(claim_one(store), Outcome(verb, error="e"))]) == [True]
    long_lived = put(store).id
    claim = claim_one(store, lease=30 * DAY)
    clock.advance(7 * DAY)
    assert store.complete(claim)
    assert store.prune(7 * DAY) == 0, "exactly as old as the cutoff is not older"
    clock.advance(0.000001)
    assert store.prune(7 * DAY) == len(old)
    assert [found["id"] for found in rows(store)] == [long_lived]


def test_a_live_job_is_not_old_however_long_it_waits(store: Store, clock: VirtualClock) -> None:
    """J10: scheduled for next year, ready for a month, running for a week."""
    waiting = {put(store, delay=365 * DAY * SECOND).id, put(store).id}
    running = claim_one(store, lease=365 * DAY)
    clock.advance(60 * DAY)
    assert store.prune(0) == 0
    assert {found["id"] for found in rows(store)} == waiting
    assert running.id in waiting


def test_a_final_job_that_was_retried_is_live_again_and_stays(store: Store, clock: VirtualClock) -> None:
    """J10."""
    job_id = put(store).id
    assert store.abandon(claim_one(store), "e")
    clock.advance(30 * DAY)
    assert store.retry_job(job_id).created
    assert store.prune(1) == 0
    assert store.states_of([job_id]) == {job_id: State.READY}


def test_pruning_goes_in_bounded_batches(store: Store, clock: VirtualClock) -> None:
    """J10: one transaction a batch, until all is done."""
    store.enqueue([new() for _ in range(23)])
    claims = store.claim("me", kinds=["k"], limit=23)
    assert all(store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims]))
    clock.advance(10)
    with statements(store) as sent:
        assert store.prune(1, batch=10) == 23
    assert sum(statement.startswith("DELETE") for statement in sent) == 3
    assert rows(store) == []


def test_two_that_prune_at_once_delete_each_job_once(store: Store, clock: VirtualClock) -> None:
    """J10: their counts add up."""
    store.enqueue([new() for _ in range(60)])
    claims = store.claim("me", kinds=["k"], limit=60)
    assert all(store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims]))
    clock.advance(10)
    with other_stores(store, 2) as (one, two):
        counts = at_once([lambda: one.prune(1, batch=7), lambda: two.prune(1, batch=7)])
    # Each passes over what the other is deleting, and may find nothing while the other's last batch is open.
    assert sum(counts) + store.prune(1) == 60
    assert rows(store) == []


@pytest.mark.parametrize("age", [0, 1])
def test_pruning_an_empty_table_deletes_nothing(store: Store, age: int) -> None:
    """J10."""
    assert store.prune(age) == 0


# By rules


def end(store: Store, verb: Verb = Verb.COMPLETE, *, number: int = 1, **options: Any) -> list[str]:
    """Jobs that end now, together; their ids."""
    store.enqueue([new(**options) for _ in range(number)])
    claims = store.claim("me", kinds=["k"], limit=number)
    assert store.settle([(claim, Outcome(verb, error="e")) for claim in claims]) == [True] * number
    return [claim.id for claim in claims]


def walk(store: Store, rules: Rules, **how: Any) -> int:
    walk = Walk(rules, store.now(), **how)
    deleted = 0
    while not walk.is_over:
        deleted += walk.step(store)
    return deleted


def left(store: Store) -> set[str]:
    return {found["id"] for found in rows(store)}


def test_each_queue_and_state_is_kept_for_as_long_as_its_own_rule_says(store: Store, clock: VirtualClock) -> None:
    """J10: a queue that is named follows its own rules alone; a state without a rule stays for ever."""
    rules = build_rules(
        {"*": Retention(succeeded=DAY, failed=10 * DAY), "mail": Retention(succeeded=5 * DAY), "audit": Retention()}
    )
    ends = {
        (queue, verb): end(store, verb, queue=queue)[0]
        for queue in ("default", "mail", "audit")
        for verb in (Verb.COMPLETE, Verb.ABANDON, Verb.CANCEL)
    }
    live = {put(store).id, put(store, queue="mail", delay=400 * DAY * SECOND).id}
    clock.advance(DAY)
    assert walk(store, rules) == 0, "exactly as old as the rule says is not older"
    clock.advance(1)
    gone = set()
    for days, leaving in (
        (0, [("default", Verb.COMPLETE)]),
        (5, [("mail", Verb.COMPLETE)]),
        (5, [("default", Verb.ABANDON)]),
    ):
        clock.advance(days * DAY)
        gone |= {ends[which] for which in leaving}
        assert walk(store, rules) == 1
        assert left(store) == (set(ends.values()) | live) - gone
    clock.advance(1000 * DAY)
    assert walk(store, rules) == 0


def test_no_more_than_the_newest_of_each_queue_and_state_are_kept(store: Store, clock: VirtualClock) -> None:
    """J10: by count, also where many ended at one instant, and together with an age."""
    rules = build_rules(Retention(failed=DAY, keep={"succeeded": 3, "failed": 2}))
    for _ in range(3):
        end(store, queue="a", number=2)
        end(store, Verb.ABANDON, queue="a")
        end(store, queue="b")
        end(store, Verb.CANCEL, queue="b")
        clock.advance(10)
    assert walk(store, rules) == 3 + 1
    counts = Counter((found["queue"], found["state"]) for found in rows(store))
    assert counts == {("a", "succeeded"): 3, ("a", "failed"): 2, ("b", "succeeded"): 3, ("b", "cancelled"): 3}
    newest = max(found["finished_at"] for found in rows(store))
    assert sum(found["finished_at"] == newest for found in rows(store) if found["queue"] == "a") == 3
    clock.advance(2 * DAY)
    assert walk(store, rules) == 2, "what is too old goes, however few there are"


def test_a_walk_goes_in_bounded_batches_and_passes_no_job_that_ended_at_the_same_instant(
    store: Store, clock: VirtualClock
) -> None:
    """J10: hundreds that were settled together, kept and unkept ones mixed."""
    store.enqueue([new(queue="keep" if n % 3 else "go") for n in range(450)])
    claims = store.claim("me", kinds=["k"], limit=450)
    store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims])
    clock.advance(10)
    with statements(store) as sent:
        assert walk(store, build_rules({"go": Retention(succeeded=1)})) == 150
    assert sum(statement.startswith("DELETE") for statement in sent) >= 2
    assert {found["queue"] for found in rows(store)} == {"keep"}


def test_a_job_that_is_retried_while_it_is_about_to_be_deleted_stays(store: Store, clock: VirtualClock) -> None:
    """J10: it is live again, or ended anew."""
    retried, again, gone = (end(store, Verb.ABANDON)[0] for _ in range(3))
    clock.advance(10)
    found = store.final_jobs((store.now(), "0" * 8 + "-0000-0000-0000-" + "0" * 12))
    store.retry_job(retried)
    clock.advance(10)
    store.retry_job(again)
    for claim in store.claim("me", kinds=["k"], limit=2):
        if claim.id == again:
            store.abandon(claim, "once more")
    assert store.delete_final([job.id for job in found], found[0].finished_at) == 1
    assert left(store) == {retried, again}
    assert gone not in left(store)


def test_the_last_success_of_a_schedule_stays_for_the_occurrences_that_ask_for_it(
    store: Store, clock: VirtualClock
) -> None:
    """J10: `ctx.previous_success` of a live occurrence is what it depends on."""
    store.save_schedule(NewSchedule("s", "k", "{}", Options(), Every(DAY * SECOND), Misfire.CATCH_UP, 100))
    for verb in (Verb.COMPLETE, Verb.COMPLETE, Verb.ABANDON):
        clock.advance(DAY)
        assert store.materialise_due() == 1
        store.settle([(claim_one(store), Outcome(verb, error="e"))])
    clock.advance(DAY / 2)
    before = store.previous_success("s", store.now())
    assert before is not None
    assert walk(store, build_rules(Retention(succeeded=1, failed=1))) == 2
    assert store.previous_success("s", store.now()) == before
    assert walk(store, build_rules(Retention(succeeded=1)), spares_last_success=False) == 1


def test_the_pass_follows_the_stored_rules_and_rests_between_its_walks(store: Store, clock: VirtualClock) -> None:
    """J10: whichever program leads, the rules are those that were stored."""
    own = [0.0]
    own_pass = RetentionPass(monotonic=lambda: own[0])
    assert own_pass.run(store) == 0
    end(store, number=5)
    clock.advance(10)
    assert store.save_retention(build_rules(Retention(succeeded=5))) == 1
    assert own_pass.run(store) == 0
    assert own_pass.seconds_until_due == 60
    own[0] += 60
    assert own_pass.run(store) == 5
    assert own_pass.seconds_until_due == 60


def test_a_pass_that_fell_behind_goes_on_after_a_pause_as_long_as_its_step(store: Store, clock: VirtualClock) -> None:
    """J10: it never waits for a whole rest while there is something left, and never keeps the database busy."""
    end(store, number=700)
    clock.advance(10)
    store.save_retention(build_rules(Retention(succeeded=5)))
    own = [0.0]

    def tick() -> float:
        own[0] += 0.25
        return own[0]

    own_pass = RetentionPass(monotonic=tick)
    deleted = steps = 0
    while deleted < 700:
        gone = own_pass.run(store)
        steps += bool(gone)
        deleted += gone
        assert not gone or deleted == 700 or own_pass.seconds_until_due < 1
        assert gone <= 200
    assert steps >= 4, "slow steps are made smaller"


def test_stored_rules_are_replaced_by_queue(store: Store) -> None:
    """J10: a program that names one queue leaves the others' rules as they are."""
    mail, every = Retention(succeeded=DAY, keep=5), Retention(failed=3 * DAY)
    assert store.save_retention(build_rules({"mail": mail, "*": every})) == 2
    assert store.retention_rules() == {"mail": mail.rules, "*": every.rules}
    with statements(store) as sent:
        assert store.save_retention(build_rules({"mail": mail})) == 0
    assert not [statement for statement in sent if not statement.startswith(("SELECT", "BEGIN"))]
    assert store.save_retention(build_rules({"mail": Retention()})) == 1
    assert store.retention_rules() == {"mail": {}, "*": every.rules}


def test_rules_that_this_version_cannot_read_delete_nothing(store: Store, clock: VirtualClock) -> None:
    """J10."""
    store.save_retention(build_rules(Retention(succeeded=1)))
    for text in ('{"succeeded": {"size": 3}}', '{"lost": {"age": 1}}', "[", "[]", '{"failed": 3}'):
        store.database.write(lambda conn, text=text: conn.execute(update(retention).values(rules=text)))  # type: ignore[misc]
        assert store.retention_rules() == {"*": {}}


def test_a_worker_stores_its_apps_rules_and_its_leader_follows_them(url: URL) -> None:
    """J10."""
    app = fencepost.App(url, retention=Retention(succeeded=0, failed=DAY))

    @app.job(kind="k")
    async def k() -> None: ...

    k.enqueue()
    app.run_worker(burst=True)
    assert app.store.retention_rules() == {"*": Retention(succeeded=0, failed=DAY).rules}
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: app.jobs.list() == [], "what has to go is gone")
        until(lambda: {record.name for record in app.store.list_passes()} == set(Pass), "every pass is recorded")
    finally:
        worker.stop()
        thread.join(20)
    app.close()


def test_prune_takes_a_state_a_queue_and_a_count(app: fencepost.App) -> None:
    """J10: for people, by hand."""
    store = app.store
    for queue in ("a", "b"):
        end(store, number=4, queue=queue)
        end(store, Verb.ABANDON, queue=queue)
    assert app.prune(0, state="failed", queue="a") == 1
    assert app.prune(keep=3) == 2
    assert app.prune(keep=1, queue="b", state=State.SUCCEEDED) == 2
    assert app.prune(timedelta(days=1), keep=1, state=["succeeded", "failed"]) == 2
    assert Counter((found["queue"], found["state"]) for found in rows(store)) == {
        ("a", "succeeded"): 1,
        ("b", "succeeded"): 1,
        ("b", "failed"): 1,
    }
    with pytest.raises(fencepost.ConfigurationError, match="Only final jobs"):
        app.prune(0, state="ready")
    assert app.prune(0) == 3
