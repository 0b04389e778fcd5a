"""A nightly pipeline: three sources fetched side by side, one summary of all, and an alarm if a part fails.

    python examples/nightly_pipeline.py [DATABASE_URL]

One source is down at the first try. What hangs on it is skipped and the alarm rings; when the source is back, retrying
the one job brings back what hung on it, and nothing else runs again.
"""

from __future__ import annotations

import sys

import fencepost

URL = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///nightly_pipeline.db"
SOURCES = {"shops": 120, "web": 340, "phone": 15}

app = fencepost.App(URL)
down = {"web"}


@app.job(max_attempts=1)
def fetch(source: str) -> int:
    """What a real one would do with an HTTP client."""
    if source in down:
        raise fencepost.Abandon(f"{source} is down")
    return SOURCES[source]


@app.job
def summarise(ctx: fencepost.JobContext) -> int:
    """The results of those before it, by the names that the workflow gives them."""
    return sum(ctx.dependencies.values())


@app.job
def publish(ctx: fencepost.JobContext) -> str:
    """The last step."""
    return f"{ctx.dependencies['summary']} orders"


@app.job
def alarm(source: str) -> str:
    """Runs for a source that failed, and is skipped for one that did not."""
    return f"somebody should look after {source}"


def main() -> None:
    """Enqueue the graph, let it fail, retry the part that failed."""
    app.migrate()
    flow = fencepost.Workflow()
    for source in SOURCES:
        flow.add(source, fetch.build(source))
        flow.add(f"{source} alarm", alarm.build(source), after=source, when="failure")
    flow.add("summary", summarise.build(), after=list(SOURCES))
    flow.add("publish", publish.build(), after="summary")
    handles = app.enqueue_graph(flow)

    app.run_worker(burst=True)
    print({name: str(handle.job().state) for name, handle in handles.items()})
    print(handles["web alarm"].result(timeout=1))

    down.clear()
    app.jobs.retry(handles["web"].id)
    app.run_worker(burst=True)
    print(handles["publish"].result(timeout=1))


if __name__ == "__main__":
    main()
