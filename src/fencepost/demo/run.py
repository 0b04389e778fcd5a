"""The course of the demo: workers, jobs, a kill, a moment without any, others, until all is settled; then the audit."""

from __future__ import annotations

import shutil
import signal
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text
from sqlalchemy import URL

from fencepost.app import App
from fencepost.demo.audit import Enqueued, audit, median_waits
from fencepost.demo.crew import CONCURRENCY, LEASE_SECONDS, Crew, WorkerProcess
from fencepost.demo.display import Display
from fencepost.demo.jobs import (
    PACE_SECONDS,
    QUEUE,
    SCHEDULE_QUEUE,
    SCHEDULES,
    count_file,
    digest_files,
    files,
    runs,
)
from fencepost.demo.timetable import audit_schedules, has_missed, has_overlapped
from fencepost.errors import ConfigurationError, FencepostError
from fencepost.job import Job, Priority, State
from fencepost.store import QueueCounts
from fencepost.store.rows import instant

__all__ = ["DEFAULT_FILES", "run_demo"]

DEFAULT_FILES = 500

_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 180.0
_DELAY_SECONDS = 5.0
_KILL_AT = 0.3  # of the jobs done
_STANDSTILL_SECONDS = 3.0
_BATCH = 100


def run_demo(out: Console, *, files: int, database: Path | None, keep: bool) -> bool:
    """Run it. Returns whether every check of the audit holds.

    Args:
        out: where to show it.
        files: how many files are counted.
        database: a new SQLite file, kept afterwards; None: one in a temporary folder.
        keep: whether to keep the temporary folder.

    Raises:
        ConfigurationError: the database file is there already, or there is no input.
        FencepostError: a worker ended by itself, or nothing moved any more.
    """
    if database is not None and database.exists():
        raise ConfigurationError(f"{database} exists already. Name a new file: the demo does not touch yours.")
    paths = _library_files(files)
    folder = Path(tempfile.mkdtemp(prefix="fencepost-demo-"))
    path = (folder / "demo.db") if database is None else database.absolute()
    is_kept = keep
    try:
        with _ending_on_signals():
            is_good = _run(out, paths, path, folder)
        is_kept = keep or not is_good  # what went wrong is to be looked at
        if is_kept or database is not None:
            out.print(Text(f"\nIt is all in {path}. Look at it with:"), soft_wrap=True)
            out.print(Text(f"  fencepost jobs list --url sqlite:///{path}"), soft_wrap=True)
        if is_kept:
            out.print(Text(f"The workers' logs are in {folder}"), soft_wrap=True)
        return is_good
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _library_files(number: int) -> list[str]:
    """Source files of Python's own library, evenly spread over it."""
    library = Path(sysconfig.get_path("stdlib"))
    found = sorted(str(path) for path in library.rglob("*.py") if "site-packages" not in path.parts)
    if not found:
        raise ConfigurationError(f"There are no source files in {library}, which the demo counts.")
    number = min(number, len(found))
    return [found[place * len(found) // number] for place in range(number)]


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: by an exception, so that its workers are ended too."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(out: Console, paths: list[str], path: Path, folder: Path) -> bool:
    url = URL.create("sqlite", database=str(path)).render_as_string()
    app = App(url)
    try:
        app.migrate()
        with app.store.transaction() as conn:
            files.create(conn)
            runs.create(conn)
        _introduce(out, len(paths))
        started = instant(app.store.now())
        assert started is not None
        with Crew(url, folder) as crew, Display(out, len(paths) + 1) as display:
            course = Course(app, crew, display)
            course.run(paths)
        return _report(out, app, course, started)
    finally:
        app.close()


def _introduce(out: Console, number: int) -> None:
    out.print(Text("fencepost demo", "bold"))
    for said in (
        f"{number} source files of Python's own library are counted, a job each, on one SQLite file.",
        f"Two worker processes run {CONCURRENCY} jobs at once each; a job takes {PACE_SECONDS:g} s, for you to follow.",
        "One job in ten fails at first, on purpose. Some are delayed. One runs in a process of its own.",
        "Three schedules fire every second beside them; one takes longer than that, and is not to overlap itself.",
        f"Half-way a worker is killed with kill -9: its jobs come back when their lease ({LEASE_SECONDS} s) ends.",
        f"Then the other one is stopped too, and for {_STANDSTILL_SECONDS:g} s nothing runs and instants pass.",
        "When all is settled, everything is counted once more, directly, and compared.\n",
    ):
        out.print(Text(said), soft_wrap=True)


def _report(out: Console, app: App, course: Course, started: datetime) -> bool:
    checks = audit(app, course.enqueued, course.died, course.killed) + audit_schedules(app)
    out.print(Text("\nAudit", "bold"))
    for check in checks:
        mark = ("ok     ", "green") if check.is_kept else ("WRONG  ", "bold red")
        out.print(Text.assemble(mark, check.said), soft_wrap=True)
    waits = ", ".join(f"{priority} {seconds:.1f} s" for priority, seconds in median_waits(app, started).items())
    out.print(Text(f"       (half of the jobs of each priority had started after: {waits})", "dim"), soft_wrap=True)
    is_good = all(check.is_kept for check in checks)
    out.print(
        Text("\nNothing acknowledged was lost, and nothing was stored twice.", "bold green")
        if is_good
        else Text("\nThe audit found something wrong.", "bold red"),
        soft_wrap=True,
    )
    return is_good


class Course:
    """What happens, in order.

    Args:
        app: on the demo's database.
        crew: its workers.
        display: what a person sees.
    """

    enqueued: Enqueued
    killed: str
    """The name in the database of the worker that was killed."""
    died: frozenset[str]
    """The ids of the jobs that it was running."""

    def __init__(self, app: App, crew: Crew, display: Display) -> None:
        self._app = app
        self._crew = crew
        self._display = display
        self._give_up_at = time.monotonic() + _PATIENCE_SECONDS
        self._dead: set[int] = set()

    def run(self, paths: list[str]) -> None:
        """All of it, until nothing waits or runs any more."""
        victim, other = self._hire(), self._hire()
        self.killed = self._name_of(victim)
        self._name_of(other)
        self.enqueued = self._enqueue(paths)
        total = len(self.enqueued.acknowledged)
        self._wait(lambda counts: _left(counts) <= total * (1 - _KILL_AT))
        caught = self._kill(victim)
        self.died = frozenset(job.id for job in caught)
        self._display.happened(
            f"kill -9 {victim.name} (process {victim.pid}), while it was running {len(caught)} jobs", "bold red"
        )
        self._stand_still(other)
        for worker in (self._hire(), self._hire()):
            self._name_of(worker)
        self._wait(lambda counts: _left(counts) == 0)
        self._end_schedules()
        self._display.happened("nothing waits or runs any more")

    def _hire(self) -> WorkerProcess:
        worker = self._crew.hire()
        self._display.happened(f"{worker.name} starts (process {worker.pid})")
        return worker

    def _name_of(self, worker: WorkerProcess) -> str:
        """Wait until a worker has reported itself; its name in the database."""
        while True:
            for known in self._app.store.list_workers():
                if known.pid == worker.pid:
                    return known.owner
            self._pause()

    def _enqueue(self, paths: list[str]) -> Enqueued:
        """A few jobs of each kind, in batches, while the workers are at work already."""
        built, failing, delayed = [], set(), set()
        for place, path in enumerate(paths):
            share = place % 20
            prepared = count_file.using(
                delay=_DELAY_SECONDS if share == 0 else None,
                priority=Priority.HIGH if share == 1 else Priority.LOW if share in (2, 3) else Priority.NORMAL,
            )
            job = prepared.build(path=path, fails_first=share in (4, 5))
            built.append(job)
            if share == 0:
                delayed.add(job.id)
            if share in (4, 5):
                failing.add(job.id)
        built.append(digest_files.using(priority="critical").build(paths=paths))
        handles = []
        for start in range(0, len(built), _BATCH):
            handles += self._app.enqueue_many(built[start : start + _BATCH])
        self._display.happened(
            f"{len(handles)} jobs are enqueued: {len(failing)} of them will fail at first, {len(delayed)} are to wait "
            f"{_DELAY_SECONDS:g} s"
        )
        *counting, digest = [handle.id for handle in handles]
        return Enqueued(
            len(built), dict(zip(counting, paths, strict=True)), frozenset(failing), frozenset(delayed), digest
        )

    def _kill(self, victim: WorkerProcess) -> list[Job]:
        """Kill a worker at an instant at which it certainly runs jobs.

        It is frozen first: what the database then says that it runs, it can settle no more. Where it happens to run
        nothing, it goes on for a moment.
        """
        while True:
            victim.check()
            if victim.freeze():
                running = self._app.jobs.list(state=State.RUNNING, queue=QUEUE, limit=1000)
                caught = [job for job in running if job.lease_owner == self.killed]
                if caught or not _left(self._counts()):
                    self._dead.add(victim.pid)
                    victim.kill()
                    return caught
                victim.thaw()
            self._pause()

    def _stand_still(self, worker: WorkerProcess) -> None:
        """Stop the last worker, as a deploy does, and let time pass while there is none."""
        self._dead.add(worker.pid)
        worker.terminate()
        worker.end()
        self._display.happened(f"{worker.name} is stopped (SIGTERM) and has ended: no worker is left", "bold yellow")
        until = time.monotonic() + _STANDSTILL_SECONDS
        while time.monotonic() < until:
            self._pause()

    def _end_schedules(self) -> None:
        """Pause the schedules when they have shown what they are to show; what they made ends."""
        while not (has_overlapped(self._app) and has_missed(self._app)):
            self._pause()
        for name in SCHEDULES:
            self._app.schedules.pause(name)
        self._display.happened("the schedules are paused")
        while _left(self._counts(SCHEDULE_QUEUE)):
            self._pause()

    def _wait(self, is_reached: Callable[[QueueCounts], bool]) -> None:
        while not is_reached(self._counts()):
            self._pause()

    def _counts(self, queue: str = QUEUE) -> QueueCounts:
        for counts in self._app.store.queue_counts():
            if counts.name == queue:
                return counts
        return QueueCounts(queue, ready=0, blocked=0, scheduled=0, running=0, paused_since=None)

    def _pause(self) -> None:
        """Between two looks: show how far it is, and see that the workers live."""
        if time.monotonic() > self._give_up_at:
            raise FencepostError(f"The demo is not through after {_PATIENCE_SECONDS:g} s, and gives up.")
        living = [worker for worker in self._crew.workers if worker.pid not in self._dead]
        for worker in living:
            worker.check()
        if hasattr(self, "enqueued"):
            self._display.progress(self._counts(), ", ".join(worker.name for worker in living))
        time.sleep(_LOOK_SECONDS)


def _left(counts: QueueCounts) -> int:
    return counts.ready + counts.blocked + counts.scheduled + counts.running
