"""Several processes plan one schedule of every second; some die in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL

import fencepost
from fencepost import State
from tests.waiting import until

pytestmark = pytest.mark.chaos

_ROOT = Path(__file__).resolve().parents[2]

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture(params=["worker", "web"])
def start(request: pytest.FixtureRequest, url: URL, tmp_path: Path) -> Iterator[Start]:
    """Starts processes that plan, and ends them all. What they say goes to `said.txt`."""
    started: list[subprocess.Popen[bytes]] = []
    address = url.render_as_string(hide_password=False)
    with (tmp_path / "said.txt").open("ab") as said:

        def launch() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-W", "error", "-m", "tests.chaos.scheduler_main", address, request.param]
            started.append(subprocess.Popen(command, stdout=said, stderr=said, cwd=_ROOT, env=os.environ))
            return started[-1]

        yield launch
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait(10)


def test_processes_that_plan_one_schedule_run_every_instant_once_though_some_are_killed(
    app: fencepost.App, start: Start, tmp_path: Path
) -> None:
    """S1, S2."""
    processes = [start() for _ in range(4)]

    def made() -> int:
        return len(app.schedules.occurrences("every second", limit=1000))

    for number in (3, 6):
        until(lambda number=number: made() >= number, f"{number} instants are made", seconds=40)  # type: ignore[misc]
        killed = processes.pop(0)
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        processes.append(start())
    until(lambda: made() >= 9, "the others go on", seconds=40)
    until(lambda: len(app.schedules.occurrences(state="succeeded")) >= 9, "and run them", seconds=40)
    pids = {process.pid for process in processes}
    until(lambda: pids <= {worker.pid for worker in app.store.list_workers()}, "all of them work", seconds=40)
    app.schedules.pause("every second")
    until(lambda: app.jobs.list(state=["scheduled", "ready", "running"]) == [], "nothing is left", seconds=40)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(30) for process in processes] == [0] * 4

    occurrences = app.schedules.occurrences("every second", limit=1000)
    instants = sorted(job.scheduled_for for job in occurrences if job.scheduled_for is not None)
    assert instants == [instants[0] + timedelta(seconds=n) for n in range(len(instants))]
    assert {job.state for job in occurrences} == {State.SUCCEEDED}
    assert len(app.jobs.list(limit=1000)) == len(instants)
    said = (tmp_path / "said.txt").read_text()
    assert not [word for word in ("Traceback", "ERROR", "CRITICAL") if word in said], said
