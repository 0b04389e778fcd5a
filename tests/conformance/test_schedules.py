"""Schedules: S1 to S5, S9, S10, S12, S13 and L6, on every database."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import URL, create_engine, event, exc, select, update
from sqlalchemy.engine import Connection

import fencepost
from fencepost import Reason, State
from fencepost.errors import (
    ArgumentsError,
    ConfigurationError,
    InvalidTransition,
    JobNotFound,
    ScheduleNotFound,
    StoreUnavailable,
)
from fencepost.ids import new_id
from fencepost.job import Job, Options
from fencepost.planner.passes import housekeep, seconds_until_next
from fencepost.planning.misfire import MOST_AT_ONCE, plan_pass
from fencepost.schedule import Every, Misfire, NewSchedule, Timing
from fencepost.store import Database, Store
from fencepost.store import schedules as statements_of
from fencepost.store.database import Clock
from fencepost.store.dialects import Fault
from fencepost.store.schedules import Saved
from fencepost.store.tables import schedules
from fencepost.testing import VirtualClock
from tests.jobs import at_once, claim_one, other_stores, promote_all, rows, statements
from tests.jobs import overwrite as overwrite_job

SECOND = 1_000_000
EVERY_SECOND = Every(SECOND)
START = datetime(2026, 1, 1, tzinfo=UTC)
"""Where the virtual clock stands at first."""


def definition(name: str, timing: Timing = EVERY_SECOND, **values: Any) -> NewSchedule:
    """A schedule as the store takes it."""
    return NewSchedule(name, "k", "{}", values.pop("options", Options()), timing, **values)


def stored(store: Store, name: str) -> Mapping[str, Any]:
    """A schedule's row as it stands in the table."""
    query = select(schedules).where(schedules.c.name == name)
    return store.database.read(lambda conn: dict(conn.execute(query).mappings().one()))


def overwrite(store: Store, name: str, **values: Any) -> None:
    """Write into a schedule's row what no function of the store would write."""
    store.database.write(lambda conn: conn.execute(update(schedules).where(schedules.c.name == name).values(values)))


def due(store: Store) -> list[Any]:
    """The rows that a planner reads at this moment."""
    return store.database.read(lambda conn: statements_of.due_schedules(conn, store.now(), batch=100))


def materialise(store: Store, row: Any) -> int:
    """Plan from a row that was read before."""
    return store.database.write(lambda conn: statements_of.materialise(store.database, conn, row))


def plan_all(store: Store) -> None:
    """Run the pass until no schedule is due."""
    while store.materialise_due():
        pass


def instants(store: Store, name: str) -> list[int]:
    """The instants of a schedule's occurrences, in order."""
    return sorted(row["scheduled_for"] for row in rows(store) if row["schedule"] == name)


def seconds(*numbers: float) -> list[datetime]:
    """Instants that are so many seconds after START."""
    return [START + timedelta(seconds=number) for number in numbers]


def lose_one_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Report the store's next commit as lost, after it happened. The list is empty until that was done."""
    real = store.database.transaction
    lost: list[bool] = []

    @contextmanager
    def transaction() -> Iterator[Connection]:
        with real() as conn:
            yield conn
        if not lost:
            lost.append(True)
            raise exc.OperationalError("COMMIT", None, Exception("gone away"), connection_invalidated=True)

    monkeypatch.setattr(store.database, "transaction", transaction)
    monkeypatch.setattr(type(store.database.dialect), "classify", lambda *_: Fault.TRANSIENT)
    return lost


class Program:
    """A program on the database: an app, one job, and the schedules that its code declares."""

    def __init__(self, url: URL, clock: Clock | None, module: str = "reports") -> None:
        def report(day: int = 0) -> int:
            return day

        report.__module__ = module
        self.app = fencepost.App(url, clock=clock)
        self.report = self.app.job(kind=f"{module}.report")(report)

    def declare(self, name: str, cron: str | None = None, **asked: Any) -> None:
        """As `@app.schedule` does."""
        self.app.schedule(cron, name=name, **asked)(self.report)

    def starts(self) -> dict[str, Saved]:
        """What the start of a worker does."""
        return self.app.schedules.sync()


@pytest.fixture
def make_program(url: URL, clock: VirtualClock) -> Iterator[Callable[..., Program]]:
    """Makes programs on the test's database and virtual clock."""
    made: list[Program] = []

    def make(module: str = "reports", **declared: Mapping[str, Any]) -> Program:
        made.append(Program(url, clock, module))
        for name, asked in declared.items():
            made[-1].declare(name, **asked)
        return made[-1]

    yield make
    for program in made:
        program.app.close()


@pytest.fixture
def program(make_program: Callable[..., Program]) -> Program:
    """A program that declares nothing."""
    return make_program()


# S1: one occurrence per instant


def test_planners_at_the_same_time_make_one_occurrence_an_instant(store: Store, clock: VirtualClock) -> None:
    """S1."""
    names = [f"s{n}" for n in range(3)]
    for name in names:
        store.save_schedule(definition(name))
    start = clock.now()
    with other_stores(store, 4) as planners:
        for _ in range(8):
            clock.advance(7)
            at_once([planner.materialise_due for planner in planners])
            for planner in planners:
                planner.materialise_due()

    for name in names:
        assert instants(store, name) == [start + n * SECOND for n in range(1, 57)]
        assert stored(store, name)["runs"] == 56
    assert {row["state"] for row in rows(store)} == {State.READY}


def test_planners_catch_up_in_parts_at_the_same_time_without_a_gap(store: Store, clock: VirtualClock) -> None:
    """S1, S5."""
    missed = 2 * MOST_AT_ONCE + 100
    store.save_schedule(definition("s", misfire=Misfire.CATCH_UP, max_catch_up=10_000))
    start = clock.now()
    clock.advance(missed)
    with other_stores(store, 3) as planners:
        at_once([lambda planner=planner: plan_all(planner) for planner in planners])  # type: ignore[misc]

    assert instants(store, "s") == [start + n * SECOND for n in range(1, missed + 1)]


