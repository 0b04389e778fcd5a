"""Many customers import files through one queue; none of them can hold up the others.

    python examples/multi_tenant_importer.py

One customer uploads 5,000 files. Another uploads three a moment later, and a third pays for twice the share. The queue
is fair, so the small ones start at once, and bounded, so that nobody can fill the disk with waiting imports.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import fencepost

app = fencepost.App(f"sqlite:///{Path(tempfile.mkdtemp()) / 'imports.db'}")
app.queue("imports", fair=True, max_pending=6000, overflow="reject")

started: list[str] = []


@app.job(queue="imports", kind="import_file")
async def import_file(ctx: fencepost.JobContext, path: str) -> None:
    """Here the file at `path` would be read."""
    assert path.startswith(f"{ctx.tenant}/")
    started.append(ctx.tenant or "")


def upload(customer: str, files: int) -> None:
    """Enqueue one import a file, on the customer's behalf."""
    imports = import_file.using(tenant=customer)
    app.enqueue_many(imports.build(path=f"{customer}/{number}.csv") for number in range(files))


def main() -> None:
    """Upload, work, and show who was served when."""
    app.migrate()
    app.queues.set_weight("imports", "gold", 2)
    upload("huge", 5000)
    upload("tiny", 3)
    upload("gold", 300)
    try:
        upload("late", 1000)
    except fencepost.QueueFull as error:
        print(f"Told to come back later: {error}")
    app.run_worker(burst=True)
    last_of_tiny = max(place for place, customer in enumerate(started) if customer == "tiny")
    print(f"tiny was done after {last_of_tiny + 1} of {len(started)} imports.")
    shared = Counter(started[:300])
    print(f"Of the first 300, gold had {shared['gold']} and huge {shared['huge']}.")


if __name__ == "__main__":
    main()
