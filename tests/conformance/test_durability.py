"""Durability and faults: L1, L3, L4, L5 and S9."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import URL, create_engine, event, exc, text

import fencepost
from fencepost.job import EnqueueResult, OnConflict, Reason, State
from fencepost.planner.retention import Walk
from fencepost.planning.outcome import Outcome, Verb
from fencepost.retention import Retention, build_rules
from fencepost.store import Database, PassReport, Store
from fencepost.testing import VirtualClock
from tests.jobs import (
    SECOND,
    claim_one,
    clear,
    empty_database,
    new,
    other_stores,
    overwrite,
    promote_all,
    put,
    row,
    rows,
)

# L1


def test_an_acknowledged_enqueue_is_seen_by_every_other_connection(store: Store) -> None:
    """L1: the answer comes after the commit."""
    with other_stores(store, 1) as (other,):
        for _ in range(20):
            assert other.get(put(store).id) is not None


def sqlite_store(path: Path, **options: Any) -> Store:
    store = Store(Database(f"sqlite:///{path}", **options), migrates=True)
    put(store)
    return store


def pragma(store: Store, name: str) -> Any:
    return store.database.read(lambda conn: conn.execute(text(f"PRAGMA {name}")).scalar_one())


@pytest.mark.parametrize(("asked", "found"), [({}, 2), ({"synchronous": "NORMAL"}, 1), ({"synchronous": "full"}, 2)])
def test_sqlite_writes_ahead_and_syncs_every_commit_by_default(
    tmp_path: Path, asked: dict[str, str], found: int
) -> None:
    """L1: WAL and synchronous=FULL, on every connection; NORMAL only where it was asked for."""
    store = sqlite_store(tmp_path / "jobs.db", **asked)
    with store.database.reading() as one, store.database.reading() as two:
        for conn in (one, two):
            assert conn.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
            assert conn.execute(text("PRAGMA synchronous")).scalar_one() == found
    store.close()


def test_a_new_sqlite_database_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    """L1: the file, its log and its shared memory, whatever the umask."""
    before = os.umask(0)
    try:
        store = sqlite_store(tmp_path / "jobs.db")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    store.close()
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


def test_what_was_acknowledged_is_there_after_all_connections_have_gone(url: URL) -> None:
    """L1."""
    first = Store(Database(url), migrates=False)
    job_id = put(first).id
    first.close()
    second = Store(Database(url), migrates=False)
    assert second.get(job_id) is not None
    second.close()


# Faults, for L4


def _sqlite_error(code: int, text: str) -> Exception:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


TRANSIENT: dict[str, dict[str, Callable[[], Exception]]] = {
    "sqlite": {
        "busy": lambda: _sqlite_error(5, "database is locked"),
        "locked": lambda: _sqlite_error(6, "database table is locked"),
        "busy snapshot": lambda: _sqlite_error(5 | 2 << 8, "database is locked"),
    },
    "postgresql": {
        "deadlock": lambda: psycopg.errors.DeadlockDetected("deadlock detected"),
        "serialization failure": lambda: psycopg.errors.SerializationFailure("could not serialize access"),
        "lock not available": lambda: psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"),
        "shutting down": lambda: psycopg.errors.AdminShutdown("terminating connection"),
        "connection lost": lambda: psycopg.OperationalError("server closed the connection unexpectedly"),
    },
    "mysql": {
        "deadlock": lambda: pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"),
        "lock wait": lambda: pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
        "gone away": lambda: pymysql.err.OperationalError(2006, "MySQL server has gone away"),
        "connection lost": lambda: pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
        "connection closed": lambda: pymysql.err.InterfaceError(0, ""),
    },
}
LOST = {"sqlite": "busy", "postgresql": "connection lost", "mysql": "connection lost"}
PERMANENT: dict[str, Callable[[], Exception]] = {
    "sqlite": lambda: _sqlite_error(13, "database or disk is full"),
    "postgresql": lambda: psycopg.errors.DiskFull("could not extend file"),
    "mysql": lambda: pymysql.err.OperationalError(1114, "The table 'fencepost_jobs' is full"),
}


@dataclass
class Faults:
    """What was done with the statements while faults were injected."""

    tries: int = 0
    raised: int = 0


@contextmanager
def failing(store: Store, make: Callable[[], Exception], *, at: int = 1, times: int = 1) -> Iterator[Faults]:
    """Let the driver fail at the statement number `at`, as often as `times`, counting from the first fault anew."""
    faults = Faults()

    def fail(*_: Any) -> None:
        faults.tries += 1
        if faults.tries >= at and faults.raised < times:
            faults.raised += 1
            raise make()

    names = ("do_execute", "do_executemany", "do_execute_no_params")
    for name in names:
        event.listen(store.database.engine, name, fail)
    try:
        yield faults
    finally:
        for name in names:
            event.remove(store.database.engine, name, fail)


@contextmanager
def losing_the_answer_of_a_commit(
    store: Store, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let the next commit be done, and its answer be lost."""
    dialect = store.database.engine.dialect
    commit = dialect.do_commit
    lost: list[Any] = []

    def commit_and_lose(connection: Any) -> None:
        commit(connection)
        if not lost:
            lost.append(connection)
            raise make()

    with monkeypatch.context() as patched:
        patched.setattr(dialect, "do_commit", commit_and_lose)
        yield
    assert lost