def test_a_planner_that_dies_between_the_cursor_and_the_occurrence_leaves_both_undone(
    store: Store, clock: VirtualClock
) -> None:
    """S1."""
    store.save_schedule(definition("s"))
    before = stored(store, "s")
    clock.advance(1)

    def die(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "fencepost_jobs" in statement:
            raise KeyboardInterrupt

    event.listen(store.database.engine, "before_cursor_execute", die)
    with pytest.raises(KeyboardInterrupt):
        store.materialise_due()
    event.remove(store.database.engine, "before_cursor_execute", die)

    assert stored(store, "s") == before
    assert rows(store) == []
    store.materialise_due()
    assert instants(store, "s") == [before["next_fire_at"]]


def test_more_schedules_than_a_batch_are_all_planned_in_one_housekeeping(store: Store, clock: VirtualClock) -> None:
    """S1."""
    for n in range(230):
        store.save_schedule(definition(f"s{n}", Every(3600 * SECOND)))
    clock.advance(3600)
    housekeep(store, reclaims=False)

    assert len(rows(store)) == 230
    assert store.materialise_due() == 0
    assert seconds_until_next(store) > 0


def test_an_occurrence_carries_its_schedules_options_and_is_due_within_its_jitter(
    store: Store, clock: VirtualClock
) -> None:
    """S1."""
    options = Options(queue="mail", priority=fencepost.Priority.HIGH, max_attempts=3, tags=("a",), timeout_seconds=7)
    store.save_schedule(definition("s", Every(60 * SECOND), options=options, jitter=30 * SECOND))
    clock.advance(60)
    store.materialise_due()
    (row,) = rows(store)

    assert (row["queue"], row["priority"], row["max_attempts"], row["tags"]) == ("mail", "high", 3, '["a"]')
    assert row["trigger"] == "schedule"
    assert row["state"] == State.SCHEDULED
    assert clock.now() < row["wake_at"] <= clock.now() + 30 * SECOND
    clock.advance(30)
    promote_all(store)
    claim = claim_one(store)
    assert (claim.schedule, claim.scheduled_for, claim.timeout_seconds) == ("s", row["scheduled_for"], 7)


def test_a_schedule_is_planned_by_a_program_that_does_not_know_it(
    make_program: Callable[..., Program], store: Store, clock: VirtualClock
) -> None:
    """S1."""
    make_program("a", hourly={"every": 3600}).starts()
    other = make_program("b", daily={"every": 86400})
    other.starts()
    clock.advance(3600)
    housekeep(other.app.store, reclaims=False)

    (row,) = rows(store)
    assert (row["schedule"], row["kind"], row["state"]) == ("hourly", "a.report", State.READY)


# S2: the cursor moves by compare-and-set


def test_a_second_plan_from_the_same_cursor_writes_nothing(store: Store, clock: VirtualClock) -> None:
    """S2. So does the repetition of a commit whose answer was lost."""
    store.save_schedule(definition("s"))
    clock.advance(5)
    (row,) = due(store)
    assert materialise(store, row) == 5
    made, planned = rows(store), stored(store, "s")

    clock.advance(1)
    assert materialise(store, row) == 0

    assert (rows(store), stored(store, "s")) == (made, planned)


@pytest.mark.parametrize(
    "happens",
    [
        lambda store: store.pause_schedule("s"),
        lambda store: store.delete_schedule("s"),
        lambda store: store.save_schedule(definition("s", Every(2 * SECOND))),
        lambda store: store.save_schedule(definition("s", misfire=Misfire.SKIP)),
        lambda store: (store.pause_schedule("s"), store.resume_schedule("s")),
    ],
    ids=["paused", "deleted", "other timing", "other policy", "paused and resumed"],
)
def test_a_plan_from_before_a_change_writes_nothing(
    store: Store, clock: VirtualClock, happens: Callable[[Store], object]
) -> None:
    """S2."""
    store.save_schedule(definition("s"))
    clock.advance(5)
    (row,) = due(store)
    happens(store)
    after = (rows(store), store.list_schedules())

    assert materialise(store, row) == 0
    assert (rows(store), store.list_schedules()) == after


# S3: a change starts from now


def test_changing_a_schedule_sets_its_cursor_anew_and_ends_its_pause_in_one_write(
    store: Store, clock: VirtualClock
) -> None:
    """S3."""
    store.save_schedule(definition("s", Every(60 * SECOND)))
    store.pause_schedule("s")
    clock.advance(1000)
    with statements(store) as sent:
        assert store.save_schedule(definition("s", Every(30 * SECOND))) is Saved.CHANGED
    row = stored(store, "s")

    assert len([statement for statement in sent if statement.startswith("UPDATE")]) == 1
    assert (row["paused_at"], row["paused_reason"]) == (None, None)
    assert row["next_fire_at"] == clock.now() // (30 * SECOND) * 30 * SECOND + 30 * SECOND
    assert store.materialise_due() == 0


def test_resuming_a_schedule_sets_its_cursor_anew_and_ends_its_pause_in_one_write(
    store: Store, clock: VirtualClock
) -> None:
    """S3. What passed during the pause is not missed: it was meant not to run."""
    store.save_schedule(definition("s", misfire=Misfire.CATCH_UP))
    assert store.pause_schedule("s")
    assert not store.pause_schedule("s")
    clock.advance(1000)
    with statements(store) as sent:
        assert store.resume_schedule("s")
    assert not store.resume_schedule("s")

    assert len([statement for statement in sent if statement.startswith("UPDATE")]) == 1
    assert stored(store, "s")["next_fire_at"] == clock.now() + SECOND
    clock.advance(1)
    plan_all(store)
    assert instants(store, "s") == [clock.now()]


def test_saving_the_same_definition_moves_nothing(store: Store, clock: VirtualClock) -> None:
    """S3."""
    assert store.save_schedule(definition("s")) is Saved.CREATED
    clock.advance(100)
    before = stored(store, "s")

    assert store.save_schedule(definition("s")) is Saved.UNCHANGED
    assert stored(store, "s") == before


def test_a_pause_by_an_operator_outlasts_a_restart_of_the_program(
    make_program: Callable[..., Program], clock: VirtualClock
) -> None:
    """S3, S13."""
    first = make_program(hourly={"every": 3600})
    first.starts()
    first.app.schedules.pause("hourly")
    clock.advance(7200)

    assert make_program(hourly={"every": 3600}).starts() == {"hourly": Saved.UNCHANGED}
    found = first.app.schedules.get("hourly")
    assert (found.paused_reason, found.next_fire_at) == ("operator", None)


# S4: the database's clock


def test_planning_uses_the_databases_clock_alone(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4. This process's clock is some years ahead."""
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    monkeypatch.setattr("time.time_ns", lambda: 4_000_000_000 * 10**9)
    start = clock.now()
    store.save_schedule(definition("s"))
    assert store.materialise_due() == 0
    clock.advance(2)
    store.materialise_due()
    store.trigger_schedule("s")
    store.pause_schedule("s")
    store.resume_schedule("s")
    row = stored(store, "s")

    # The moment that was asked for has its occurrence already, so the next free microsecond serves.
    assert instants(store, "s") == [start + SECOND, start + 2 * SECOND, start + 2 * SECOND + 1]
    assert (row["created_at"], row["next_fire_at"]) == (start, start + 3 * SECOND)
    assert {job["created_at"] for job in rows(store)} == {clock.now()}


def test_a_server_plans_by_its_own_clock_whatever_the_host_says(
    url: URL, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4. On SQLite the host's clock is the database's: all processes that can open the file share it."""
    with closing(Store(Database(url), migrates=False)) as store:
        before = store.now()
        shift = 0 if database_name == "sqlite" else 10**9
        real = __import__("time").time_ns
        monkeypatch.setattr("time.time_ns", lambda: real() + shift * 10**9)
        store.save_schedule(definition("s", Every(3600 * SECOND)))
        monkeypatch.undo()
        cursor = stored(store, "s")["next_fire_at"]

        assert before < cursor <= store.now() + 3600 * SECOND


def test_a_clock_that_is_set_back_makes_no_instant_twice(store: Store, clock: VirtualClock) -> None:
    """S1, S4."""
    store.save_schedule(definition("s"))
    start = clock.now()
    clock.advance(5)
    store.materialise_due()
    clock.set_back(4)
    assert store.materialise_due() == 0
    store.pause_schedule("s")
    store.resume_schedule("s")  # the cursor stands on instants that were made already
    clock.advance(6)
    plan_all(store)

    assert instants(store, "s") == [start + n * SECOND for n in range(1, 8)]


# S5: instants that were missed


def _after_six_hours_down(program: Program, clock: VirtualClock, **asked: Any) -> list[Job]:
    clock.advance(12 * 3600)
    program.declare("five", "*/5 * * * *", **asked)
    program.starts()
    clock.advance(6 * 3600 + 30)
    plan_all(program.app.store)
    return program.app.schedules.occurrences("five", limit=1000)


@pytest.mark.parametrize(("asked", "run"), [({}, 1), ({"misfire": "skip", "grace": 1}, 0)], ids=["latest", "skip"])
def test_missed_instants_are_summarised_in_one_skipped_row(
    program: Program, clock: VirtualClock, asked: dict[str, Any], run: int
) -> None:
    """S5."""
    occurrences = _after_six_hours_down(program, clock, **asked)
    summary = occurrences[-1]
    last = START + timedelta(hours=18, minutes=-5 * run)

    assert [job.state for job in occurrences] == [State.READY] * run + [State.SKIPPED]
    assert [job.scheduled_for for job in occurrences[:run]] == [START + timedelta(hours=18)] * run
    whole = program.app.jobs.get(summary.id)
    assert (whole.reason, whole.scheduled_for, whole.attempts) == (Reason.MISFIRE, last, 0)
    assert whole.result == {
        "missed": 72 - run,
        "first": "2026-01-01T12:05:00Z",
        "last": f"{last:%Y-%m-%dT%H:%M:%SZ}",
    }
    assert whole.last_error is not None
    assert whole.last_error.startswith(f"{72 - run} instants from 2026-01-01T12:05:00Z to ")
    assert whole.finished_at == START + timedelta(hours=18, seconds=30)
    assert program.app.schedules.get("five").next_fire_at == START + timedelta(hours=18, minutes=5)


def test_catching_up_runs_all_missed_instants_in_order_and_restarts_add_nothing(
    program: Program, clock: VirtualClock
) -> None:
    """S5, S1."""
    occurrences = _after_six_hours_down(program, clock, misfire="catch_up")
    for _ in range(2):
        program.starts()
        plan_all(program.app.store)
    claims = program.app.store.claim("me", kinds=[program.report.kind], limit=100)

    expected = [START + timedelta(hours=12, minutes=5 * n) for n in range(1, 73)]
    assert [job.scheduled_for for job in reversed(occurrences)] == expected
    ran = [claim.scheduled_for for claim in claims]
    assert ran == sorted(ran, key=lambda instant: instant or 0)
    assert len(ran) == 72


def test_catching_up_is_bounded_and_the_rest_is_summarised(program: Program, clock: VirtualClock) -> None:
    """S5."""
    occurrences = _after_six_hours_down(program, clock, misfire="catch_up", max_catch_up=10, grace=0)

    assert [job.state for job in occurrences] == [State.READY] * 10 + [State.SKIPPED]
    assert program.app.jobs.get(occurrences[-1].id).result["missed"] == 62


def test_a_day_of_seconds_costs_one_row(store: Store, clock: VirtualClock) -> None:
    """S5."""
    store.save_schedule(definition("s", misfire=Misfire.SKIP, grace=0))
    clock.advance(86_400.5)
    with statements(store) as sent:
        store.materialise_due()

    assert [row["state"] for row in rows(store)] == [State.SKIPPED]
    assert len(sent) < 10


def test_a_schedule_ends_at_until_and_at_max_runs(program: Program, clock: VirtualClock) -> None:
    """S5."""
    schedules_ = program.app.schedules
    schedules_.upsert("until", program.report, every=1, until=START + timedelta(seconds=3))
    schedules_.upsert("runs", program.report, every=1, max_runs=2)
    schedules_.upsert("once", program.report, at=START + timedelta(seconds=5))
    for _ in range(10):
        clock.advance(1)
        plan_all(program.app.store)

    made = {
        name: [job.scheduled_for for job in reversed(schedules_.occurrences(name))]
        for name in ("until", "runs", "once")
    }
    assert made == {"until": seconds(1, 2, 3), "runs": seconds(1, 2), "once": seconds(5)}
    assert {found.next_fire_at for found in schedules_.list()} == {None}
    assert schedules_.get("runs").runs == 2


# S9: an error is never "nothing due"


@contextmanager
def _out_of_reach(url: URL, database_name: str) -> Iterator[Store]:
    """A store whose database does not answer; on SQLite, one that another process keeps locked."""
    if database_name == "sqlite":
        engine = create_engine(url)
        with engine.connect() as conn:
            conn.exec_driver_sql("PRAGMA locking_mode=EXCLUSIVE")
            conn.exec_driver_sql("BEGIN EXCLUSIVE")
            with closing(Store(Database(url, busy_timeout=0.05, patience=0.1), migrates=False)) as store:
                store._schema_checked = True
                yield store
            conn.exec_driver_sql("ROLLBACK")
        engine.dispose()
        return
    with closing(Store(Database(url.set(port=1), patience=0.1), migrates=False)) as store:
        store._schema_checked = True
        yield store


def test_a_database_out_of_reach_is_an_error_and_never_nothing_due(
    url: URL, database_name: str, store: Store, clock: VirtualClock
) -> None:
    """S9."""
    store.save_schedule(definition("s"))
    clock.advance(5)
    (row,) = due(store)
    store.close()
    with _out_of_reach(url, database_name) as unreachable:
        asks: list[Callable[[], object]] = [lambda: materialise(unreachable, row)]
        if database_name != "sqlite":  # there, readers wait for no writer
            asks += [
                unreachable.materialise_due,
                unreachable.next_plan_at,
                unreachable.list_schedules,
                lambda: housekeep(unreachable, reclaims=True),
                lambda: seconds_until_next(unreachable),
            ]
        for ask in asks:
            with pytest.raises(StoreUnavailable):
                ask()

    assert rows(store) == []
    store.materialise_due()
    assert len(rows(store)) == 5


# S10: trigger, backfill, retry


def _ran(store: Store, settle: Callable[[Any], bool]) -> str:
    claim = claim_one(store)
    assert settle(claim)
    return claim.id


def test_retrying_a_failed_occurrence_keeps_its_id_and_its_instant(store: Store, clock: VirtualClock) -> None:
    """S10."""
    store.save_schedule(definition("s"))
    clock.advance(1)
    store.materialise_due()
    instant = clock.now()
    job_id = _ran(store, lambda claim: store.abandon(claim, "no"))
    clock.advance(1000)

    assert store.retry_job(job_id).id == job_id
    again = claim_one(store)
    assert (again.id, again.schedule, again.scheduled_for) == (job_id, "s", instant)
    assert store.complete(again)
    with pytest.raises(InvalidTransition):
        store.retry_job(job_id)
    assert instants(store, "s") == [instant]


def test_retrying_a_skipped_occurrence_keeps_its_id_and_its_instant(store: Store, clock: VirtualClock) -> None:
    """S10. The summary of missed instants runs for the last of them."""
    store.save_schedule(definition("s", misfire=Misfire.SKIP, grace=0))
    clock.advance(10)
    clock.advance(0.5)
    store.materialise_due()
    (skipped,) = rows(store)

    store.retry_job(skipped["id"])
    claim = claim_one(store)
    assert (claim.id, claim.scheduled_for) == (skipped["id"], skipped["scheduled_for"])
    assert store.complete(claim)


def test_retrying_an_occurrence_that_is_not_there_says_so(app: fencepost.App) -> None:
    """S10."""
    with pytest.raises(JobNotFound):
        app.jobs.retry(new_id())


def test_a_trigger_makes_an_occurrence_of_its_own_and_moves_no_cursor(program: Program, clock: VirtualClock) -> None:
    """S10."""
    schedules_ = program.app.schedules
    before = schedules_.upsert("s", program.report, every=60, jitter=50, arguments={"day": 1})
    schedules_.pause("s")
    first = schedules_.trigger("s").job()
    second = schedules_.trigger("s", {"day": 2}).job()
    schedules_.resume("s")

    assert (first.trigger, first.scheduled_for, first.state, first.arguments) == ("manual", START, "ready", {"day": 1})
    assert second.scheduled_for == START + timedelta(microseconds=1)
    assert second.arguments == {"day": 2}
    after = schedules_.get("s")
    assert (after.next_fire_at, after.runs) == (before.next_fire_at, 0)


def test_triggers_at_the_same_time_make_an_occurrence_each(store: Store, clock: VirtualClock) -> None:
    """S10, S1."""
    store.save_schedule(definition("s", Every(60 * SECOND)))
    with other_stores(store, 4) as others:
        results = at_once([lambda other=other: other.trigger_schedule("s") for other in others])  # type: ignore[misc]

    assert sorted(result.id for result in results) == sorted(row["id"] for row in rows(store))
    assert instants(store, "s") == [clock.now() + n for n in range(4)]


def test_a_trigger_whose_commit_was_reported_as_lost_makes_one_occurrence(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10, L3."""
    store.save_schedule(definition("s", Every(60 * SECOND)))
    lost = lose_one_commit(store, monkeypatch)
    result = store.trigger_schedule("s")

    assert lost
    assert [row["id"] for row in rows(store)] == [result.id]


def test_a_backfill_makes_what_is_not_there_and_a_second_one_nothing(program: Program, clock: VirtualClock) -> None:
    """S10."""
    schedules_ = program.app.schedules
    clock.advance(2)
    schedules_.upsert("s", program.report, every=1)
    clock.advance(2)
    plan_all(program.app.store)
    first, last = START, START + timedelta(seconds=4)

    made = [handle.job() for handle in schedules_.backfill("s", first, last)]
    assert [job.scheduled_for for job in made] == seconds(0, 1, 2)
    assert {job.trigger for job in made} == {"backfill"}
    assert schedules_.backfill("s", first, last) == []
    assert [job.scheduled_for for job in schedules_.occurrences("s")] == seconds(4, 3, 2, 1, 0)
    assert schedules_.get("s").runs == 2


def test_backfills_at_the_same_time_make_one_occurrence_an_instant(store: Store, clock: VirtualClock) -> None:
    """S10, S1."""
    store.save_schedule(definition("s"))
    last = clock.now()
    first = last - 299 * SECOND
    with other_stores(store, 3) as others:
        made = at_once(
            [lambda other=other: other.backfill_schedule("s", first, last) for other in others]  # type: ignore[misc]
        )

    assert instants(store, "s") == [first + n * SECOND for n in range(300)]
    assert sorted(job_id for ids in made for job_id in ids) == sorted(row["id"] for row in rows(store))


def test_a_backfill_that_cannot_be_is_refused_and_nothing_is_made(
    program: Program, store: Store, clock: VirtualClock
) -> None:
    """S10."""
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=1)

    for first, last, why in [
        (START, START + timedelta(seconds=1), "future"),
        (START - timedelta(seconds=1000), START, "1,000"),
        (START.replace(tzinfo=None), START, "first"),
    ]:
        with pytest.raises(ConfigurationError, match=why):
            schedules_.backfill("s", first, last)
    assert schedules_.backfill("s", START, START - timedelta(seconds=1)) == []
    assert rows(store) == []


def test_a_schedule_that_is_not_there_is_an_error_for_whatever_is_asked(program: Program) -> None:
    """S10."""
    schedules_ = program.app.schedules
    asks: list[Callable[[], object]] = [
        lambda: schedules_.get("none"),
        lambda: schedules_.pause("none"),
        lambda: schedules_.resume("none"),
        lambda: schedules_.trigger("none"),
        lambda: schedules_.trigger("none", {"day": 1}),
        lambda: schedules_.backfill("none", START, START),
        lambda: schedules_.delete("none"),
        lambda: schedules_.preview("none"),
    ]
    for ask in asks:
        with pytest.raises(ScheduleNotFound, match="none"):
            ask()
    assert schedules_.occurrences("none") == []


# S12: previews are what fires


@pytest.mark.parametrize(
    ("asked", "start"),
    [
        ({"cron": "30 2 * * *", "timezone": "America/New_York"}, datetime(2026, 3, 6, tzinfo=UTC)),
        ({"cron": "0,15,30,45 6-22 * * *", "timezone": "Europe/Brussels"}, datetime(2026, 10, 24, 20, tzinfo=UTC)),
        ({"cron": "45 * * * *", "timezone": "Australia/Lord_Howe"}, datetime(2026, 4, 4, 12, tzinfo=UTC)),
        ({"every": "25m", "anchor": datetime(2026, 1, 1, 0, 7, tzinfo=UTC)}, datetime(2026, 1, 1, 3, tzinfo=UTC)),
    ],
    ids=["gap", "repeated", "half an hour", "anchored"],
)
def test_what_fires_is_what_was_previewed(url: URL, asked: dict[str, Any], start: datetime) -> None:
    """S12."""
    clock = VirtualClock(start)
    program = Program(url, clock)
    with closing(program.app):
        schedules_ = program.app.schedules
        schedules_.upsert("s", program.report, **asked)
        previewed = [moment.astimezone(UTC) for moment in schedules_.preview(**asked, count=8)]
        assert [moment.astimezone(UTC) for moment in schedules_.preview("s", count=8)] == previewed
        for _ in range(8):
            found = schedules_.get("s").next_fire_at
            assert found is not None
            clock.advance((found - datetime.fromtimestamp(clock.now() / SECOND, UTC)).total_seconds())
            plan_all(program.app.store)
        fired = [job.scheduled_for for job in reversed(schedules_.occurrences("s"))]

    assert fired == previewed
    assert all(earlier < later for earlier, later in pairwise(previewed))


# S13: pausing, deleting, vanishing


def test_pausing_keeps_history_and_stops_new_occurrences(program: Program, clock: VirtualClock) -> None:
    """S13."""
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=1)
    clock.advance(3)
    plan_all(program.app.store)
    assert schedules_.pause("s")
    clock.advance(100)
    plan_all(program.app.store)

    found = schedules_.get("s")
    assert (found.next_fire_at, found.paused_reason, found.paused_at) == (
        None,
        "operator",
        START + timedelta(seconds=3),
    )
    assert [job.scheduled_for for job in schedules_.occurrences("s")] == seconds(3, 2, 1)


def test_deleting_removes_the_cursor_and_keeps_the_occurrences(program: Program, clock: VirtualClock) -> None:
    """S13."""
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=1)
    clock.advance(3)
    plan_all(program.app.store)
    schedules_.delete("s")
    clock.advance(2)
    plan_all(program.app.store)

    assert schedules_.list() == []
    assert len(schedules_.occurrences("s")) == 3
    # One of that name that is made anew starts from now.
    schedules_.upsert("s", program.report, every=1)
    clock.advance(1)
    plan_all(program.app.store)
    assert [job.scheduled_for for job in schedules_.occurrences("s")] == seconds(6, 3, 2, 1)


