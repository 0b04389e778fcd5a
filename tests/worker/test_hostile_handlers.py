"""Handlers that misuse the process, the loop or their context harm themselves alone, or end the worker aloud."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import fencepost
from fencepost.job import State
from tests.waiting import until

FORKS = """
import os, sys, time
import fencepost

app = fencepost.App("sqlite:///jobs.db")

@app.job(executor="process", max_attempts=1)
def own(number: int) -> int:
    return number

@app.job(executor="process", max_attempts=1)
def forks(raises: bool) -> str:
    if os.fork() == 0:
        if raises:
            raise ValueError("from the twin")
        return "from the twin"
    return "parent"

@app.job(executor="process", max_attempts=1)
def leaves_a_child_and_dies() -> None:
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    forking = [forks.enqueue(False), forks.enqueue(True)]
    dying = leaves_a_child_and_dies.enqueue()
    numbers = [own.enqueue(number) for number in range(8)]
    app.run_worker(burst=True, processes=1)
    assert [handle.result(1) for handle in numbers] == list(range(8))
    assert [handle.result(1) for handle in forking] == ["parent", "parent"]
    print(dying.job().state, dying.job().last_error.strip().rsplit("\\n", 1)[-1])
    os.killpg(0, 9)
"""


def test_a_forking_handler_answers_for_no_other_job_and_its_death_is_seen(tmp_path: Path) -> None:
    """J5: its twin may not speak, and what it leaves behind does not hide its end."""
    (tmp_path / "forking.py").write_text(FORKS)
    with (tmp_path / "out").open("w+") as out:
        done = subprocess.run(
            [sys.executable, "-u", "forking.py"],
            cwd=tmp_path,
            stdout=out,
            stderr=out,
            timeout=90,
            check=False,
            start_new_session=True,
        )
    said = (tmp_path / "out").read_text()
    assert done.returncode == -9, said
    assert "failed ChildProcessError: The process that ran the handler ended with signal SIGKILL." in said


def test_a_handler_that_raises_generator_exit_has_failed(app: fencepost.App) -> None:
    """J4: on the loop as on a thread."""

    @app.job(max_attempts=1)
    async def raises() -> None:
        raise GeneratorExit

    handle = raises.enqueue()
    app.run_worker(burst=True)
    assert handle.job().state == State.FAILED


def test_a_handler_that_cancels_every_task_does_not_stop_the_worker(app: fencepost.App) -> None:
    """Other attempts may fail of it; what waits is run all the same."""

    @app.job(backoff=0)
    async def cancels() -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    @app.job(backoff=0)
    async def sleeps(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    handles: list[fencepost.JobHandle[Any]] = []
    for number in range(20):
        handles += [sleeps.enqueue(number), cancels.enqueue()]
    app.run_worker(burst=True, concurrency=4)
    until(lambda: all(handle.job().is_final for handle in handles), "all have ended")


def test_a_worker_whose_loop_was_ended_hands_its_jobs_back_and_says_so(app: fencepost.App) -> None:
    """J8: it does not live on with leases that nobody works on."""

    @app.job(max_attempts=1)
    async def ends_the_loop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(600)

    handle = ends_the_loop.enqueue()
    with pytest.raises(RuntimeError, match="stopped the worker's event loop"):
        app.run_worker(grace=0)
    assert handle.job().state != State.RUNNING


def test_an_attempt_has_one_transaction(app: fencepost.App) -> None:
    """J5: a second one, inside or after the first, is refused before anything is lost."""

    @app.job(max_attempts=1)
    def nests(ctx: fencepost.JobContext) -> None:
        with ctx.transaction() as outer:
            outer.execute(text("SELECT 1"))
            with ctx.transaction():
                pass

    @app.job(max_attempts=2, backoff=0)
    def tries_again(ctx: fencepost.JobContext) -> str | None:
        try:
            with ctx.transaction():
                raise LookupError("rolled back")
        except LookupError:
            with ctx.transaction():
                ctx.set_result("second try")
        return None

    nested, again = nests.enqueue(), tries_again.enqueue()
    app.run_worker(burst=True)
    assert nested.job().state == State.FAILED
    assert "has its transaction already" in (nested.job().last_error or "")
    assert again.job().result == "second try"
    assert again.job().attempts == 1


def test_a_stopped_worker_is_not_run(app: fencepost.App) -> None:
    """It would do nothing, silently."""

    @app.job
    def nothing() -> None: ...

    worker = app.worker()
    worker.stop()
    with pytest.raises(fencepost.ConfigurationError, match="was stopped"):
        worker.run()
