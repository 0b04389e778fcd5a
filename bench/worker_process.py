"""One worker, as its own process: `python -m bench.worker_process drain|serve`, the database in FENCEPOST_BENCH_URL.

`drain` works until nothing is left and prints one line of JSON; `serve` works until SIGTERM.
"""

from __future__ import annotations

import json
import os
import sys
import time

from bench.handlers import Handlers
from bench.machine import peak_memory_mib

__all__ = ["URL_VARIABLE", "drain", "serve"]

URL_VARIABLE = "FENCEPOST_BENCH_URL"  # not an argument: it may hold a password, and arguments are public
CONCURRENCY = 1000


def drain(url: str) -> dict[str, float]:
    """Run everything that is ready. The clock runs from the start of the worker until it has returned."""
    handlers = Handlers(url)
    before = peak_memory_mib()
    start = time.perf_counter()
    handlers.app.run_worker(concurrency=CONCURRENCY, burst=True)
    return {
        "seconds": time.perf_counter() - start,
        "ran": handlers.ran,
        "idle_mib": before,
        "peak_mib": peak_memory_mib(),
    }


def serve(url: str) -> None:
    """Run what comes, until the process is told to stop."""
    Handlers(url).app.run_worker(concurrency=CONCURRENCY)


if __name__ == "__main__":
    if sys.argv[1:] == ["drain"]:
        print(json.dumps(drain(os.environ[URL_VARIABLE])))
    elif sys.argv[1:] == ["serve"]:
        serve(os.environ[URL_VARIABLE])
    else:
        sys.exit(__doc__)