def test_a_schedule_that_vanished_from_its_module_is_paused_and_others_are_left_alone(
    make_program: Callable[..., Program], clock: VirtualClock
) -> None:
    """S13."""
    make_program(kept={"every": 60}, gone={"every": 60}).starts()
    make_program("billing", other={"every": 60}).starts()
    later = make_program(kept={"every": 60})
    later.app.schedules.upsert("by hand", later.report, every=60)
    later.starts()

    paused = {found.name: found.paused_reason for found in later.app.schedules.list()}
    assert paused == {"by hand": None, "gone": "undeclared", "kept": None, "other": None}
    make_program("billing", other={"every": 60}).starts()
    assert later.app.schedules.get("gone").declared_in == "reports"


def test_a_schedule_that_is_declared_again_fires_again(
    make_program: Callable[..., Program], clock: VirtualClock
) -> None:
    """S13, S3."""
    make_program(s={"every": 60}).starts()
    make_program().starts()
    clock.advance(2 * 3600)
    again = make_program(s={"every": 60})

    assert again.starts() == {"s": Saved.CHANGED}
    found = again.app.schedules.get("s")
    assert (found.paused_at, found.next_fire_at) == (None, START + timedelta(seconds=7260))


def test_an_operator_can_resume_what_vanished(make_program: Callable[..., Program], clock: VirtualClock) -> None:
    """S13."""
    make_program(s={"every": 60}).starts()
    without = make_program()
    without.starts()

    assert without.app.schedules.resume("s")
    clock.advance(60)
    plan_all(without.app.store)
    assert len(without.app.schedules.occurrences("s")) == 1


