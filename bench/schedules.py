"""Schedules: how fast instants become jobs, how late they start, and what a worker costs that only waits for them."""

from __future__ import annotations

import os
import queue
import time
from contextlib import closing
from datetime import timedelta
from statistics import quantiles
from subprocess import Popen

import fencepost
from bench.handlers import Handlers
from bench.product import START_SECONDS, lines_of, worker_process
from fencepost.testing import VirtualClock

__all__ = ["measure"]

SCHEDULES, INSTANTS = 20, 250
TICKING, TICK_SECONDS = 3, 10
WAITING = 2_000
IDLE_SECONDS = 5.0


def measure(url: str) -> dict[str, float]:
    """Instants per second, milliseconds of lag, and per cent of one core, on an empty database."""
    fencepost.App(url).migrate()
    figures = {"materialise": _instants_per_second(url)}
    handlers = Handlers(url)
    with closing(handlers.app):
        figures |= _lag(handlers, url, "lag")
        figures |= _lag(handlers, url, "exact", tolerance=1)
        figures["schedules_idle_percent"] = _idle_percent(handlers, url)
    return figures


def _instants_per_second(url: str) -> float:
    """A planner that finds many schedules far behind and makes up for all of it."""
    clock = VirtualClock()
    app = fencepost.App(url, clock=clock)
    with closing(app):

        @app.job(kind="bench.made")
        async def made() -> None: ...

        for number in range(SCHEDULES):
            app.schedules.upsert(f"made {number}", made, every=60, misfire="catch_up", max_catch_up=INSTANTS)
        clock.advance(timedelta(minutes=INSTANTS))
        start = time.perf_counter()
        while app.store.materialise_due():
            pass
        seconds = time.perf_counter() - start
        assert app.jobs.count_live(made) == SCHEDULES * INSTANTS
        for number in range(SCHEDULES):
            app.schedules.delete(f"made {number}")
    return SCHEDULES * INSTANTS / seconds


def _lag(handlers: Handlers, url: str, name: str, *, tolerance: float | None = None) -> dict[str, float]:
    """From an occurrence's instant to the first line of its handler, in a worker process that is otherwise idle.

    With a tolerance the starts are fixed: claimed a little ahead, and awaited.
    """
    handlers.stamp.enqueue(sent=time.monotonic_ns())
    with worker_process("serve", url) as worker:
        lines = lines_of(worker)
        _next(lines)  # it is up: what was due before would be late for that alone
        for number in range(TICKING):
            handlers.app.schedules.upsert(f"tick {number}", handlers.tick, every=1, tolerance=tolerance)
        took = [_next(lines) for _ in range(TICKING * (TICK_SECONDS + 1))][TICKING:]
    for number in range(TICKING):
        handlers.app.schedules.delete(f"tick {number}")
    percentiles = quantiles(took, n=100, method="inclusive")
    return {f"{name}_p50_ms": percentiles[49], f"{name}_p99_ms": percentiles[98]}


def _next(lines: queue.Queue[str]) -> float:
    return int(lines.get(timeout=START_SECONDS)) / 1e3


def _idle_percent(handlers: Handlers, url: str) -> float:
    """A worker with thousands of schedules, none of which is due."""
    for number in range(WAITING):
        handlers.app.schedules.upsert(f"waiting {number}", handlers.tick, "0 0 1 1 *")
    handlers.stamp.enqueue(sent=time.monotonic_ns())
    with worker_process("serve", url) as worker:
        lines_of(worker).get(timeout=START_SECONDS)  # it is up
        before = _cpu_seconds(worker)
        time.sleep(IDLE_SECONDS)
        return (_cpu_seconds(worker) - before) / IDLE_SECONDS * 100


def _cpu_seconds(process: Popen[str]) -> float:
    with open(f"/proc/{process.pid}/stat") as stat:  # noqa: PTH123 - a file of the kernel's
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