Deed = Callable[[], Any]


def _claims(store: Store, number: int, **options: Any) -> list[fencepost.Claim]:
    store.enqueue([new(**options) for _ in range(number)])
    return store.claim("me", kinds=["k"], limit=number, lease=10)


def _finished(store: Store, number: int) -> list[fencepost.Claim]:
    claims = _claims(store, number)
    store.settle([(claim, Outcome(Verb.ABANDON, error="e")) for claim in claims])
    return claims


def _enqueue(store: Store, clock: VirtualClock) -> Deed:
    job = new(key="a")
    return lambda: store.enqueue([job])


def _enqueue_many(store: Store, clock: VirtualClock) -> Deed:
    put(store, key="held", arguments="1")
    batch = [
        new(),
        new(key="a"),
        new(key="a"),
        new(key="held", arguments="2", on_conflict=OnConflict.REPLACE),
        new(delay=SECOND),
    ]
    return lambda: store.enqueue(batch)


def _claim(store: Store, clock: VirtualClock) -> Deed:
    put(store, deadline=clock.now() - 1)
    store.enqueue([new() for _ in range(3)])
    put(store, "other")
    return lambda: store.claim("me", kinds=["k", "other"], limit=3)


def _heartbeat(store: Store, clock: VirtualClock) -> Deed:
    claims = _claims(store, 3)
    store.cancel_job(claims[1].id)
    clock.advance(1)
    return lambda: sorted(store.heartbeat("me", [claim.lease for claim in claims]).renewed)


def _release(store: Store, clock: VirtualClock) -> Deed:
    _claims(store, 3)
    return lambda: store.release("me")


def _settle(store: Store, clock: VirtualClock) -> Deed:
    claims = _claims(store, 6, key=None)
    store.cancel_job(claims[3].id)
    store.complete(claims[4])
    outcomes = [
        Outcome(Verb.COMPLETE, result="1"),
        Outcome(Verb.RETRY, error="e", delay=SECOND),
        Outcome(Verb.COMPLETE),
        Outcome(Verb.SNOOZE, delay=0),
        Outcome(Verb.COMPLETE, result="stale"),
        Outcome(Verb.RETRY, error="e", delay=SECOND),
    ]
    return lambda: store.settle(list(zip(claims, outcomes, strict=True)))


def _promote(store: Store, clock: VirtualClock) -> Deed:
    store.enqueue([new(delay=SECOND) for _ in range(3)])
    clock.advance(1)
    return lambda: store.promote_due()


def _reclaim(store: Store, clock: VirtualClock) -> Deed:
    _claims(store, 3)
    clock.advance(10)
    return lambda: store.reclaim_expired()


def _prune(store: Store, clock: VirtualClock) -> Deed:
    _finished(store, 5)
    put(store)
    clock.advance(10)
    return lambda: store.prune(1, batch=5)


def _prune_by_rules(store: Store, clock: VirtualClock) -> Deed:
    _finished(store, 5)
    put(store)
    clock.advance(10)
    walk_rules = build_rules(Retention(failed=1))
    return lambda: Walk(walk_rules, store.now()).step(store)