def test_two_scripts_on_one_database_leave_each_others_schedules_alone(url: URL, store: Store, tmp_path: Path) -> None:
    """S13. Each is `__main__` while it runs."""
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(
            "import fencepost, sys\n"
            "app = fencepost.App(sys.argv[1])\n"
            f"@app.schedule('0 0 1 1 *', name='{name}')\n"
            "@app.job\n"
            "def report() -> None: ...\n"
            "app.schedules.sync()\n"
        )
        subprocess.run(
            [sys.executable, str(tmp_path / f"{name}.py"), url.render_as_string(hide_password=False)],
            check=True,
            timeout=60,
        )

    assert {found.name: found.paused_reason for found in store.list_schedules()} == {"first": None, "second": None}
    assert {found.name: found.declared_in for found in store.list_schedules()} == {
        "first": "first",
        "second": "second",
    }


# Rolling deploys: two definitions side by side


def test_old_and_new_processes_side_by_side_settle_on_the_newer_definition(
    make_program: Callable[..., Program], clock: VirtualClock
) -> None:
    """S2, S3."""
    old, new = make_program(s={"every": 60}), make_program(s={"every": 90})
    assert old.starts() == {"s": Saved.CREATED}
    assert new.starts() == {"s": Saved.CHANGED}
    for _ in range(3):
        clock.advance(600)
        assert old.starts() == {"s": Saved.OUTRANKED}
        assert new.starts() == {"s": Saved.UNCHANGED}
    assert new.app.schedules.get("s").every == 90

    # Long after the deploy, going back is a change like any other.
    clock.advance(3600)
    assert old.starts() == {"s": Saved.CHANGED}
    assert new.starts() == {"s": Saved.OUTRANKED}


