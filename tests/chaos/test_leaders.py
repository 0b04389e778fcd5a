"""Leaders that freeze, are killed or stop: another one leads, and nothing is planned twice or left out."""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from datetime import timedelta

import pytest

import fencepost
from fencepost import State
from fencepost.store import Database, Leader, Store
from tests.chaos.processes import Crew, Process
from tests.waiting import until

pytestmark = pytest.mark.chaos

_LEASE = 2.0


def _leader(app: fencepost.App) -> Leader:
    found = app.store.leader()
    assert found is not None
    return found


def _process_of(found: Leader, processes: list[Process]) -> Process:
    assert found.holder is not None
    (process,) = [process for process in processes if str(process.pid) == found.holder.split(":")[1]]
    return process


def _freeze(app: fencepost.App, process: Process) -> None:
    """Stop a process outside of a transaction: a SQLite file would be locked for as long as it is stopped."""
    with closing(Store(Database(app.store.database.url, busy_timeout=0.3, patience=0.3), migrates=False)) as looks:

        def is_free() -> bool:
            with suppress(fencepost.StoreUnavailable):
                looks.set_paused("nobody's", paused=False)
                return True
            return False

        while True:
            process.signal(signal.SIGSTOP)
            if is_free():
                return
            process.signal(signal.SIGCONT)
            until(is_free, "it has left its transaction")


def test_a_leader_that_is_frozen_or_killed_is_succeeded_and_no_instant_is_lost_or_doubled(
    app: fencepost.App, crew: Crew
) -> None:
    """L2, S1: within its lease and a moment, and not before; what was frozen writes nothing when it wakes."""

    def made() -> int:
        return len(app.schedules.occurrences("every second", limit=1000))

    def succeeded(before: Leader) -> Leader:
        until(lambda: _leader(app).epoch > before.epoch, "another one leads", seconds=30)
        after, planned = _leader(app), made()
        assert after.holder != before.holder
        until(lambda: made() > planned, "it plans", seconds=30)
        return after

    processes = [crew.run("leader_main", _LEASE) for _ in range(3)]
    crew.await_working(app, *processes)
    until(lambda: made() >= 2, "the first leader plans", seconds=30)

    first = _leader(app)
    frozen = _process_of(first, processes)
    _freeze(app, frozen)
    last_renewal = _leader(app).renewed_at
    second = succeeded(first)
    assert second.since is not None
    assert second.since >= last_renewal + timedelta(seconds=_LEASE)
    frozen.signal(signal.SIGCONT)
    until(lambda: f"leads no longer (epoch {first.epoch})" in frozen.said, "it learns that it leads no longer")
    planned = made()
    until(lambda: made() > planned, "the second goes on", seconds=30)
    assert (_leader(app).holder, _leader(app).epoch) == (second.holder, second.epoch)
    assert {record.epoch for record in app.store.list_passes()} == {second.epoch}

    _process_of(second, processes).kill()
    third = succeeded(second)

    stopped = _process_of(third, processes)
    stopped.signal(signal.SIGTERM)
    succeeded(third)
    assert stopped.exit_code(within=20) == 0

    until(lambda: len(app.schedules.occurrences(state="succeeded")) >= 8, "they run", seconds=40)
    app.schedules.pause("every second")
    until(lambda: app.jobs.list(state=["scheduled", "ready", "running"]) == [], "nothing is left", seconds=40)
    occurrences = app.schedules.occurrences("every second", limit=1000)
    instants = sorted(job.scheduled_for for job in occurrences if job.scheduled_for is not None)
    assert instants == [instants[0] + timedelta(seconds=n) for n in range(len(instants))]
    assert {job.state for job in occurrences} == {State.SUCCEEDED}
