"""Debouncing, one running and one waiting, and snoozing: with a real worker."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import fencepost
from fencepost import Reason, State
from tests.waiting import until
from tests.worker.conftest import Working


def test_a_debounced_job_runs_once_with_the_newest_arguments(app: fencepost.App, working: Working) -> None:
    """J1: each call replaces the waiting one's arguments and puts it off."""
    ran: list[int] = []

    @app.job
    async def index(value: int) -> None:
        ran.append(value)

    working()
    debounced = index.using(key="acct-7", delay=0.6, on_conflict="replace")
    handles = []
    for value in range(10):
        handles.append(debounced.enqueue(value=value))
        time.sleep(0.1)  # the pace of the calls, which the delay outlasts
    last = handles[-1].job()
    handles[-1].result(timeout=10)

    assert ran == [9]
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles] == [True] + [False] * 9
    assert all(handle.replaced for handle in handles[1:])
    job = handles[-1].job()
    assert job.started_at is not None
    assert job.started_at >= last.run_at
    assert last.run_at - job.created_at >= timedelta(seconds=0.9 + 0.6)


def test_one_runs_and_one_waits_with_the_newest_arguments(app: fencepost.App, working: Working) -> None:
    """J1 with hold="queued": what comes while it runs is not lost, and does not pile up."""
    ran: list[int] = []
    go_on = threading.Event()

    @app.job(hold="queued", on_conflict="replace")
    def sync(value: int) -> None:
        ran.append(value)
        assert go_on.wait(20)

    working()
    account = sync.using(key="acct-7")
    first = account.enqueue(value=0)
    until(lambda: ran == [0], "the first runs")
    app.pause_queue("default")
    waiting = [account.enqueue(value=value) for value in (1, 2, 3)]
    assert len({handle.id for handle in waiting}) == 1
    assert waiting[0].id != first.id
    go_on.set()
    app.resume_queue("default")
    first.result(timeout=10)
    waiting[-1].result(timeout=10)
    assert ran == [0, 3]


def test_with_the_default_hold_a_running_job_keeps_its_identity(app: fencepost.App, working: Working) -> None:
    """J2: the enqueue during the run names the running job, and makes none."""
    go_on = threading.Event()
    ran: list[int] = []

    @app.job
    def only(value: int) -> None:
        ran.append(value)
        assert go_on.wait(20)

    working()
    first = only.using(key="k").enqueue(value=1)
    until(lambda: ran == [1], "it runs")
    second = only.using(key="k", on_conflict="replace").enqueue(value=2)
    assert (second.id, second.created, second.replaced) == (first.id, False, False)
    go_on.set()
    first.result(timeout=10)
    third = only.using(key="k").enqueue(value=3)
    assert third.created
    third.result(timeout=10)
    assert ran == [1, 3]


def test_snoozing_spends_no_attempt_and_leaves_the_backoff_alone(app: fencepost.App, working: Working) -> None:
    """J6: ten snoozes, two failures, then success with three attempts allowed."""
    starts: list[int] = []

    @app.job(max_attempts=3, backoff=[0.2, 0.4, 30])
    async def patient(ctx: fencepost.JobContext) -> str:
        starts.append(ctx.attempt)
        if len(starts) <= 10:
            raise fencepost.Snooze(0.02)
        if ctx.attempt < 3:
            raise RuntimeError(f"failure {ctx.attempt}")
        return "at last"

    handle = patient.enqueue()
    working()
    assert handle.result(timeout=20) == "at last"

    assert starts == [1] * 11 + [2, 3]
    job = handle.job()
    assert (job.attempts, job.max_attempts) == (3, 3)
    reasons = [ended.reason for ended in job.history]
    assert reasons == [Reason.SNOOZED] * 10 + [Reason.ERROR] * 2
    first, second = (ended.at for ended in job.history if ended.reason == Reason.ERROR)
    assert second - first >= timedelta(seconds=0.2)
    assert job.started_at is not None
    assert job.started_at - second >= timedelta(seconds=0.4)
    assert job.state == State.SUCCEEDED
