"""Leadership: L2."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, event, exc

import fencepost
from fencepost import LeadershipLost, StoreUnavailable
from fencepost.job import Micros, Options, State
from fencepost.planner.leadership import Leadership
from fencepost.planner.passes import PassLog, housekeep
from fencepost.schedule import Every, Misfire, NewSchedule
from fencepost.store import Database, Lead, Pass, PassReport, Store
from fencepost.testing import VirtualClock
from tests.jobs import SECOND, at_once, claim_one, new, other_stores, put, row, rows, statements
from tests.waiting import until

LEASE = 5.0
LOOKING = ("SELECT", "WITH", "BEGIN")


def lead(store: Store, holder: str = "a", lease: float = LEASE) -> Lead:
    found = store.lead(holder, lease=lease)
    assert found is not None
    return found


def epoch_of(store: Store) -> int:
    found = store.leader()
    assert found is not None
    return found.epoch


# Take, renew, release


def test_one_of_any_number_who_ask_at_once_leads(store: Store) -> None:
    """L2."""
    for _ in range(5):
        with other_stores(store, 4) as others:
            answers = at_once([lambda own=own, n=n: own.lead(f"p{n}") for n, own in enumerate(others)])  # type: ignore[misc]
        (leader,) = [answer for answer in answers if answer is not None]
        assert leader.epoch == epoch_of(store)
        assert store.release_lead(leader)
    assert epoch_of(store) == 5


def test_a_renewed_lead_keeps_its_epoch_and_nobody_else_gets_it(store: Store, clock: VirtualClock) -> None:
    """L2."""
    first = lead(store)
    for _ in range(10):
        clock.advance(LEASE - 0.001)
        assert store.lead("b") is None
        assert lead(store) == first
    assert epoch_of(store) == 1


def test_a_lead_that_ran_out_is_taken_over_with_a_greater_epoch(store: Store, clock: VirtualClock) -> None:
    """L2: at the instant of its expiry, not before."""
    old = lead(store)
    clock.advance(LEASE - 0.000001)
    assert store.lead("b") is None
    clock.advance(0.000001)
    assert lead(store, "b") == Lead("b", old.epoch + 1, 5 * SECOND)
    assert store.lead("a") is None


def test_a_holder_whose_lead_ran_out_does_not_renew_it_but_takes_it_anew(store: Store, clock: VirtualClock) -> None:
    """L2: what it planned before is of an old epoch, even if nobody else led meanwhile."""
    old = lead(store)
    clock.advance(LEASE)
    assert lead(store).epoch == old.epoch + 1
    with pytest.raises(LeadershipLost):
        store.fenced(old).set_paused("q", paused=True)


def test_after_a_clean_stop_a_standby_leads_at_once(store: Store) -> None:
    """L2."""
    first = lead(store)
    assert store.lead("b") is None
    assert store.release_lead(first) is True
    assert lead(store, "b").epoch == first.epoch + 1
    assert store.release_lead(first) is False, "it is somebody else's now"
    assert store.lead("c") is None


def test_a_dead_leader_does_not_lead_for_longer_because_the_clock_was_set_back(
    store: Store, clock: VirtualClock
) -> None:
    """L2: a renewal from the future is taken for none."""
    first = lead(store)
    clock.set_back(3600)
    assert lead(store, "b").epoch == first.epoch + 1
    assert store.lead("a") is None


def test_a_standby_that_looks_writes_nothing(store: Store) -> None:
    """L2: it reads one row."""
    lead(store)
    with statements(store) as sent:
        for _ in range(10):
            assert store.lead("b") is None
    assert not [
        statement for statement in sent if not statement.lstrip().startswith(LOOKING) or "IMMEDIATE" in statement
    ]


def test_people_see_who_leads_since_when_and_what_was_done_when(store: Store, clock: VirtualClock) -> None:
    """L2."""
    assert store.leader() is None
    began = clock.now()
    found = lead(store)
    clock.advance(3)
    lead(store)
    shown = store.leader()
    assert shown is not None
    assert (shown.holder, shown.epoch) == ("a", 1)
    assert shown.since is not None
    assert round(shown.since.timestamp() * SECOND) == began
    assert shown.renewed_at - shown.since == timedelta(seconds=3)
    assert shown.is_leading(shown.since + timedelta(seconds=7.9))
    assert not shown.is_leading(shown.since + timedelta(seconds=8))
    store.fenced(found).record_passes(found, [PassReport("promote", 2 * SECOND, 7)])
    (record,) = store.list_passes()
    assert (record.name, record.epoch, record.moved) == ("promote", 1, 7)
    assert record.succeeded_at - shown.since == timedelta(seconds=1)
    store.release_lead(found)
    left = store.leader()
    assert left is not None
    assert (left.holder, left.since, left.epoch) == (None, None, 1)


# The fence


def _due_job(store: Store, clock: VirtualClock) -> Callable[[Store], object]:
    put(store, delay=1)
    return lambda own: own.promote_due()


def _expired_lease(store: Store, clock: VirtualClock) -> Callable[[Store], object]:
    put(store)
    claim_one(store, lease=1)
    return lambda own: own.reclaim_expired()


def _due_schedule(store: Store, clock: VirtualClock) -> Callable[[Store], object]:
    store.save_schedule(NewSchedule("s", "k", "{}", Options(), Every(SECOND), Misfire.CATCH_UP, 100))
    return lambda own: own.materialise_due()


def _old_job(store: Store, clock: VirtualClock) -> Callable[[Store], object]:
    put(store)
    store.complete(claim_one(store))
    return lambda own: own.prune(1)


def _recorded(store: Store, clock: VirtualClock) -> Callable[[Store], object]:
    return lambda own: own.record_passes(Lead("a", 1, 1), [PassReport("promote", 0, 1)])


@pytest.mark.parametrize(
    "arrange", [_due_job, _expired_lease, _due_schedule, _old_job, _recorded], ids=lambda made: made.__name__.strip("_")
)
@pytest.mark.parametrize("how", ["superseded", "expired"])
def test_a_leader_that_leads_no_longer_writes_nothing(
    store: Store, clock: VirtualClock, arrange: Callable[[Store, VirtualClock], Callable[[Store], object]], how: str
) -> None:
    """L2: whether somebody took over or nobody has yet. The new leader does the work once."""
    deed = arrange(store, clock)
    stale = store.fenced(lead(store))
    clock.advance(LEASE)
    if how == "superseded":
        lead(store, "b")
    before = rows(store), store.list_schedules(), store.list_passes()
    with pytest.raises(LeadershipLost, match="epoch 1 has run out or passed to another"):
        deed(stale)
    assert (rows(store), store.list_schedules(), store.list_passes()) == before
    deed(store.fenced(lead(store, "b")))
    assert (rows(store), store.list_schedules(), store.list_passes()) != before


def test_nobody_takes_over_in_the_middle_of_a_leaders_transaction(store: Store, clock: VirtualClock) -> None:
    """L2: what a leader began while it led is committed before another one leads, or not at all."""
    put(store, delay=1)
    clock.advance(1)
    stale = store.fenced(lead(store))
    order: list[str] = []
    with other_stores(store, 1) as (other,):
        asks = threading.Event()

        def take_over() -> None:
            asks.set()
            assert other.lead("b") is not None
            order.append("taken over")

        thread = threading.Thread(target=take_over, daemon=True)

        def expire_in_the_middle(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.lstrip().startswith("UPDATE fencepost_jobs"):
                order.append("writing")
                clock.advance(LEASE)
                thread.start()
                assert asks.wait(20)
                thread.join(0.1)
                assert thread.is_alive()

        event.listen(store.database.engine, "before_cursor_execute", expire_in_the_middle)
        event.listen(store.database.engine, "commit", lambda _conn: order.append("committing"))
        assert stale.promote_due() == 1
        event.remove(store.database.engine, "before_cursor_execute", expire_in_the_middle)
        thread.join(30)
    assert order.index("taken over") > order.index("committing", order.index("writing"))
    assert rows(store)[0]["state"] == State.READY
    assert epoch_of(store) == 2


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_a_leader_that_froze_in_the_middle_of_a_transaction_holds_nothing_for_longer_than_its_lease(
    url: URL,
) -> None:
    """L2: the server ends it; what it writes when it wakes goes nowhere."""
    with closing(Store(Database(url, patience=0.2), migrates=False)) as frozen:
        put(frozen)
        claim_one(frozen, lease=0)
        stale = frozen.fenced(lead(frozen, lease=1))
        with other_stores(frozen, 1) as (other,):

            def freeze(conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
                if statement.lstrip().startswith("UPDATE fencepost_jobs"):
                    until(lambda: other.lead("b"), "another one leads", seconds=10)

            event.listen(frozen.database.engine, "before_cursor_execute", freeze)
            with pytest.raises((LeadershipLost, StoreUnavailable)):
                stale.reclaim_expired()
            assert other.list_jobs()[0].state is State.RUNNING
            taken = other.lead("b")
            assert taken is not None
            assert other.fenced(taken).reclaim_expired() == 1


@pytest.mark.parametrize("database_name", ["mysql"], indirect=True)
def test_a_fenced_transaction_leaves_the_connection_as_it_was(store: Store) -> None:
    """L2: the connection goes back to a pool, where others may let it wait for longer."""
    question = "SELECT @@session.wait_timeout"
    before = store.database.read(lambda conn: conn.exec_driver_sql(question).scalar())
    store.fenced(lead(store)).set_paused("q", paused=True)
    assert store.database.read(lambda conn: conn.exec_driver_sql(question).scalar()) == before


def test_two_leaders_forced_at_once_change_nothing_twice(store: Store, clock: VirtualClock) -> None:
    """L2: even without the fence every pass is guarded by the state of what it changes."""
    store.enqueue([new(delay=SECOND) for _ in range(40)])
    store.enqueue([new("dead") for _ in range(40)])
    store.claim("gone", kinds=["dead"], limit=40, lease=1)
    store.save_schedule(NewSchedule("s", "k", "{}", Options(), Every(SECOND), Misfire.CATCH_UP, 100))
    clock.advance(20)
    with other_stores(store, 2) as (one, two):
        moved = at_once([lambda: housekeep(one, reclaims=True), lambda: housekeep(two, reclaims=True)])
    assert sum(moved) >= 80
    stored = rows(store)
    assert len(stored) == 100
    assert {found["state"] for found in stored} == {State.READY}
    assert [len(store.get(found["id"]).history) for found in stored if found["kind"] == "dead"] == [1] * 40  # type: ignore[union-attr]


def test_a_leader_without_work_writes_nothing_but_its_renewal(store: Store) -> None:
    """L2: passes look first, so an idle leader costs no commit."""
    put(store, delay=3600 * SECOND)
    fenced = store.fenced(lead(store))
    with statements(store) as sent:
        assert housekeep(fenced, reclaims=True) == 0
    assert not [
        statement for statement in sent if not statement.lstrip().startswith(LOOKING) or "IMMEDIATE" in statement
    ]


# A planner's own view


class _Monotonic:
    """A process's own clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def leadership(store: Store, holder: str, own: _Monotonic) -> Leadership:
    return Leadership(store, holder, lease_seconds=LEASE, monotonic=own)