def _save_retention(store: Store, clock: VirtualClock) -> Deed:
    store.save_retention(build_rules({"mail": Retention(failed=1)}))
    return lambda: store.save_retention(build_rules({"mail": Retention(failed=2), "*": Retention(keep=7)}))


def _lead(store: Store, clock: VirtualClock) -> Deed:
    return lambda: store.lead("a")


def _take_over(store: Store, clock: VirtualClock) -> Deed:
    store.lead("dead")
    clock.advance(10)
    return lambda: [store.lead("a"), store.leader()]


def _release_lead(store: Store, clock: VirtualClock) -> Deed:
    lead = store.lead("a")
    assert lead is not None
    return lambda: store.release_lead(lead)


def _fenced(store: Store, clock: VirtualClock) -> Deed:
    lead = store.lead("a")
    assert lead is not None
    store.enqueue([new(delay=SECOND) for _ in range(3)])
    clock.advance(1)
    return lambda: store.fenced(lead).promote_due()


def _record_passes(store: Store, clock: VirtualClock) -> Deed:
    lead = store.lead("a")
    assert lead is not None
    return lambda: store.record_passes(lead, [PassReport("promote", 0, 5), PassReport("reclaim", 1, 0)])


def _cancel(store: Store, clock: VirtualClock) -> Deed:
    job_id = put(store).id
    return lambda: store.cancel_job(job_id)


def _retry(store: Store, clock: VirtualClock) -> Deed:
    (claim,) = _finished(store, 1)
    return lambda: store.retry_job(claim.id)


def _pause(store: Store, clock: VirtualClock) -> Deed:
    put(store)
    store.set_paused("default", paused=False)
    return lambda: store.set_paused("default", paused=True)


def _progress(store: Store, clock: VirtualClock) -> Deed:
    claims = _claims(store, 2)
    return lambda: store.report_progress([(claim.lease, 0.5, "half") for claim in claims])


def _look(store: Store, clock: VirtualClock) -> Deed:
    job_id = put(store, key="a", delay=SECOND).id
    put(store)
    return lambda: [
        store.get(job_id),
        len(store.list_jobs()),
        store.find_live("k", "a"),
        store.count_live("k"),
        store.states_of([job_id]),
        store.queue_counts(),
        store.next_wake(),
        store.has_ready(["k"], None),
        store.result_text(job_id),
        store.list_workers(),
    ]


DEEDS = [
    _enqueue,
    _enqueue_many,
    _claim,
    _heartbeat,
    _release,
    _settle,
    _promote,
    _reclaim,
    _prune,
    _cancel,
    _retry,
    _pause,
    _progress,
    _prune_by_rules,
    _save_retention,
    _lead,
    _take_over,
    _release_lead,
    _fenced,
    _record_passes,
    _look,
]


class Bench:
    """Arranges a deed afresh as often as it is asked, and shows what it did in a way that can be compared."""

    def __init__(self, store: Store, clock: VirtualClock, arrange: Callable[[Store, VirtualClock], Deed]) -> None:
        self._store = store
        self._clock = clock
        self._arrange = arrange
        self._start = clock.now()

    def arrange(self) -> Deed:
        clear(self._store)
        self._clock.set_back((self._clock.now() - self._start) / SECOND)
        return self._arrange(self._store, self._clock)

    def shown(self, answer: Any) -> str:
        stored = rows(self._store)
        others = (self._store.leader(), self._store.list_passes(), self._store.retention_rules())
        shown = f"{answer!r}\n{others!r}\n" + "\n".join(str(found) for found in stored)
        for place, found in enumerate(stored):
            shown = shown.replace(found["id"], f"job {place}")
        return shown

    def undisturbed(self) -> str:
        deed = self.arrange()
        return self.shown(deed())


def deed_name(arrange: Callable[..., Any]) -> str:
    return arrange.__name__.strip("_")