def test_a_higher_version_wins_whoever_starts_first(make_program: Callable[..., Program]) -> None:
    """S3."""
    low, high = make_program(s={"every": 60, "version": 1}), make_program(s={"every": 90, "version": 2})

    assert high.starts() == {"s": Saved.CREATED}
    assert low.starts() == {"s": Saved.OUTRANKED}
    assert high.starts() == {"s": Saved.UNCHANGED}
    back = make_program(s={"every": 60, "version": 3})  # at once, though it was replaced just now
    assert back.starts() == {"s": Saved.CHANGED}
    assert high.starts() == {"s": Saved.OUTRANKED}
    assert back.app.schedules.get("s").every == 60


def test_many_processes_that_start_at_once_settle_on_one_definition(
    make_program: Callable[..., Program], store: Store
) -> None:
    """S2, S3."""
    programs = [make_program(s={"every": 60 + 30 * (n % 2)}, t={"every": 60}) for n in range(6)]
    outcomes = at_once([program.starts for program in programs])

    for _ in range(2):
        for program in programs:
            program.starts()
    settled = stored(store, "s")
    for program in programs:
        program.starts()
    assert stored(store, "s") == settled
    assert [outcome["t"] for outcome in outcomes].count(Saved.CREATED) >= 1
    assert {outcome["t"] for outcome in outcomes} <= {Saved.CREATED, Saved.UNCHANGED}


def test_a_definition_made_at_run_time_may_go_back_and_forth(program: Program) -> None:
    """S3."""
    for every in (60, 90, 60, 90):
        assert program.app.schedules.upsert("s", program.report, every=every).every == every


# L6: what cannot be decoded


@pytest.mark.parametrize(
    "damage",
    [
        {"timing": '{"lunar": 1}'},
        {"timing": '{"at": "soon"}'},
        {"timing": '{"every": "1h", "anchor": 0}'},
        {"timing": '{"every": 1000000, "anchor": null}'},
        {"timing": '{"every": 0, "anchor": 0}'},
        {"timing": '{"cron": "0 0 30 2 *", "timezone": "UTC"}'},
        {"timing": '{"cron": "0 0 * * *", "timezone": "Mars/Olympus"}'},
        {"timing": '{"cron": 5, "timezone": "UTC"}'},
        {"timing": "[]"},
        {"timing": "{"},
        {"options": '{"gravity": 9.81}'},
        {"options": '{"priority": "sublime"}'},
        {"options": '{"max_attempts": "many"}'},
        {"options": "[]"},
        {"misfire": "shrug"},
    ],
    ids=str,
)
def test_a_schedule_that_cannot_be_decoded_stays_is_not_planned_and_is_reported(
    store: Store, clock: VirtualClock, damage: dict[str, str]
) -> None:
    """L6."""
    store.save_schedule(definition("bad"))
    store.save_schedule(definition("good"))
    before = stored(store, "bad")
    overwrite(store, "bad", **damage)
    for _ in range(3):
        clock.advance(1)
        housekeep(store, reclaims=False)
    bad = stored(store, "bad")
    shown = store.get_schedule("bad")

    assert len(instants(store, "good")) == 3
    assert instants(store, "bad") == []
    assert bad["next_fire_at"] == before["next_fire_at"]
    assert shown is not None
    assert shown.error is not None
    assert "cannot be decoded" in shown.error
    assert store.recheck_schedules() == ["bad"]
    assert store.next_plan_at() == stored(store, "good")["next_fire_at"]

    # A version that can decode it plans it again, from where it stood.
    overwrite(store, "bad", **{column: before[column] for column in damage})
    assert store.recheck_schedules() == []
    clock.advance(1)
    plan_all(store)
    assert instants(store, "bad") == instants(store, "good")


