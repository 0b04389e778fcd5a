"""The same work through fencepost's public face, with a worker in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles

from bench.databases import Database
from bench.handlers import Handlers
from bench.worker_process import URL_VARIABLE

__all__ = ["START_SECONDS", "lines_of", "measure", "worker_process"]

ENQUEUE_SECONDS = 3.0  # as long as the floor's single inserts
CONCURRENT_ENQUEUES = 500
LATENCY_JOBS = 100
# Drawn anew each time, from more than the longest pause between two polls: jobs that come in step with the polls
# would all wait as long, be it the shortest or the longest time.
LATENCY_PAUSE_SECONDS = (0.05, 0.35)

_SLOWEST_DRAIN = 200  # jobs a second below which a drain counts as hung
START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_SUCCEEDED = "SELECT count(*) FROM fencepost_jobs WHERE state = 'succeeded'"


def measure(database: Database, url: str, jobs: int, *, memory_only: bool = False) -> dict[str, float]:
    """Jobs per second, milliseconds and MiB of each operation, on an empty database."""
    handlers = Handlers(url)
    with closing(handlers.app):
        return _measure(handlers, database, url, jobs, memory_only=memory_only)


def _measure(handlers: Handlers, database: Database, url: str, jobs: int, *, memory_only: bool) -> dict[str, float]:
    handlers.app.migrate()
    start = time.perf_counter()
    handles = handlers.app.enqueue_many(handlers.noop.build(i=i) for i in range(jobs))
    figures = {"enqueue_many": jobs / (time.perf_counter() - start)}
    assert len(handles) == jobs
    del handles
    figures |= _drain(database, url, jobs)
    if not memory_only:
        figures |= _latency(handlers, url)
        figures["enqueue"] = _enqueues_per_second(handlers)
        figures["aenqueue"] = asyncio.run(_concurrent_enqueues_per_second(handlers, jobs))
    return figures


def _drain(database: Database, url: str, jobs: int) -> dict[str, float]:
    """One worker process on a backlog of no-op jobs; what it claims to have done is checked in the database."""
    with worker_process("drain", url) as worker:
        output, _ = worker.communicate(timeout=START_SECONDS + jobs / _SLOWEST_DRAIN)
    report = json.loads(output)
    succeeded = database.count(url, _SUCCEEDED)
    if worker.returncode != 0 or report["ran"] != jobs or succeeded != jobs:
        raise AssertionError(
            f"of {jobs} jobs {report['ran']} ran and {succeeded} succeeded; the worker ended with {worker.returncode}"
        )
    return {
        "drain": jobs / report["seconds"],
        "worker_idle_mib": report["idle_mib"],
        "worker_peak_mib": report["peak_mib"],
    }


def _latency(handlers: Handlers, url: str) -> dict[str, float]:
    """From the call of enqueue to the first line of the handler, an idle worker waiting in another process.

    The monotonic clock is the host's, so the two processes read the same one.
    """
    pauses = random.Random(1)
    with worker_process("serve", url) as worker:
        lines = lines_of(worker)
        handlers.stamp.enqueue(sent=time.monotonic_ns())
        lines.get(timeout=START_SECONDS)  # the worker is up
        took = []
        for _ in range(LATENCY_JOBS):
            time.sleep(pauses.uniform(*LATENCY_PAUSE_SECONDS))
            handlers.stamp.enqueue(sent=time.monotonic_ns())
            took.append(int(lines.get(timeout=START_SECONDS)) / 1e6)
    percentiles = quantiles(took, n=100, method="inclusive")
    return {"latency_p50_ms": percentiles[49], "latency_p99_ms": percentiles[98]}


def _enqueues_per_second(handlers: Handlers) -> float:
    """One job after the other, each committed before the next."""
    start = time.perf_counter()
    done = 0
    while time.perf_counter() - start < ENQUEUE_SECONDS:
        handlers.noop.enqueue(i=done)
        done += 1
    return done / (time.perf_counter() - start)


async def _concurrent_enqueues_per_second(handlers: Handlers, jobs: int) -> float:
    """Rounds of enqueues that wait side by side, as those of a busy web server would."""
    rounds = max(1, min(20, jobs // CONCURRENT_ENQUEUES))
    start = time.perf_counter()
    for _ in range(rounds):
        await asyncio.gather(*(handlers.noop.aenqueue(i=i) for i in range(CONCURRENT_ENQUEUES)))
    return rounds * CONCURRENT_ENQUEUES / (time.perf_counter() - start)


@contextmanager
def worker_process(command: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process, ended with the block whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.worker_process", command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {URL_VARIABLE: url},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """What a process prints, line by line; read on a thread, so that waiting for a line can have a limit."""
    stdout, lines = process.stdout, queue.Queue[str]()
    assert stdout is not None

    def read() -> None:
        for line in stdout:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines
