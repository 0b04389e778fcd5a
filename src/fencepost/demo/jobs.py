"""The demo's application: count the lines and bytes of source files, and store a row for each.

This is what a program of yours looks like: an `App`, handlers, schedules, tables of your own in the same database.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, insert

import fencepost

__all__ = [
    "BEAT",
    "PACE_SECONDS",
    "PERIOD_SECONDS",
    "PUNCTUAL",
    "QUEUE",
    "SCHEDULES",
    "SCHEDULE_QUEUE",
    "SLOW",
    "SLOW_SECONDS",
    "URL_VARIABLE",
    "Figures",
    "app",
    "count_file",
    "digest_files",
    "figures_of",
    "files",
    "runs",
]

URL_VARIABLE = "FENCEPOST_DEMO_URL"
QUEUE = "demo"
SCHEDULE_QUEUE = "demo schedules"

BEAT, SLOW, PUNCTUAL = SCHEDULES = ("beat", "slow", "punctual")
PERIOD_SECONDS = 1
SLOW_SECONDS = 1.5
"""Longer than the period, so that an instant comes while the one before still runs."""

PACE_SECONDS = 0.2
"""How long each count pretends to take: without it all would be over before a person has read a line."""

app = fencepost.App(os.environ.get(URL_VARIABLE, "sqlite://"))

files = Table(
    "demo_files",
    MetaData(),
    # No unique index, on purpose: a job that stored its row twice would show.
    Column("job_id", String(36), nullable=False),
    Column("path", String, nullable=False),
    Column("lines", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
)


runs = Table(
    "demo_runs",
    MetaData(),
    # No unique index here either.
    Column("schedule", String, nullable=False),
    Column("scheduled_for", BigInteger, nullable=False),
    Column("started", Float, nullable=False),
    Column("ended", Float, nullable=False),
    Column("fencing_token", BigInteger),
)


class Figures(NamedTuple):
    """What is counted of a file."""

    lines: int
    bytes: int
    sha256: str


def figures_of(path: str) -> Figures:
    """Count one file."""
    content = Path(path).read_bytes()
    return Figures(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())


@app.job(kind="demo.count_file", queue=QUEUE, backoff=[1.0, 2.0, 4.0])
def count_file(ctx: fencepost.JobContext, path: str, fails_first: bool = False) -> None:
    """Count one file and store the row. The row and the job's completion are one commit: both, or neither."""
    figures = figures_of(path)
    time.sleep(PACE_SECONDS)
    if fails_first and ctx.attempt == 1:
        raise RuntimeError("failed on purpose: this is the demo's first attempt")
    with ctx.transaction() as conn:
        conn.execute(insert(files).values(job_id=ctx.id, path=path, **figures._asdict()))


@app.job(kind="demo.digest_files", queue=QUEUE, executor="process", backoff=[1.0, 2.0, 4.0])
def digest_files(paths: list[str]) -> str:
    """The SHA-256 over the SHA-256 of every file. Burns CPU, so it runs in a process; its result is stored."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(figures_of(path).sha256.encode())
    return whole.hexdigest()


@app.schedule(every=PERIOD_SECONDS, name=BEAT)  # within the grace (60 s) an instant is late, not missed: every one runs
@app.schedule(every=PERIOD_SECONDS, name=SLOW, overlap="skip", arguments={"seconds": SLOW_SECONDS})
@app.schedule(every=PERIOD_SECONDS, name=PUNCTUAL, misfire="skip", grace=1)
@app.job(kind="demo.record_run", queue=SCHEDULE_QUEUE, priority="high", backoff=1)
def record_run(ctx: fencepost.JobContext, seconds: float = 0) -> None:
    """Take so many seconds, and record from when to when, for which instant, and under which fencing token."""
    assert ctx.scheduled_for is not None
    started = time.time()
    time.sleep(seconds)
    row = {"schedule": ctx.schedule, "scheduled_for": round(ctx.scheduled_for.timestamp()), "started": started}
    with ctx.transaction() as conn:
        conn.execute(insert(runs).values(**row, ended=time.time(), fencing_token=ctx.fencing_token))
