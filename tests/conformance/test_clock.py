"""Time: all planning uses the database's clock, and instants are exact."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import fencepost
from fencepost.job import State
from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import MINUTE, SECOND, claim_one, new, promote_all, put, row


@pytest.fixture(params=[timedelta(minutes=10), timedelta(minutes=-10)], ids=["fast", "slow"])
def skewed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """This process's clock goes wrong by ten minutes."""
    shift: timedelta = request.param
    seconds, nanos, sleeping = shift.total_seconds(), int(shift.total_seconds()) * 1_000_000_000, time.sleep
    true_time, true_nanos = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: true_nanos() + nanos)
    monkeypatch.setattr(time, "sleep", sleeping)
    return shift


@pytest.fixture
def server(app: fencepost.App) -> Store:
    """The store of a database that has a clock of its own. (SQLite's is the host's.)"""
    return app.store


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_a_node_whose_clock_is_wrong_plans_as_every_other(server: Store, skewed: timedelta) -> None:
    """S4, J3, J7: enqueue, promotion, claim, lease, reclaim and retention, on the database's clock alone."""
    before = server.now()
    ready, delayed = put(server).id, put(server, delay=5 * MINUTE).id
    due = put(server, run_at=before - SECOND).id
    after = server.now()
    assert before <= row(server, ready)["created_at"] <= after
    assert before + 5 * MINUTE <= row(server, delayed)["wake_at"] <= after + 5 * MINUTE
    assert promote_all(server) == 0
    claims = server.claim("me", kinds=["k"], limit=5, lease=120)
    assert [claim.id for claim in claims] == [ready, due]
    assert server.reclaim_expired() == 0
    assert server.heartbeat("me", [claims[0].lease], lease=120).renewed == {ready}
    assert server.now() <= row(server, ready)["lease_until"] <= server.now() + 120 * SECOND
    assert server.complete(claims[0])
    assert before <= row(server, ready)["finished_at"] <= server.now()
    assert server.prune(60) == 0
    assert server.retry(claims[1], "e", after=300)
    assert promote_all(server) == 0
    late = put(server, deadline=server.now() + 5 * MINUTE)
    assert claim_one(server).id == late.id


@pytest.mark.parametrize("database_name", ["postgresql", "mysql"], indirect=True)
def test_the_clock_is_read_at_the_call_and_moves_within_a_transaction(server: Store) -> None:
    """S4: not the transaction's start, which may lie far back in an application's own transaction."""
    with server.transaction() as conn:
        first = server.database.now(conn)
        readings = [server.database.now(conn) for _ in range(50)]
    assert readings == sorted(readings)
    assert readings[-1] > first


def test_what_plans_never_asks_the_hosts_clock() -> None:
    """S4: SQLite's is the host's; ids are only ordered by it; the doctor measures how far it is off."""
    package = Path(fencepost.__file__).parent
    asks = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(")
    faces = {"cli", "demo", "api", "contrib"}
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in faces
        for line in path.read_text().splitlines()
        if asks.search(line.partition("#")[0]) and '"' not in line
    }
    assert found == {"ids.py", "store/dialects/sqlite.py", "store/diagnosis.py"}


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2100, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC),
        datetime(2096, 10, 28, 2, 30, 0, 123_457, tzinfo=timezone(timedelta(hours=2))),
        datetime(2096, 10, 28, 2, 30, 0, 123_457, tzinfo=timezone(timedelta(hours=1))),
        datetime(2100, 2, 28, 12, 0, 0, 333_333, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    ],
    ids=str,
)
def test_an_instant_survives_to_the_microsecond(app: fencepost.App, instant: datetime) -> None:
    """J11: however far, in whatever zone it was given; it comes back in UTC."""

    @app.job(kind="k")
    def handler() -> None: ...

    job = handler.using(run_at=instant, deadline=instant + timedelta(microseconds=1)).enqueue().job()
    assert job.state is State.SCHEDULED
    assert job.run_at == instant
    assert job.deadline == instant + timedelta(microseconds=1)
    assert job.run_at.tzinfo is UTC
    assert app.store.next_wake() == (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_claim_carries_exact_instants(store: Store, clock: VirtualClock) -> None:
    """J11: none of them passes through a float."""
    clock.advance(0.123457)
    due = clock.now() + 76 * 365 * 86_400 * SECOND + 1
    (stored,) = store.enqueue([new(run_at=due, deadline=due + 7)])
    clock.advance((due - clock.now()) / SECOND)
    clock.advance(0.000003)
    assert promote_all(store) >= 1
    claim = claim_one(store)
    assert (claim.id, claim.run_at, claim.deadline) == (stored.id, due, due + 7)
    assert claim.claimed_at == clock.now()


def test_a_clock_that_is_set_back_loses_no_job_and_runs_none_early(store: Store, clock: VirtualClock) -> None:
    """S4: the database's own clock was corrected by an hour."""
    waiting = put(store, delay=60 * SECOND).id
    running = put(store).id
    claim = claim_one(store, lease=30)
    clock.set_back(3600)
    assert promote_all(store) == 0
    assert store.reclaim_expired() == 0
    assert store.complete(claim)
    fresh = put(store).id
    assert claim_one(store).id == fresh
    clock.advance(3660)
    assert promote_all(store) == 1
    assert claim_one(store).id == waiting
    assert row(store, running)["state"] == State.SUCCEEDED