def test_a_planner_renews_at_a_third_and_asks_nothing_before(store: Store, clock: VirtualClock) -> None:
    """L2."""
    own = _Monotonic()
    mine = leadership(store, "a", own)
    assert mine.attend() is not None
    with statements(store) as sent:
        own.now += LEASE / 3 - 0.01
        assert mine.attend() is not None
    assert sent == []
    own.now += 0.01
    clock.advance(LEASE / 3)
    assert mine.attend() is not None
    shown = store.leader()
    assert shown is not None
    assert shown.since is not None
    assert shown.expires_at - shown.since == timedelta(seconds=LEASE * 4 / 3)


def test_a_leader_that_cannot_renew_steps_down_by_itself(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: by its own clock, counted from before it asked, without a word from the database."""
    own = _Monotonic()
    mine = leadership(store, "a", own)

    def slow(holder: str, **how: Any) -> Lead | None:
        found = Store.lead(store, holder, **how)
        own.now += 2  # the answer was long on its way
        return found

    def unreachable(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("cut off")

    monkeypatch.setattr(store, "lead", slow)
    assert mine.attend() is not None
    monkeypatch.setattr(store, "lead", unreachable)
    for elapsed, leads in ((2.9, True), (0.1, False)):
        own.now += elapsed
        with pytest.raises(StoreUnavailable):
            mine.attend()
        assert (mine.lead is not None) is leads
    monkeypatch.undo()
    clock.advance(LEASE)
    assert leadership(store, "b", own).attend() is not None
    assert mine.attend() is None


def test_a_superseded_leader_learns_of_it_when_it_renews_and_between_transactions(
    store: Store, clock: VirtualClock
) -> None:
    """L2."""
    own = _Monotonic()
    mine, other = leadership(store, "a", own), leadership(store, "b", own)
    assert mine.attend() is not None
    assert other.attend() is None
    clock.advance(LEASE)
    assert other.attend() is not None
    own.now += LEASE / 3
    with pytest.raises(LeadershipLost):
        mine.insist()
    assert mine.lead is None
    assert other.release()
    assert not mine.release()
    assert mine.attend() is not None
    assert epoch_of(store) == 3


def test_a_round_of_passes_ends_where_the_lead_does(store: Store, clock: VirtualClock) -> None:
    """L2: in the middle of a backlog."""
    own = _Monotonic()
    mine = leadership(store, "a", own)
    store.enqueue([new(delay=SECOND) for _ in range(600)])
    clock.advance(1)
    fenced = mine.attend()
    assert fenced is not None

    def superseded() -> None:
        if any(found["state"] == State.READY for found in rows(store)):
            clock.advance(LEASE)
            own.now += LEASE
            lead(store, "b")
        mine.insist()

    with pytest.raises(LeadershipLost):
        housekeep(fenced, reclaims=False, before_each=superseded)
    assert sum(found["state"] == State.READY for found in rows(store)) == 500


def test_a_pass_that_the_database_refuses_does_not_keep_the_others_from_their_work(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: and the record tells which one has not succeeded."""
    job_id = put(store, delay=1).id
    clock.advance(1)

    def refuse(**_: Any) -> int:
        raise exc.ProgrammingError("SELECT", {}, Exception("no"))

    monkeypatch.setattr(store, "materialise_due", refuse)
    log = PassLog()
    with pytest.raises(exc.ProgrammingError):
        housekeep(store, reclaims=True, log=log)
    assert row(store, job_id)["state"] == State.READY
    assert {report.name for report in log.reports()} == {
        Pass.PROMOTE,
        Pass.TOKENS,
        Pass.TURNS,
        Pass.PERMITS,
        Pass.RECLAIM,
    }
    assert [report.moved for report in log.reports() if report.name == Pass.PROMOTE] == [1]


def test_a_lead_is_asked_for_by_name(store: Store) -> None:
    for holder in ("", "x" * 201):
        with pytest.raises(fencepost.ConfigurationError, match="holder"):
            store.lead(holder)
    assert isinstance(lead(store).lease, Micros)
