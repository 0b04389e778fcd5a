"""Call an API under its rate limit, whatever the number of workers, queues and machines.

    python examples/rate_limited_api.py [DATABASE_URL]

The API allows each customer 20 calls a second with bursts of 5. One customer asks for more than that, and the others do
not wait for it. At most two calls to the slow report endpoint run at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict

import fencepost

URL = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///rate_limited_api.db"
RATE, BURST = 20, 5

app = fencepost.App(URL)
calls: dict[str, list[float]] = defaultdict(list)


@app.job(queue="api", rate=lambda customer: (customer, RATE, BURST), resources={"reports": 1})
async def fetch_report(customer: str, number: int) -> str:
    """What a real one would do with an HTTP client."""
    calls[customer].append(time.monotonic())
    return f"report {number} of {customer}"


def main() -> None:
    """Enqueue for one busy customer and two quiet ones, work, and say how fast it went."""
    app.migrate()
    app.limits.set_semaphore("reports", capacity=2)
    jobs = [("busy", number) for number in range(25)] + [("quiet", 1), ("calm", 1)]
    handles = app.enqueue_many(fetch_report.build(customer, number) for customer, number in jobs)

    worker = app.worker(concurrency=10)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for handle in handles:
            handle.result(timeout=30)
    finally:
        worker.stop()
        thread.join()

    busy = calls["busy"]
    print(f"{len(handles)} calls; busy: {len(busy)} in {busy[-1] - busy[0]:.1f} s")
    for customer in ("quiet", "calm"):
        print(f"{customer}: after {sum(at < calls[customer][0] for at in busy)} calls of the busy customer")


if __name__ == "__main__":
    main()