@pytest.mark.parametrize("arrange", DEEDS, ids=deed_name)
def test_a_transient_fault_at_any_statement_is_retried_and_the_deed_is_done_once(
    store: Store, clock: VirtualClock, arrange: Callable[[Store, VirtualClock], Deed]
) -> None:
    """L4, L3: with the same answer and the same rows as without the fault."""
    bench = Bench(store, clock, arrange)
    expected = bench.undisturbed()
    errors = TRANSIENT[store.database.dialect.name]
    places = [(name, 1, 1) for name in errors] + [(next(iter(errors)), 1, 3)]
    places += [(next(iter(errors)), place, 1) for place in range(2, 40)]
    for name, place, times in places:
        deed = bench.arrange()
        with failing(store, errors[name], at=place, times=times) as faults:
            answer = deed()
        if not faults.raised:
            assert place > 1
            return  # the deed has fewer statements than that
        assert faults.raised == times
        assert bench.shown(answer) == expected, f"{name} at statement {place}"
    raise AssertionError("a deed of forty statements")


@pytest.mark.parametrize("arrange", DEEDS, ids=deed_name)
def test_a_permanent_fault_is_raised_at_once_and_nothing_was_written(
    store: Store, clock: VirtualClock, arrange: Callable[[Store, VirtualClock], Deed]
) -> None:
    """L4, S9: with the driver's own words, never as an empty answer."""
    bench = Bench(store, clock, arrange)
    deed = bench.arrange()
    before = bench.shown(None)
    with failing(store, PERMANENT[store.database.dialect.name], times=1000) as faults, pytest.raises(exc.DBAPIError):
        deed()
    # (SQLite's claim and passes look in one transaction, and write in another.)
    assert faults.raised == 1
    assert bench.shown(None) == before
    deed()


@pytest.mark.parametrize("arrange", DEEDS, ids=deed_name)
def test_a_fault_that_does_not_pass_raises_after_the_patience_and_is_never_an_empty_answer(
    store: Store, clock: VirtualClock, arrange: Callable[[Store, VirtualClock], Deed]
) -> None:
    """L4, S9: as StoreUnavailable, with the driver's error as its cause."""
    bench = Bench(store, clock, arrange)
    deed = bench.arrange()
    before = bench.shown(None)
    store.database.patience = 0.05
    name = store.database.dialect.name
    with (
        failing(store, TRANSIENT[name][LOST[name]], times=10_000) as faults,
        pytest.raises(fencepost.StoreUnavailable, match="could not be used") as raised,
    ):
        deed()
    assert faults.raised > 1
    assert isinstance(raised.value.__cause__, exc.DBAPIError)
    assert bench.shown(None) == before


@pytest.mark.parametrize(
    "arrange",
    [
        *(_enqueue, _enqueue_many, _heartbeat, _promote, _prune, _cancel, _pause, _progress, _retry, _settle, _reclaim),
        *(_prune_by_rules, _save_retention, _lead, _take_over, _release_lead, _fenced, _record_passes),
    ],
    ids=deed_name,
)
def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Callable[[Store, VirtualClock], Deed],
) -> None:
    """L3: the rows are those of one commit. (A count, or whether a lease held, may say that nothing was left to do.)"""
    bench = Bench(store, clock, arrange)
    bench.undisturbed()
    expected = bench.shown(None)
    deed = bench.arrange()
    name = store.database.dialect.name
    with losing_the_answer_of_a_commit(store, TRANSIENT[name][LOST[name]], monkeypatch):
        try:
            deed()
        except fencepost.InvalidTransition:
            assert arrange is _retry, "only a person's retry is refused: the job is ready already"
    assert bench.shown(None) == expected


def test_an_enqueue_whose_commits_answer_was_lost_says_that_it_created_its_jobs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3, J1: they are its own, and nobody else's."""
    batch = [new(), new(key="a")]
    name = store.database.dialect.name
    with losing_the_answer_of_a_commit(store, TRANSIENT[name][LOST[name]], monkeypatch):
        assert store.enqueue(batch) == [EnqueueResult(job.id, created=True) for job in batch]
    assert len(rows(store)) == 2


