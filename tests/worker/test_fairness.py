"""Fair and bounded queues with a worker at work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import fencepost
from tests.waiting import until
from tests.worker.conftest import Working

ROOT = Path(__file__).parents[2]


def test_a_worker_serves_a_small_tenant_in_the_middle_of_a_flood(app: fencepost.App, working: Working) -> None:
    started: list[str] = []
    gate = threading.Event()

    @app.job(queue="imports", kind="import")
    def load(ctx: fencepost.JobContext) -> None:
        gate.wait(20)
        started.append(ctx.tenant or "")

    app.queue("imports", fair=True)
    app.enqueue_many(load.using(tenant="big").build() for _ in range(400))
    working(concurrency=2)
    until(lambda: app.queues.get("imports").running == 2, "the flood is being served")
    small = load.using(tenant="small").enqueue()
    until(lambda: small.job().state != "blocked", "it has its turn")
    gate.set()
    small.result(timeout=20)
    assert started.index("small") <= 8  # those that were claimed already, and one round


def test_the_example_of_many_tenants_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "multi_tenant_importer.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Told to come back later" in done.stdout
    assert "tiny was done after" in done.stdout
