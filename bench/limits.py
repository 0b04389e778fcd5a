"""Limits: how near several workers come to a bucket's rate, and what a saturated key costs the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from statistics import median

from sqlalchemy import text

from bench.handlers import BUCKET, Handlers
from bench.product import START_SECONDS, worker_process

__all__ = ["measure"]

WORKERS = 4
RATE, BURST = 1000, 100
PACED_JOBS = 4_000
SATURATING_JOBS = 20_000
CLAIMS = 50

_STARTS = text("SELECT started_at FROM fencepost_jobs WHERE kind = 'bench.paced' AND state = 'succeeded'")


def measure(url: str) -> dict[str, float]:
    """Jobs per second, jobs ahead of the rate, and milliseconds of a claim, on an empty database."""
    handlers = Handlers(url)
    with closing(handlers.app):
        handlers.app.migrate()
        figures = _pace(handlers, url)
        figures["claim_beside_none_ms"] = _claim_ms(handlers)
        _saturate(handlers)
        figures["claim_beside_saturated_ms"] = _claim_ms(handlers)
    return figures


def _pace(handlers: Handlers, url: str) -> dict[str, float]:
    """Four worker processes, all of them up, and jobs enough for some seconds that come at once."""
    handlers.app.limits.set_bucket(BUCKET, rate=RATE, burst=BURST)
    with ExitStack() as crew:
        for _ in range(WORKERS):
            crew.enter_context(worker_process("serve", url))
        _until(lambda: len(handlers.app.store.list_workers()) == WORKERS)
        handlers.app.enqueue_many(handlers.paced.build(i=i) for i in range(PACED_JOBS))
        starts: Sequence[float] = ()

        def done() -> bool:
            nonlocal starts
            with handlers.app.store.database.reading() as conn:
                starts = sorted(row.started_at / 1e6 for row in conn.execute(_STARTS))
            return len(starts) == PACED_JOBS

        time.sleep(PACED_JOBS / RATE)
        _until(done)
    # What was in the bucket before is not its rate.
    figures = {"paced": (len(starts) - BURST) / (starts[-1] - starts[0]), "paced_ahead": _most_ahead(starts)}
    if figures["paced_ahead"] > BURST:
        raise AssertionError(f"{figures['paced_ahead']:.0f} jobs ran ahead of a bucket that holds {BURST}")
    return figures


def _most_ahead(starts: Sequence[float]) -> float:
    """The most jobs in any window of t seconds beyond rate * t."""
    ahead = most = 1.0
    for before, at in pairwise(starts):
        ahead = max(0.0, ahead - (at - before) * RATE) + 1
        most = max(most, ahead)
    return most


def _saturate(handlers: Handlers) -> None:
    """One job of a key runs, thousands wait for it, and a worker has met them all."""
    handlers.app.enqueue_many(handlers.alone.build(i=i) for i in range(SATURATING_JOBS))
    kinds = frozenset([handlers.alone.kind])
    store = handlers.app.store
    store.claim("holder", kinds=kinds, limit=1, lease=600)
    while store.has_ready(kinds, None):
        store.claim("other", kinds=kinds, limit=1000)


def _claim_ms(handlers: Handlers) -> float:
    """One job of another kind: the median of its claims by somebody who runs both kinds."""
    kinds = [handlers.noop.kind, handlers.alone.kind]
    handlers.app.enqueue_many(handlers.noop.build(i=i) for i in range(CLAIMS))
    took = []
    for _ in range(CLAIMS):
        start = time.perf_counter()
        (claim,) = handlers.app.store.claim("other", kinds=kinds, limit=1)
        took.append((time.perf_counter() - start) * 1000)
        assert handlers.app.store.complete(claim)
    return median(took)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"the workers have not done it within {START_SECONDS:g} s")
        time.sleep(0.1)