def test_a_claim_whose_commits_answer_was_lost_is_not_answered_twice(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3, J3: what it took comes back when its lease runs out, with the attempt spent."""
    first = put(store).id
    clock.advance(1)
    second = put(store).id
    name = store.database.dialect.name
    with losing_the_answer_of_a_commit(store, TRANSIENT[name][LOST[name]], monkeypatch):
        claims = store.claim("me", kinds=["k"], lease=30)
    # On SQLite the first commit is that of the look before it, and the claim is made once.
    taken = [first] if store.database.dialect.looks_first else [first, second]
    assert [claim.id for claim in claims] == taken[-1:]
    clock.advance(30)
    assert store.reclaim_expired() == len(taken)
    assert row(store, first)["attempts"] == 1


@pytest.mark.parametrize("kind", ["transient", "permanent"])
def test_in_the_applications_transaction_a_fault_is_passed_on_and_not_retried(store: Store, kind: str) -> None:
    """L4: only the application can repeat its transaction."""
    name = store.database.dialect.name
    store.ensure_schema()
    for make in TRANSIENT[name].values() if kind == "transient" else [PERMANENT[name]]:
        with store.database.engine.connect() as conn:
            conn.execute(text("SELECT 1"))
            with failing(store, make, times=100) as faults, pytest.raises(exc.DBAPIError) as raised:
                store.enqueue_within(conn, [new()])
            assert faults.raised == 1
            assert type(raised.value.orig) is type(make())
            conn.rollback()
    assert rows(store) == []


def test_a_connection_that_the_server_closed_is_replaced(store: Store) -> None:
    """L4: as after the database's restart."""
    kill = {
        "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "mysql": "SELECT CONCAT('KILL ', id) FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    }
    put(store)
    name = store.database.dialect.name
    engine = create_engine(store.database.url, isolation_level="AUTOCOMMIT") if name in kill else None
    if engine is None:  # a SQLite connection breaks only with its file; let the pool lose all of them
        store.close()
    else:
        with engine.connect() as conn:
            for killed in conn.execute(text(kill[name])).scalars().all():
                if name == "mysql":
                    conn.execute(text(killed))
        engine.dispose()
    assert store.complete(claim_one(store))


# S9


def test_a_database_that_cannot_be_reached_is_an_error_and_never_an_empty_answer(
    database_name: str, tmp_path: Path
) -> None:
    """S9: whatever is asked of it."""
    nowhere = {
        "sqlite": URL.create("sqlite", database=str(tmp_path)),  # a directory
        "postgresql": URL.create("postgresql", username="nobody", host="127.0.0.1", port=1, database="none"),
        "mysql": URL.create("mysql", username="nobody", host="127.0.0.1", port=1, database="none"),
    }
    store = Store(Database(nowhere[database_name], patience=0.02), migrates=False)
    store._schema_checked = True  # or the question for the schema would be the only one asked
    deeds: list[Deed] = [
        lambda: store.claim("me", kinds=["k"]),
        lambda: store.enqueue([new()]),
        lambda: store.list_jobs(),
        lambda: store.find_live("k", "a"),
        lambda: store.count_live("k"),
        lambda: store.get(new().id),
        lambda: store.states_of([new().id]),
        lambda: store.queue_counts(),
        lambda: store.list_workers(),
        lambda: store.heartbeat("me"),
        lambda: store.release("me"),
        lambda: store.promote_due(),
        lambda: store.reclaim_expired(),
        lambda: store.next_wake(),
        lambda: store.prune(1),
        lambda: store.has_ready(["k"], None),
        lambda: store.now() if database_name != "sqlite" else store.schema_status(),
    ]
    for deed in deeds:
        with pytest.raises((fencepost.StoreUnavailable, exc.DBAPIError)):
            deed()
    store.close()


def test_a_database_without_tables_is_an_error_that_names_the_command(database_name: str, tmp_path: Path) -> None:
    """L5, S9: and nothing of it is taken for "no jobs"."""
    with empty_database(database_name, tmp_path) as url:
        app = fencepost.App(url, migrate=False)
        deeds: list[Deed] = [lambda: app.store.claim("me", kinds=["k"]), app.jobs.list, lambda: put(app.store)]
        for deed in deeds:
            with pytest.raises(fencepost.SchemaError, match=r"No fencepost tables in .*fencepost migrate --url"):
                deed()
        assert app.migrate() is True
        assert app.migrate() is False
        assert put(app.store).created
        app.close()


def test_a_schema_of_a_newer_version_is_refused_in_words(url: URL) -> None:
    """L5: by whatever is asked first, and by a migration."""
    engine = create_engine(url)
    with engine.begin() as conn:
        found = conn.execute(text("SELECT version_num FROM fencepost_schema")).scalar_one()
        conn.execute(text("UPDATE fencepost_schema SET version_num = '9999'"))
    try:
        app = fencepost.App(url)
        deeds: list[Deed] = [lambda: put(app.store), app.jobs.list, app.migrate, lambda: app.jobs.get(new().id)]
        for deed in deeds:
            with pytest.raises(fencepost.SchemaError, match=r"9999.*newer than this build.*Upgrade fencepost"):
                deed()
        status = app.store.schema_status()
        assert (status.found, status.is_newer, status.is_current) == ("9999", True, False)
        app.close()
    finally:
        with engine.begin() as conn:
            conn.execute(text("UPDATE fencepost_schema SET version_num = :found"), {"found": found})
        engine.dispose()


def test_sqlite_tables_are_made_at_the_first_use_and_servers_are_asked_first(
    database_name: str, tmp_path: Path
) -> None:
    """L5: a server's schema changes only when somebody says so."""
    with empty_database(database_name, tmp_path) as url:
        app = fencepost.App(url)
        if database_name == "sqlite":
            assert put(app.store).created
        else:
            with pytest.raises(fencepost.SchemaError):
                put(app.store)
        app.close()
        eager = fencepost.App(url, migrate=True)
        assert put(eager.store).created
        assert eager.store.list_jobs()[0].state is State.READY
        eager.close()


@pytest.mark.parametrize("later", [0, 3])
def test_a_settlement_whose_commits_answer_was_lost_is_told_that_it_held(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """L3, J5: for every outcome, cancelled meanwhile or not; one that had not held is not made to hold by it.

    Within the call and, where that raised, at its repetition some seconds later.
    """
    ids = [put(store, max_attempts=9).id for _ in range(9)]
    ids += [put(store, max_attempts=1).id for _ in range(1)]
    claims = {claim.id: claim for claim in store.claim("me", kinds=["k"], limit=20, lease=60)}
    outcomes = [
        Outcome(Verb.COMPLETE, result="1"),
        Outcome(Verb.COMPLETE),
        Outcome(Verb.RETRY, error="e", delay=SECOND),
        Outcome(Verb.RETRY, error="e", delay=0, reason=Reason.TIMEOUT),
        Outcome(Verb.SNOOZE, delay=SECOND),
        Outcome(Verb.RELEASE),
        Outcome(Verb.RESCHEDULE, delay=0),
        Outcome(Verb.ABANDON, error="e"),
        Outcome(Verb.RETRY, error="to be cancelled"),
        Outcome(Verb.RETRY, error="the last one"),
    ]
    settlements = [(claims[job_id], outcome) for job_id, outcome in zip(ids, outcomes, strict=True)]
    store.cancel_job(ids[8])
    stale = put(store).id
    settlements.append((claim_one(store), Outcome(Verb.RETRY, error="stale", delay=0)))
    overwrite(store, stale, lease_token=7)
    name = store.database.dialect.name
    store.database.patience = 0 if later else 5
    with losing_the_answer_of_a_commit(store, TRANSIENT[name][LOST[name]], monkeypatch):
        try:
            held = store.settle(settlements)
        except fencepost.StoreUnavailable:
            assert later
            clock.advance(later)
            promote_all(store)
            held = store.settle(settlements, is_repetition=True)
    assert held == [True] * len(ids) + [False]
    assert store.settle(settlements) == [False] * len(settlements), "it was no repetition"


def test_a_settlement_that_came_too_late_is_told_so_at_its_repetition_too(store: Store, clock: VirtualClock) -> None:
    """J5: a reclaim is no settlement of the worker's own."""
    outcomes = [Outcome(Verb.COMPLETE), Outcome(Verb.RETRY, error="e", delay=0), Outcome(Verb.RELEASE)]
    for _ in outcomes:
        put(store)
    settlements = list(zip(store.claim("me", kinds=["k"], limit=3, lease=10), outcomes, strict=True))
    clock.advance(10)
    store.reclaim_expired()
    assert store.settle(settlements, is_repetition=True) == [False] * 3