def test_an_undecodable_schedule_is_an_error_for_who_acts_on_it_and_can_be_saved_anew(
    store: Store, clock: VirtualClock
) -> None:
    """L6."""
    store.save_schedule(definition("s"))
    overwrite(store, "s", timing='{"lunar": 1}')
    store.pause_schedule("s")
    for act in (store.resume_schedule, store.trigger_schedule):
        with pytest.raises(ConfigurationError, match="cannot be decoded"):
            act("s")
    store.save_schedule(definition("s", Every(2 * SECOND)))

    found = store.get_schedule("s")
    assert found is not None
    assert (found.error, found.paused_at, found.every) == (None, None, 2.0)


def test_an_occurrence_outlives_a_schedule_that_is_edited_or_deleted_while_it_runs(
    store: Store, clock: VirtualClock
) -> None:
    """S13, J5."""
    store.save_schedule(definition("s"))
    clock.advance(2)
    store.materialise_due()
    first, second = store.claim("me", kinds=["k"], limit=2)
    store.save_schedule(definition("s", Every(7 * SECOND)))
    assert store.complete(first)
    store.delete_schedule("s")
    assert store.retry(second, "no", after=0)
    clock.advance(1)
    promote_all(store)
    assert store.complete(claim_one(store))

    assert [row["state"] for row in rows(store)] == [State.SUCCEEDED] * 2


# What is checked when a schedule is saved


