"""The handlers of the benchmark, registered alike in the process that enqueues and in the worker's."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import fencepost

__all__ = ["BUCKET", "Handlers"]

BUCKET = "bench.bucket"


@dataclass
class Handlers:
    """An app on a scratch database, and the jobs it knows.

    Args:
        url: the database.

    Attributes:
        app: what the benchmark talks to.
        noop: a job that does nothing, so that all the time is fencepost's.
        stamp: a job that says on standard output how long after its enqueue it started.
        tick: a job of a schedule that says how many microseconds after its instant it started.
        paced: a no-op job that needs a token of the bucket.
        alone: a no-op job under a concurrency key that all of them share.
        ran: how many no-op jobs ran in this process.
    """

    url: str
    app: fencepost.App = field(init=False)
    ran: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.app = fencepost.App(self.url)

        @self.app.job(kind="bench.noop")
        async def noop(i: int) -> None:  # noqa: ARG001 - an argument to carry
            self.ran += 1

        @self.app.job(kind="bench.stamp")
        async def stamp(sent: int) -> None:
            # Written in one call, past Python's buffers: the reader waits for the line.
            os.write(1, b"%d\n" % (time.monotonic_ns() - sent))

        @self.app.job(kind="bench.tick")
        async def tick(ctx: fencepost.JobContext) -> None:
            assert ctx.scheduled_for is not None
            late = datetime.now(UTC) - ctx.scheduled_for
            os.write(1, b"%d\n" % (late // timedelta(microseconds=1)))

        @self.app.job(kind="bench.paced", resources={BUCKET: 1})
        async def paced(i: int) -> None: ...

        @self.app.job(kind="bench.alone", concurrency="bench.alone")
        async def alone(i: int) -> None: ...

        self.noop = noop
        self.paced = paced
        self.alone = alone
        self.tick = tick
        self.stamp = stamp
