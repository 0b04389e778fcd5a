"""The app that the worker processes run: handlers that leave a trace, take their time, or do harm.

The database's URL and the journal's path come from the environment, so that every process of a test (workers, their
child processes, producers) finds the same ones. Tests enqueue what these functions `build()` through an app of
their own.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

import fencepost
from tests.chaos.journal import JOURNAL_VARIABLE, Journal

__all__ = ["EFFECTS_TABLE", "URL_VARIABLE", "app"]

URL_VARIABLE = "FENCEPOST_CHAOS_URL"
EFFECTS_TABLE = "chaos_effects"

app = fencepost.App(os.environ.get(URL_VARIABLE, "sqlite://"))


def _note(event: str, ctx: fencepost.JobContext, name: str, **more: Any) -> None:
    journal = Journal(Path(os.environ[JOURNAL_VARIABLE]))
    journal.add(event, name=name, pid=os.getpid(), attempt=ctx.attempt, token=ctx.lease_token, **more)


def _of_attempt(ctx: fencepost.JobContext, seconds: list[float]) -> float:
    """One number an attempt; the last repeats."""
    return seconds[min(ctx.attempt, len(seconds)) - 1]


@app.job(kind="quick")
async def quick(ctx: fencepost.JobContext, name: str) -> None:
    """Nothing but its trace."""
    _note("start", ctx, name)


@app.job(kind="quick_thread")
def quick_thread(ctx: fencepost.JobContext, name: str) -> None:
    """Nothing but its trace, on a thread."""
    _note("start", ctx, name)


@app.job(kind="sleeps", backoff=0)
async def sleeps(ctx: fencepost.JobContext, name: str, seconds: list[float]) -> int:
    """Sleeps and lets the event loop go on."""
    _note("start", ctx, name)
    try:
        await asyncio.sleep(_of_attempt(ctx, seconds))
    except asyncio.CancelledError:
        _note("cancelled", ctx, name)
        raise
    _note("end", ctx, name)
    return ctx.attempt


@app.job(kind="sleeps_on_thread", backoff=0)
def sleeps_on_thread(ctx: fencepost.JobContext, name: str, seconds: list[float]) -> int:
    """Blocks its thread, whatever happens."""
    _note("start", ctx, name)
    time.sleep(_of_attempt(ctx, seconds))
    _note("end", ctx, name)
    return ctx.attempt


@app.job(kind="blocks_loop", backoff=0)
async def blocks_loop(ctx: fencepost.JobContext, name: str, seconds: list[float]) -> int:
    """Blocks the event loop, as an async handler never should."""
    _note("start", ctx, name)
    time.sleep(_of_attempt(ctx, seconds))  # noqa: ASYNC251 - the point of it
    _note("end", ctx, name)
    return ctx.attempt


@app.job(kind="alone", backoff=0, concurrency="one at a time")
async def alone(ctx: fencepost.JobContext, name: str) -> int:
    """Holds the one permit of its key for a moment. Returns its fencing token."""
    fence = ctx.fencing_token
    assert fence is not None
    _note("start", ctx, name, fence=fence)
    await asyncio.sleep(0.005)
    _note("end", ctx, name, fence=fence)
    return fence


@app.job(kind="dies", backoff=0)
async def dies(ctx: fencepost.JobContext, name: str, how: str) -> None:
    """Takes its process along."""
    _note("start", ctx, name)
    _die(how)


@app.job(kind="sleeps_in_process", executor="process", backoff=0)
def sleeps_in_process(ctx: fencepost.JobContext, name: str, seconds: list[float]) -> int:
    """Burns time in a process of its own."""
    _note("start", ctx, name)
    time.sleep(_of_attempt(ctx, seconds))
    _note("end", ctx, name)
    return ctx.attempt


@app.job(kind="dies_in_process", executor="process", backoff=0)
def dies_in_process(ctx: fencepost.JobContext, name: str, how: str) -> str:
    """Takes its process along at the first attempt."""
    _note("start", ctx, name)
    if ctx.attempt == 1:
        _die(how)
    return f"attempt {ctx.attempt}"


@app.job(kind="reports_from_process", executor="process")
def reports_from_process(ctx: fencepost.JobContext, name: str, go_on: str) -> str:
    """Says how far it is, then waits for a file."""
    ctx.progress(0.5, "half of it")
    _note("start", ctx, name)
    while not Path(go_on).exists():
        time.sleep(0.02)
    return "whole"


@app.job(kind="commits_in_process", executor="process")
def commits_in_process(ctx: fencepost.JobContext, name: str) -> None:
    """Writes a row of its own and completes its job in one transaction."""
    with ctx.transaction() as conn:
        insert = text(f"INSERT INTO {EFFECTS_TABLE} (name, attempt) VALUES (:name, :attempt)")
        conn.execute(insert, {"name": name, "attempt": ctx.attempt})


@app.job(kind="figures")
async def figures() -> dict[str, int]:
    """What the worker's process holds."""
    status = Path("/proc/self/status").read_text()  # noqa: ASYNC240 - it is no disk
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the count alone
        "tasks": len(asyncio.all_tasks()),
        "rss_kib": int(rss.split()[1]),
    }


@app.job(kind="loaded", timeout=20)
async def loaded(payload: str) -> int:
    """A short job with a payload and a timeout."""
    await asyncio.sleep(0)
    return len(payload)


@app.job(kind="loaded_thread", timeout=20)
def loaded_thread(payload: str) -> int:
    """A short job with a payload and a timeout, on a thread."""
    return len(payload)


def _die(how: str) -> None:
    match how:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
    raise AssertionError(f"still here after {how}")
