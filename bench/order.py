"""Who goes first: what a claim costs beside a large backlog, how tenants share a queue, and who takes the lead over."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import fencepost
from bench.handlers import Handlers
from bench.plot import save_shares
from bench.product import START_SECONDS, worker_process
from fencepost.planning.outcome import Outcome, Verb

__all__ = ["measure"]

SMALL = 1_000
QUEUES = 20
CLAIMS, CLAIMED = 30, 100
LEASE_SECONDS = 3600
WEIGHTS = {"small": 1, "medium": 2, "large": 4}
WAITING, WINDOW, WINDOWS = 3_000, 140, 30
TAKEOVERS = 3
LOOK_SECONDS = 0.01


def measure(url: str, backlog: int, plot: Path | None) -> dict[str, float]:
    """Milliseconds of a claim, deviation of shares from weights, and seconds to a new leader, on an empty database.

    Args:
        url: of the database.
        backlog: how many ready jobs a claim has beside it.
        plot: where the shares over time are drawn; None: nowhere.
    """
    app = fencepost.App(url)
    with closing(app):
        app.migrate()
        figures = _claims(app, backlog)
    figures |= _shares(url, plot)
    figures |= _takeover(url)
    return figures


def _claims(app: fencepost.App, backlog: int) -> dict[str, float]:
    """A claim of 100 with few ready jobs and with many: 20 queues, mixed priorities, tenants, deadlines and labels."""

    @app.job(kind="bench.mixed")
    async def mixed(i: int) -> None: ...

    draw = random.Random(1)
    soon = datetime.now(UTC) + timedelta(days=1)
    options = [
        mixed.using(
            queue=f"queue-{number % QUEUES}",
            priority=draw.choice(["critical", "high", "normal", "low"]),
            tenant=f"tenant-{draw.randrange(50)}",
            deadline=draw.choice([None, soon]),
            labels=draw.choice([None, {"gpu": "a100"}]),
        )
        for number in range(QUEUES * 20)
    ]

    def build(count: int) -> Iterator[fencepost.NewJob]:
        return (options[i % len(options)].build(i=i) for i in range(count))

    app.enqueue_many(build(SMALL + CLAIMS * CLAIMED))
    few = _claim_milliseconds(app)
    app.enqueue_many(build(backlog))
    return {"claim_few_ms": few, "claim_many_ms": _claim_milliseconds(app)}


def _claim_milliseconds(app: fencepost.App) -> float:
    took = []
    for _ in range(CLAIMS):
        start = time.perf_counter()
        claims = app.store.claim(
            "bench", kinds=["bench.mixed"], labels={"gpu": "a100"}, limit=CLAIMED, lease=LEASE_SECONDS
        )
        took.append((time.perf_counter() - start) * 1e3)
        assert len(claims) == CLAIMED
        app.store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims])
    return median(took)


def _shares(url: str, plot: Path | None) -> dict[str, float]:
    """Three tenants of weights 1, 2 and 4 with jobs waiting: the largest deviation from their shares, in per cent."""
    app = fencepost.App(url)
    with closing(app):
        app.queue("fair", fair=True)

        @app.job(kind="bench.fair", queue="fair")
        async def shared(i: int) -> None: ...

        app.queues.sync()
        for tenant, weight in WEIGHTS.items():
            app.queues.set_weight("fair", tenant, weight)
            app.enqueue_many(shared.using(tenant=tenant).build(i=i) for i in range(WAITING))
        windows: list[Counter[str]] = []
        while len(windows) < WINDOWS:
            while app.store.promote_due():
                pass
            claims = app.store.claim("bench", kinds=["bench.fair"], limit=WINDOW, lease=LEASE_SECONDS)
            windows.append(Counter(str(claim.tenant) for claim in claims))
            app.store.settle([(claim, Outcome(Verb.COMPLETE)) for claim in claims])
        for tenant in WEIGHTS:
            for job in app.jobs.list(state="ready", tenant=tenant, limit=1):
                assert job.tenant == tenant, "all of them had jobs waiting to the end"
    total = sum(windows, Counter[str]())
    started, weights = sum(total.values()), sum(WEIGHTS.values())
    if plot is not None:
        save_shares(plot, windows, WEIGHTS)
    worst = max(abs(total[tenant] / started / (weight / weights) - 1) for tenant, weight in WEIGHTS.items())
    return {"shares_percent": worst * 100}


def _takeover(url: str) -> dict[str, float]:
    """From the kill of the worker that leads until another one does, with the default lease of 5 s."""
    handlers = Handlers(url)
    took = []
    with closing(handlers.app):
        for _ in range(TAKEOVERS):
            with worker_process("serve", url) as first:
                before = _leader(handlers.app, 0)
                with worker_process("serve", url):
                    handlers.stamp.enqueue(sent=time.monotonic_ns()).result(timeout=START_SECONDS)
                    first.kill()
                    killed = time.monotonic()
                    _leader(handlers.app, before)
                    took.append(time.monotonic() - killed)
    return {"takeover_seconds": max(took)}


def _leader(app: fencepost.App, epoch: int) -> int:
    """Wait for a leader of a greater epoch. Returns it."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = app.store.leader()
        if found is not None and found.epoch > epoch and found.holder is not None:
            return found.epoch
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"nobody took the lead within {START_SECONDS:g} s")
