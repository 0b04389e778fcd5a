"""`fencepost worker`: run jobs, while a person or a machine follows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from fencepost.cli.logs import LogFormat, LogLevel, configure
from fencepost.cli.options import AppArgument, duration, labels_of
from fencepost.cli.output import console
from fencepost.cli.status import LiveLine, summary
from fencepost.cli.targets import load_app
from fencepost.errors import ConfigurationError
from fencepost.job import DEFAULT_LEASE_SECONDS
from fencepost.worker import Worker
from fencepost.worker.worker import DEFAULT_CONCURRENCY, DEFAULT_GRACE_SECONDS, DEFAULT_POLL_SECONDS

__all__ = ["worker"]

logger = logging.getLogger("fencepost.cli.worker")

_SUMMARY_SECONDS = 30.0


def worker(
    where: AppArgument,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="Serve this queue; may be repeated. Default: all."),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", metavar="N", min=1, help="How many jobs run at once on the event loop and on threads."
        ),
    ] = DEFAULT_CONCURRENCY,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", metavar="N", min=1, help="How many run at once in processes. Default: the number of cores."
        ),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            show_default=f"{DEFAULT_LEASE_SECONDS:g}s",
            help="After a crash, jobs come back when this has passed.",
        ),
    ] = DEFAULT_LEASE_SECONDS,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            show_default=f"{DEFAULT_GRACE_SECONDS:g}s",
            help="How long a stop waits for running jobs.",
        ),
    ] = DEFAULT_GRACE_SECONDS,
    poll: Annotated[
        float,
        typer.Option(
            "--poll",
            parser=duration,
            metavar="DURATION",
            show_default=f"{DEFAULT_POLL_SECONDS:g}s",
            help="How often an idle worker asks.",
        ),
    ] = DEFAULT_POLL_SECONDS,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            help="What this worker has; may be repeated. Jobs that need other labels are left to other workers.",
        ),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left that could run now.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", metavar="text|json", help="json: one object per line, for machines.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", metavar="LEVEL", help="The least that is logged: debug, info, warning, error."),
    ] = LogLevel.INFO,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only warnings and errors, and no live line.")] = False,
) -> None:
    """Run an app's jobs until it is stopped.

    SIGTERM or Ctrl-C stops it: it claims no more, waits for the jobs that run, and hands back what has not ended
    within the grace. A second Ctrl-C waits no longer.

    What it logs goes to stderr. On a terminal one line below it is kept up to date. Exit code 0 after a clean stop.

    \b
    Example:
      fencepost worker tasks:app --queue mail --queue default --concurrency 20
    """
    app = load_app(where)
    if app.store.database.in_memory:
        raise ConfigurationError(
            f"{where} has its jobs in memory, where no other process can enqueue any. Use a file: "
            "fencepost.App('sqlite:///jobs.db'). (In tests, app.run_worker(burst=True) works in memory.)"
        )
    made = app.worker(
        queues=queue or None,
        concurrency=concurrency,
        processes=processes,
        lease=lease,
        grace=grace,
        poll=poll,
        burst=burst,
        labels=labels_of(label),
    )
    out = console(on_stderr=True)
    configure(log_format, max(log_level, LogLevel.WARNING, key=list(LogLevel).index) if quiet else log_level, out)
    is_live = out.is_terminal and log_format is LogFormat.TEXT and not quiet
    with _live_line(made, out, queue) if is_live else _summaries(made):
        made.run()


@contextmanager
def _live_line(made: Worker, out: Console, queues: list[str] | None) -> Iterator[None]:
    """One line at the bottom of the terminal, written anew twice a second."""
    live = LiveLine(made, queues)
    with Live(get_renderable=live.render, console=out, refresh_per_second=2, transient=True):
        yield
    logger.info("%s", summary(made.figures))


@contextmanager
def _summaries(made: Worker) -> Iterator[None]:
    """An ordinary log line now and then, while there is something new to say, and at the end."""
    ended = threading.Event()

    def log() -> None:
        figures = made.figures
        fields = {name: getattr(figures, name) for name in ("running", "succeeded", "failed", "lost")}
        logger.info("%s", summary(figures), extra=fields)

    def repeat() -> None:
        said = made.figures
        while not ended.wait(_SUMMARY_SECONDS):
            if made.figures != said:
                said = made.figures
                log()

    thread = threading.Thread(target=repeat, name="fencepost-summaries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        log()
