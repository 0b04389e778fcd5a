"""A process with a schedule of every second: `python -m tests.chaos.scheduler_main URL [web]`.

As a worker, or `web`: with the worker on a thread beside something else, as a web server's start-up hook has it.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

import fencepost


def main(url: str, mode: str = "worker") -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    app = fencepost.App(url)

    @app.schedule("* * * * * *", name="every second")
    @app.job(kind="tick")
    def tick() -> None: ...

    if mode == "worker":
        app.run_worker(lease=2, grace=5, poll=0.1, leader_lease=2)
    else:
        beside_a_server(app)
    app.close()


def beside_a_server(app: fencepost.App) -> None:
    """Until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    worker = app.worker(lease=2, grace=5, poll=0.1, leader_lease=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    stopped.wait()
    worker.stop()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
