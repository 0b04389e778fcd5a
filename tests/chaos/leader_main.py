"""A worker with a schedule of every second, that leads or stands by: `python -m tests.chaos.leader_main LEASE`."""

from __future__ import annotations

import logging
import os
import sys

import fencepost
from tests.chaos.handlers import URL_VARIABLE


def main(leader_lease: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    app = fencepost.App(os.environ[URL_VARIABLE])

    @app.schedule("* * * * * *", name="every second", misfire="catch_up")
    @app.job(kind="tick")
    def tick() -> None: ...

    app.run_worker(lease=2, grace=5, poll=0.1, leader_lease=float(leader_lease))
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