@pytest.mark.parametrize(
    "asked",
    [
        {"every": 60, "arguments": {"nights": 1}},
        {"every": 60, "arguments": {"day": "not a number"}},
        {"every": 60, "arguments": {"day": 1, "hour": 2}},
        {"every": 60, "cron": "* * * * *"},
        {},
        {"cron": "0 0 30 2 *"},
        {"cron": "* * * *"},
        {"cron": "0 0 * * *", "timezone": "europe/berlin"},
        {"cron": "0 0 * * *", "timezone": "EST"},
        {"every": 0.5},
        {"every": "soon"},
        {"at": datetime(2025, 1, 1, tzinfo=UTC)},
        {"at": datetime(2027, 1, 1)},  # noqa: DTZ001 - the point of it
        {"every": 60, "misfire": "shrug"},
        {"every": 60, "max_catch_up": 0},
        {"every": 60, "max_catch_up": 10_001},
        {"every": 60, "max_runs": 0},
        {"every": 60, "grace": -1},
        {"every": 60, "options": {"key": "k"}},
        {"every": 60, "options": {"gravity": 9.81}},
        {"every": 60, "options": None},
        {"every": 60, "arguments": [1]},
        {"every": 60, "time_zone": "UTC"},
        {"every": 60, "overlaps": "skip"},
        {"cron": 5},
        {"cron": "0 0 * * *", "timezone": None},
        {"every": 60, "timezone": 5},
        {"every": 60, "max_runs": "3"},
        {"every": 60, "max_runs": 1.5},
        {"every": 60, "max_runs": True},
        {"every": 60, "max_runs": 2**31},
        {"every": 60, "max_catch_up": 2.5},
        {"every": 60, "version": 2**31},
        {"every": 60, "overlap": "skip", "slots": None},
        {"every": 60, "overlap": "skip", "key": "schedule:kept"},
        {"every": 60, "options": {"concurrency": "schedule:kept"}},
        {"every": 60, "misfire": "skip", "grace": 0},
        {"at": datetime(9999, 12, 31, 23, tzinfo=ZoneInfo("America/New_York"))},
        {"every": 60, "until": datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_when_it_is_saved_and_nothing_is_stored(
    program: Program, asked: dict[str, Any]
) -> None:
    """S12, S13."""
    kept = program.app.schedules.upsert("kept", program.report, every=60)

    for name in ("s", "kept"):
        with pytest.raises((ConfigurationError, ArgumentsError)):
            program.app.schedules.upsert(name, program.report, **asked)
    assert program.app.schedules.list() == [kept]


@pytest.mark.parametrize(
    "name",
    [
        "'; DROP TABLE fencepost_jobs; --",
        '"quoted" `ticked` \\ back',
        "100 %s %(name)s :name ?",
        "<script>alert(1)</script>",
        "\N{SNOWMAN} \N{PILE OF POO} \u202eright to left",
        "n" * 200,
        "\N{PILE OF POO}" * 200,
        "../../etc/passwd",
        "null",
    ],
)
def test_a_name_is_only_a_name(program: Program, clock: VirtualClock, name: str) -> None:
    schedules_ = program.app.schedules
    schedules_.upsert(name, program.report, every=1)
    clock.advance(1)
    plan_all(program.app.store)
    schedules_.trigger(name)
    schedules_.pause(name)
    schedules_.resume(name)

    assert [found.name for found in schedules_.list()] == [name]
    assert [job.schedule for job in schedules_.occurrences(name)] == [name, name]
    schedules_.delete(name)
    assert schedules_.list() == []


@pytest.mark.parametrize("name", ["", " s", "s ", "a\0b", "a\nb", "\ud800", "n" * 201])
def test_a_name_that_not_every_database_keeps_is_refused(program: Program, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a schedule's name"):
        program.app.schedules.upsert(name, program.report, every=1)


def test_names_that_differ_a_little_are_different_schedules(program: Program, clock: VirtualClock) -> None:
    schedules_ = program.app.schedules
    names = ["nightly", "Nightly", "nightl\N{LATIN SMALL LETTER Y WITH ACUTE}", "nightl\u0079\u0301", "nightly."]
    for name in names:
        schedules_.upsert(name, program.report, every=1)
    clock.advance(1)
    plan_all(program.app.store)

    assert sorted(found.name for found in schedules_.list()) == sorted(names)
    assert [len(schedules_.occurrences(name)) for name in names] == [1] * 5


# Occurrences listed


def test_occurrences_are_listed_newest_first_in_pages_that_new_ones_do_not_shift(
    program: Program, clock: VirtualClock
) -> None:
    schedules_ = program.app.schedules
    for name in ("a", "b", "c"):  # each instant three times: the id decides among equals
        schedules_.upsert(name, program.report, every=1)
    clock.advance(10)
    plan_all(program.app.store)
    everything = schedules_.occurrences(limit=1000)
    pages: list[Job] = []
    before: Job | None = None
    while page := schedules_.occurrences(before=before, limit=4):
        assert len(page) <= 4
        pages += page
        before = page[-1]
        schedules_.trigger("a")

    assert len(everything) == 30
    assert [job.id for job in pages] == [job.id for job in everything]
    keys = [(job.scheduled_for or START, job.id) for job in everything]
    assert keys == sorted(keys, reverse=True)
    assert {(job.arguments, job.result) for job in everything} == {(None, None)}


def test_occurrences_are_filtered_by_schedule_state_trigger_and_window(program: Program, clock: VirtualClock) -> None:
    schedules_, store = program.app.schedules, program.app.store
    schedules_.upsert("a", program.report, every=1)
    schedules_.upsert("b", program.report, every=2)
    clock.advance(6)
    plan_all(store)
    schedules_.trigger("b")
    for claim in store.claim("me", kinds=[program.report.kind], limit=3):
        store.complete(claim)
    program.report.enqueue()  # no occurrence of anything

    def found(**filters: Any) -> list[tuple[str | None, datetime | None]]:
        return [(job.schedule, job.scheduled_for) for job in schedules_.occurrences(**filters)]

    assert len(found()) == 10
    assert found(name="a") == [("a", instant) for instant in seconds(6, 5, 4, 3, 2, 1)]
    assert found(name="b", trigger="manual") == [("b", START + timedelta(seconds=6, microseconds=1))]
    assert found(name="a", since=seconds(2)[0], until=seconds(4)[0]) == [("a", at) for at in seconds(4, 3, 2)]
    assert len(found(state="succeeded")) == 3
    assert sorted(found(state=["ready", "succeeded"])) == sorted(found())
    assert found(state="failed") == []
    assert found(since=seconds(100)[0]) == []


def test_a_question_for_occurrences_that_cannot_be_is_refused(program: Program) -> None:
    job = program.report.enqueue().job()
    wrong: list[dict[str, Any]] = [
        {"state": "sleeping"},
        {"limit": 0},
        {"limit": 1001},
        {"before": job},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - the point of it
    ]
    for asked in wrong:
        with pytest.raises(ConfigurationError):
            program.app.schedules.occurrences(**asked)


# With a worker


def test_a_worker_brings_the_database_in_step_when_it_starts_and_runs_what_is_due(
    url: URL, clock: VirtualClock
) -> None:
    """S1, S13."""
    ran: list[tuple[datetime | None, datetime | None]] = []
    lock = threading.Lock()
    with closing(fencepost.App(url, clock=clock)) as app:

        @app.schedule("*/5 * * * *", name="five")
        @app.job(kind="report")
        def report(ctx: fencepost.JobContext) -> None:
            with lock:
                ran.append((ctx.scheduled_for, ctx.previous_success))

        app.run_worker(burst=True)
        assert ran == []
        for _ in range(3):
            clock.advance(300)
            app.run_worker(burst=True)

    fired = [START + timedelta(minutes=minutes) for minutes in (5, 10, 15)]
    assert ran == list(zip(fired, [None, *fired], strict=False))


def test_a_schedules_final_occurrences_are_kept_by_number(app: fencepost.App) -> None:
    """S13, J10: the newest stay, and so does what waits; in bounded batches."""

    @app.job(kind="k")
    async def k() -> None: ...

    app.schedules.upsert("s", k, every=3600)
    now = datetime.now(UTC)
    app.schedules.backfill("s", now - timedelta(hours=10), now)
    app.run_worker(burst=True)
    waiting = k.using(delay=60).enqueue()
    assert app.store.delete_occurrences("s", keep=8, batch=1) == 2
    assert app.schedules.prune("s", keep=3) == 5
    left = [found.scheduled_for for found in app.schedules.occurrences("s")]
    assert len(left) == 3
    assert all(instant is not None and instant > now - timedelta(hours=3, seconds=1) for instant in left)
    assert app.schedules.prune("s", keep=3) == 0
    with pytest.raises(fencepost.ScheduleNotFound):
        app.schedules.prune("nobody", keep=3)
    app.schedules.delete("s", occurrences=True)
    assert app.schedules.occurrences("s") == []
    assert waiting.job().state == "scheduled"


def test_deleting_a_schedule_keeps_its_occurrences_unless_they_are_meant(app: fencepost.App) -> None:
    """S13: the cursor goes, the history stays."""

    @app.job(kind="k")
    async def k() -> None: ...

    app.schedules.upsert("s", k, every=3600)
    handle = app.schedules.trigger("s")
    app.run_worker(burst=True)
    app.schedules.delete("s")
    assert [found.id for found in app.schedules.occurrences("s")] == [handle.id]


def test_health_says_what_doctor_says(app: fencepost.App) -> None:
    """S9: and a database that cannot be asked is a finding, not an answer of nothing."""

    @app.job(kind="k")
    async def k() -> None: ...

    app.schedules.upsert("s", k, every=3600)
    health = app.health()
    assert not health.is_well
    assert {finding.check for finding in health.findings if finding.level == "problem"} >= {"planner"}
    app.schedules.delete("s")
    assert app.health().is_well


def test_an_instant_that_has_its_occurrence_already_is_no_run_of_the_schedule(
    program: Program, clock: VirtualClock
) -> None:
    """S1: a changed schedule plans its second anew, and must not end a run early for it."""
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=1, max_runs=3)
    clock.advance(1)
    plan_all(program.app.store)
    overwrite(program.app.store, "s", next_fire_at=clock.now(), plan_at=clock.now(), runs=0)
    clock.advance(4)
    plan_all(program.app.store)
    assert [job.scheduled_for for job in schedules_.occurrences("s")] == seconds(4, 3, 2, 1)
    assert (schedules_.get("s").runs, schedules_.get("s").next_fire_at) == (3, None)


def test_what_was_missed_is_recorded_though_its_last_instant_has_an_occurrence(
    program: Program, clock: VirtualClock
) -> None:
    """S5."""
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=60, misfire="skip", grace=1)
    clock.advance(130)
    program.app.store.backfill_schedule("s", clock.now() - 11 * SECOND, clock.now())
    plan_all(program.app.store)
    missed = schedules_.occurrences("s", state="skipped")
    assert [(job.reason, job.scheduled_for) for job in missed] == [
        ("misfire", START + timedelta(seconds=120, microseconds=1))
    ]


def test_a_backfill_whose_commit_was_reported_as_lost_names_what_it_made(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10, L3."""
    store.save_schedule(definition("s", Every(60 * SECOND)))
    lost = lose_one_commit(store, monkeypatch)
    made = store.backfill_schedule("s", clock.now() - 180 * SECOND, clock.now())
    assert lost
    assert len(made) >= 3
    assert made == sorted(row["id"] for row in rows(store))


def test_a_schedule_that_ends_before_it_begins_is_refused(program: Program, clock: VirtualClock) -> None:
    """Nothing is stored."""
    with pytest.raises(fencepost.ConfigurationError, match="never fire: its first instant comes after until"):
        program.app.schedules.upsert("s", program.report, every=3600, until=START + timedelta(seconds=1))
    assert program.app.schedules.list() == []


# What passes between the planner's looks, and what no plan can be made of


@pytest.mark.parametrize(
    "happens",
    [
        lambda store: store.pause_schedule("s"),
        lambda store: store.save_schedule(definition("s", Every(7 * SECOND))),
        lambda store: store.pause_undeclared({"m"}, set()),
    ],
    ids=["paused", "changed", "undeclared"],
)
def test_what_had_passed_when_a_schedule_was_changed_or_paused_is_recorded(
    store: Store, clock: VirtualClock, happens: Callable[[Store], object]
) -> None:
    """S3, S5: in the same write; what follows at that instant adds nothing."""
    store.save_schedule(definition("s", declared_in="m"))
    clock.advance(5)
    happens(store)
    store.pause_schedule("s")
    store.resume_schedule("s")

    (summary,) = rows(store)
    assert (summary["state"], summary["reason"]) == (State.SKIPPED, Reason.MISFIRE)
    assert json.loads(summary["result"])["missed"] == 5


def test_a_pause_whose_commit_was_reported_as_lost_records_what_had_passed_once(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3."""
    store.save_schedule(definition("s"))
    clock.advance(5)
    lost = lose_one_commit(store, monkeypatch)
    store.pause_schedule("s")
    assert lost
    assert len(rows(store)) == 1


def test_a_summary_that_is_retried_by_hand_runs_as_its_occurrence_would(
    program: Program, clock: VirtualClock, store: Store
) -> None:
    """S5, S10: with its permit, tags, tenant and options."""
    program.app.schedules.upsert(
        "s",
        program.report,
        every=1,
        overlap="skip",
        arguments={"day": 3},
        options={"tags": ["nightly"], "tenant": "t", "timeout": 7, "priority": "high", "keep_result": False},
    )
    clock.advance(9)
    program.app.schedules.pause("s")
    (summary,) = program.app.schedules.occurrences("s")
    program.app.jobs.retry(summary.id)

    claim = claim_one(store, "reports.report")
    assert (claim.id, claim.tags, claim.tenant, claim.timeout_seconds) == (summary.id, ("nightly",), "t", 7)
    assert (claim.priority, claim.keep_result, json.loads(claim.arguments)) == ("high", False, {"day": 3})
    assert claim.concurrency is not None
    assert claim.fencing_token is not None


def test_a_fault_of_one_schedule_keeps_no_other_from_being_planned(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6."""
    store.save_schedule(definition("bad", max_catch_up=13))
    store.save_schedule(definition("good"))

    def plan(*asked: Any, max_catch_up: int, **more: Any) -> Any:
        if max_catch_up == 13:
            raise ZeroDivisionError("a fault\0")
        return plan_pass(*asked, max_catch_up=max_catch_up, **more)

    with monkeypatch.context() as patched:
        patched.setattr(statements_of, "plan_pass", plan)
        clock.advance(1)
        plan_all(store)
    bad = store.get_schedule("bad")
    assert bad is not None
    assert bad.error is not None
    assert "ZeroDivisionError" in bad.error
    assert [job["schedule"] for job in rows(store)] == ["good"]
    assert store.recheck_schedules() == []  # a worker's start
    plan_all(store)
    assert {job["schedule"] for job in rows(store)} == {"bad", "good"}


def test_an_error_of_the_database_is_not_taken_for_a_fault_of_the_schedule(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9."""
    store.save_schedule(definition("s"))
    clock.advance(1)

    def refused(*_: Any) -> int:
        raise exc.IntegrityError("INSERT", None, Exception("refused"))

    monkeypatch.setattr(statements_of, "materialise", refused)
    with pytest.raises(exc.IntegrityError):
        store.materialise_due()
    assert stored(store, "s")["error"] is None


def test_a_changed_timing_or_number_of_runs_counts_anew_and_other_changes_do_not(
    program: Program, clock: VirtualClock
) -> None:
    schedules_ = program.app.schedules

    def run(**asked: Any) -> int:
        before = len(schedules_.occurrences("s"))
        schedules_.upsert("s", program.report, **asked)
        for _ in range(4):
            clock.advance(2)
            plan_all(program.app.store)
        return len(schedules_.occurrences("s")) - before

    assert run(every=1, max_runs=2) == 2
    assert run(every=1, max_runs=2, jitter=1) == 0
    assert schedules_.get("s").next_fire_at is None
    assert run(every=1, max_runs=3) == 3
    assert run(every=2, max_runs=3) == 3
    schedules_.pause("s")
    assert schedules_.resume("s")
    assert schedules_.get("s").next_fire_at is None  # it is spent, and says so


def test_a_schedule_that_was_taken_out_of_the_code_comes_back_changed_at_once(
    make_program: Callable[..., Program], clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S13: only the same definition waits for the rolling deploy to be over, and the warning says that."""
    make_program(s={"every": 60}).starts()
    make_program().starts()
    clock.advance(600)

    assert make_program(s={"every": 60}).starts() == {"s": Saved.OUTRANKED}
    assert "stays paused" in caplog.text
    assert "newer definition" not in caplog.text
    assert make_program(s={"every": 90}).starts() == {"s": Saved.CHANGED}


def test_a_backfill_ends_where_the_schedule_does(program: Program, clock: VirtualClock) -> None:
    schedules_ = program.app.schedules
    schedules_.upsert("s", program.report, every=1, until=START + timedelta(seconds=3))
    clock.advance(10)
    with pytest.raises(ConfigurationError, match=r"after its until=2026-01-01T00:00:03Z"):
        schedules_.backfill("s", *seconds(2, 6))
    assert len(schedules_.backfill("s", *seconds(2, 3))) == 2


def test_a_row_with_an_instant_beyond_all_dates_is_shown_and_breaks_no_listing(
    program: Program, clock: VirtualClock, store: Store
) -> None:
    """L6."""
    program.app.schedules.upsert("s", program.report, every=1)
    clock.advance(1)
    plan_all(store)
    (job,) = rows(store)
    overwrite_job(store, str(job["id"]), run_at=2**62, deadline=-(2**62))
    overwrite(store, "s", until=2**62, next_fire_at=-(2**62))

    (found,) = program.app.schedules.list()
    assert found.until == datetime.max.replace(tzinfo=UTC)
    assert found.next_fire_at == datetime.min.replace(tzinfo=UTC)
    (shown,) = program.app.jobs.list()
    assert (shown.run_at, shown.deadline) == (found.until, found.next_fire_at)


@pytest.mark.parametrize("name", ["a\ud800", "a\0b", ""])
def test_a_name_that_no_schedule_can_have_is_not_there(program: Program, name: str) -> None:
    schedules_ = program.app.schedules
    for act in (schedules_.trigger, schedules_.get, schedules_.pause, schedules_.resume, schedules_.delete):
        with pytest.raises(ScheduleNotFound):
            act(name)


def test_a_declaration_with_a_keyword_that_there_is_not_is_refused_where_it_stands(program: Program) -> None:
    with pytest.raises(ConfigurationError, match=r"no time_zone=; did you mean timezone="):
        program.declare("s", "0 0 * * *", time_zone="Europe/Berlin")


@pytest.mark.parametrize("asked", [{"every": "1h30m"}, {"cron": "0 * * * *"}], ids=str)
def test_a_preview_ends_with_the_year_9999(program: Program, asked: dict[str, Any]) -> None:
    after = datetime(9999, 12, 30, 12, 10, tzinfo=UTC)
    found = program.app.schedules.preview(after=after, timezone="Asia/Tokyo", count=1000, **asked)
    assert 0 < len(found) < 1000
    assert found[-1].year == 9999
