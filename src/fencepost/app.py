"""The public face: `App` registers handlers, enqueues, runs workers and answers questions about jobs."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import time
import weakref
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from sqlalchemy import URL, Engine

from fencepost.backpressure import bounded_steps, enqueue_within_bounds
from fencepost.codec import MAX_PAYLOAD_BYTES
from fencepost.context import JobContext
from fencepost.enqueuer import Enqueuer
from fencepost.errors import ConfigurationError, JobNotFound, QueueFull
from fencepost.function import Decorator, JobFunction, Prepared
from fencepost.handle import JobHandle
from fencepost.ids import new_id, parse_id
from fencepost.job import FINAL_STATES, EnqueueResult, Job, NewJob, Options, State
from fencepost.labels import check_labels
from fencepost.limit_options import check_computed
from fencepost.limits import Limits
from fencepost.options import Asked, build_options, check_name
from fencepost.planner.retention import Walk
from fencepost.planning.fixed_start import StartFigures
from fencepost.planning.retention import Rules
from fencepost.queue import QueueSettings
from fencepost.queues import AskedQueue, Queues
from fencepost.registry import ExecutorName, Handler, Registry, kind_of
from fencepost.retention import EVERY_QUEUE, Retention, build_rules
from fencepost.schedules import AskedSchedule, Schedules
from fencepost.store import Clock, Database, Store
from fencepost.store.batches import ENQUEUE_BATCH, MOST_LISTED
from fencepost.store.diagnosis import diagnose
from fencepost.store.finding import Health
from fencepost.store.joining import joined
from fencepost.store.tables import QUEUE_CHARS
from fencepost.timing import micros
from fencepost.worker.worker import Worker, WorkerOptions
from fencepost.workflow import Workflow

__all__ = ["App", "Jobs"]

P = ParamSpec("P")
R = TypeVar("R")


class Jobs:
    """`app.jobs`: look at jobs, and act on them."""

    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, job_id: str) -> Job:
        """One job whole.

        Raises:
            JobNotFound: no such job.
        """
        job = self._app.store.get(_checked_id(job_id))
        if job is None:
            raise JobNotFound(f"No job {job_id}. It may have been pruned.")
        return job

    def list(
        self,
        *,
        state: State | str | Collection[State | str] | None = None,
        kind: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        tag: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """A page of jobs, newest first, without their arguments, results and history.

        Args:
            state: one or several; None: all.
            kind, queue, key, tenant: equal to this; None: any.
            tag: among its tags; None: any.
            labels: among its labels, all of them; None: any.
            before: the last id of the page before.
            limit: how many at most, up to 1,000; default 50.

        Raises:
            ConfigurationError: an unknown state or a limit out of range.
        """
        wanted = [] if state is None else [state] if isinstance(state, str) else sorted(state)
        unknown = [word for word in wanted if word not in list(State)]
        if unknown:
            raise ConfigurationError(f"No state {unknown[0]!r}. States: {', '.join(State)}")
        if not 1 <= limit <= MOST_LISTED:
            raise ConfigurationError(f"limit is from 1 to {MOST_LISTED}, not {limit}")
        return self._app.store.list_jobs(
            states=[str(word) for word in wanted],
            kind=kind,
            queue=queue,
            key=key,
            tenant=tenant,
            tag=tag,
            labels=None if labels is None else check_labels(labels),
            before=None if before is None else _checked_id(before),
            limit=limit,
        )

    def start_figures(self, within: float | timedelta = 3600) -> StartFigures:
        """How many fixed starts were kept, of the jobs that ended lately (the newest 10,000 at most).

        Args:
            within: seconds or timedelta before now; default an hour.
        """
        store = self._app.store
        return store.start_figures(store.now() - micros(within, "within"))

    def retry(self, job_id: str) -> JobHandle[Any]:
        """Make a failed, cancelled or skipped job ready again, with fresh attempts.

        If a newer live job holds its identity, that one does the work: the handle names it, with `created=False`.

        Raises:
            JobNotFound: no such job.
            InvalidTransition: it succeeded, or is live.
        """
        result = self._app.store.retry_job(_checked_id(job_id))
        self._app._wake_workers()
        return JobHandle(self._app.store, None, result.id, created=result.created)

    def cancel(self, job_id: str) -> bool:
        """Cancel a job: a waiting one at once, a running one at its worker's next heartbeat.

        Returns:
            Whether it is cancelled or will be; False: it was final already.

        Raises:
            JobNotFound: no such job.
        """
        return self._app.store.cancel_job(_checked_id(job_id))

    def find_live(self, kind: str | JobFunction[Any, Any], key: str) -> Job | None:
        """The live job that holds the identity `(kind, key)`, or None."""
        return self._app.store.find_live(_kind(kind), key)

    def count_live(self, kind: str | JobFunction[Any, Any]) -> int:
        """How many jobs of a kind wait or run."""
        return self._app.store.count_live(_kind(kind))


class App:
    """Jobs on one database.

    Args:
        target: `sqlite:///jobs.db`, `postgresql://...`, `mysql://...` (MariaDB too), `sqlite://` (in memory, for
            tests), or for PostgreSQL and MySQL a SQLAlchemy `Engine`.
        migrate: whether missing or old tables are created at the first use; default: on SQLite yes, on servers no
            (run `fencepost migrate`).
        synchronous: SQLite's FULL (default: acknowledged means on the disk) or NORMAL (a power cut may take back
            the last transactions).
        busy_timeout: seconds that SQLite waits for other writers; default 10.
        max_payload_bytes: the largest encoded arguments or result; default 6 MiB.
        retention: for how long final jobs are kept: a `fencepost.Retention` for all queues, or one a queue, by name
            ({"mail": Retention(...), "*": ...}; "*": those that are not named). It is stored when a worker of this app
            starts, and the leader deletes what has to go, whichever program it is of. Queues that are not named keep
            what is stored for them. None (default): nothing is changed; without any, jobs stay until `prune`.
        clock: stands in for the database's clock, for tests.

    Raises:
        ConfigurationError: a URL or an option that cannot work.
    """

    def __init__(
        self,
        target: str | URL | Engine,
        *,
        migrate: bool | None = None,
        synchronous: str = "FULL",
        busy_timeout: float = 10.0,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        retention: Retention | Mapping[str, Retention] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._retention = {} if retention is None else _checked_rules(retention)
        database = Database(target, clock=clock, synchronous=synchronous, busy_timeout=busy_timeout)
        migrates = database.dialect.name == "sqlite" if migrate is None else migrate
        self.store = Store(database, migrates=migrates)
        """The store, for custom workers."""
        self.jobs = Jobs(self)
        self.schedules = Schedules(self)
        self.queues = Queues(self)
        self.limits = Limits(self.store, self._wake_workers)
        """Buckets, semaphores, and what keys are held to, at run time."""
        self._registry = Registry()
        self._enqueuer = Enqueuer(self.store)
        self._max_payload_bytes = max_payload_bytes
        self._workers: tuple[weakref.ref[Worker], ...] = ()
        _apps.add(self)

    # Registration. The order matters: a context as first parameter falls away from what enqueue takes.

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        kind: str | None = None,
        executor: ExecutorName | None = None,
        **options: Unpack[Asked],
    ) -> Decorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        kind: str | None = None,
        executor: ExecutorName | None = None,
        **options: Unpack[Asked],
    ) -> Any:
        """Register a function as the handler of a kind of job.

        An async function runs on the worker's event loop, a plain one on a thread. A parameter annotated with
        `fencepost.JobContext` is filled in by the worker (put it first, and `enqueue` is typed without it).

        Args:
            function: the function, when used as `@app.job` without parentheses.
            kind: its name in the database; default: module path and function name. Give one to be able to rename
                or move the function.
            executor: "async", "thread" or "process"; default: by the kind of function. A process can be killed: use
                it for code that burns CPU, crashes, or must obey its timeout.
            **options: defaults for its jobs; see `using`.

        Raises:
            ConfigurationError: an option that cannot be, or a kind that another function has.
        """
        if options.keys() & {"key", "run_at", "deadline", "after", "when"}:
            raise ConfigurationError(
                "key, run_at, deadline, after and when belong to one job, not to all of a kind: pass to using()"
            )

        def register(function: Callable[..., Any]) -> JobFunction[..., Any]:
            if not inspect.isfunction(function):
                raise ConfigurationError(f"@app.job takes a function; {function!r} is none. Wrap it in one.")
            handler = Handler(
                kind=check_name(kind if kind is not None else kind_of(function), "kind"),
                function=function,
                options=build_options(Options(), **options),
                executor=_executor_for(function, executor),
                context_type=JobContext,
                max_payload_bytes=self._max_payload_bytes,
            )
            check_computed(handler.options, function, handler.kind)
            self._registry.add(handler)
            return JobFunction(self, handler)

        return register if function is None else register(function)

    def schedule(
        self, cron: str | None = None, /, *, name: str | None = None, **asked: Unpack[AskedSchedule]
    ) -> Callable[[JobFunction[P, R]], JobFunction[P, R]]:
        """Declare a schedule for a job function; stands above `@app.job`, as often as there are schedules.

        A worker brings the database in step when it starts: a changed schedule starts from now, one that vanished
        from its module is paused, never deleted. While old and new versions of the program run side by side, the
        higher `version` wins, and of equal ones the newer.

        Args:
            cron: 5 fields, 6 with leading seconds, or @hourly, @daily, ...; by Debian cron's rules.
            name: unique; default: the job's kind.
            every: instead of `cron`: seconds, a timedelta, or a text such as "90s", "15m".
            anchor: an aware datetime that is one of `every`'s instants; default: the Unix epoch.
            at: instead of `cron`: one aware datetime.
            timezone: of `cron`, an IANA name; default UTC.
            misfire: what becomes of instants that passed while nothing could run them: "skip", "latest" (default: the
                newest runs) or "catch_up" (the newest `max_catch_up` run, in order). Those that do not run are
                recorded in one skipped row.
            max_catch_up: default 100, at most 10,000.
            grace: seconds or timedelta within which an instant is late and not missed; default 60.
            jitter: seconds or timedelta by which a start is put off at most, drawn from name and instant; default 0.
            until: an aware datetime after which it fires no more.
            max_runs: how many occurrences it makes at most.
            overlap: what becomes of an occurrence that is due while an earlier one runs: "allow" (default), "skip"
                (recorded as skipped, reason `singleton`), "queue" (it waits) or "queue_on_success" (it waits until
                that one is final, retries included, and is skipped unless it succeeded).
            key: whose permits are counted; schedules may share one; default: the schedule's own.
            slots: how many of a key may run at once; default 1.
            version: of the definition; default 0.
            arguments: the job's arguments, by name.
            tolerance: seconds or timedelta: every occurrence then has a fixed start. It is made and claimed a little
                ahead and started at its instant; later than this counts as missed. None (default): it starts as soon
                as it can.
            on_miss: what becomes of an occurrence that missed its start: "run_late" (default), "skip" or "fail".
            options: of the jobs, as for `using`: {"priority": "high"}.

        Raises:
            ConfigurationError: what cannot be, with what would be right.
        """

        def declare(function: JobFunction[P, R]) -> JobFunction[P, R]:
            if not isinstance(function, JobFunction):
                raise ConfigurationError("@app.schedule stands above @app.job, and takes what that makes of a function")
            self.schedules.declare(name or function.kind, function.handler, cron, asked)
            return function

        return declare

    def queue(self, name: str, **settings: Unpack[AskedQueue]) -> QueueSettings:
        """Declare how a queue treats its jobs. A queue that is not declared is first come, first served, and unbounded.

        Known in this process at once, and written to the database by `app.migrate()` and when a worker starts.

        Args:
            name: the queue.
            fair: whether tenants (`using(tenant=...)`) share it by weight: then a flood by one of them does not delay
                the others. Priorities normal and low order a tenant's own jobs; critical and high ones go before all.
            max_pending: how many jobs may wait in it at most, up to 1,000,000; None (default): any number. Jobs that
                are not due, or run, do not count.
            overflow: what an enqueue beyond it does: "reject" (default: `QueueFull`, nothing is stored), "wait" (until
                there is room), "shed_lowest" or "shed_oldest" (it is stored, and the job that would be started last,
                or has waited longest, is skipped, reason `shed`).
            wait: seconds or timedelta for which "wait" waits while no job finds room, then `QueueFull`; default 30.

        Raises:
            ConfigurationError: what cannot be, with what would be right.
        """
        return self.queues.declare(name, **settings)

    def _handler(self, job: JobFunction[..., Any] | str) -> Handler:
        kind = _kind(job)
        handler = self._registry.get(kind)
        if handler is None:
            known = ", ".join(sorted(self.kinds)) or "none"
            raise ConfigurationError(f"No handler of kind {kind!r} is registered. Registered: {known}")
        return handler

    @property
    def kinds(self) -> frozenset[str]:
        """The registered kinds."""
        return self._registry.kinds()

    # Enqueue

    def enqueue_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Store any number of built jobs, in batches of at most 1,000, each committed before the next is built.

        Args:
            jobs: what `build(...)` returns; any iterable.
            connection: all of it within this transaction of yours; see `using`.

        Returns:
            One handle per job, in order.

        Raises:
            DependencyError: one waits for a job that is not there; batches before it are stored.
            StoreUnavailable: the database could not be asked. Batches before it are stored.
            QueueFull: a bounded queue has no room for some; the error says how many were stored.
        """
        iterator = iter(jobs)
        handles: list[JobHandle[Any]] = []
        while batch := list(islice(iterator, ENQUEUE_BATCH)):
            with _counting(handles):
                handles += self._enqueue(batch, connection, grouped=False)
        return handles

    async def aenqueue_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[JobHandle[Any]]:
        """`enqueue_many` for async code."""
        iterator = iter(jobs)
        handles: list[JobHandle[Any]] = []
        while batch := list(islice(iterator, ENQUEUE_BATCH)):
            with _counting(handles):
                handles += await self._aenqueue(batch, connection)
        return handles

    def enqueue_graph(self, workflow: Workflow, *, connection: Any = None) -> dict[str, JobHandle[Any]]:
        """Store the jobs of a workflow in one transaction: all of them, or none. An empty one stores nothing.

        Args:
            workflow: the jobs and what waits for what. Enqueueing the same object again stores nothing new.
            connection: within this transaction of yours; see `using`.

        Returns:
            A handle per job, by the names of the workflow.

        Raises:
            DependencyError: a job waits for one that is not there, for itself, or in a circle.
            ConfigurationError: one belongs to a queue with a bound, which could let in a part only.
            StoreUnavailable: the database could not be asked.
        """
        self._refuse_bootstrap()
        named = workflow.build()
        jobs = list(named.values())
        if bounded := self._bounded(jobs, learns=connection is None):
            queue = next(job.options.queue for job in jobs if job.options.queue in bounded)
            raise ConfigurationError(
                f"The queue {queue!r} has a bound (max_pending), and a workflow is stored whole or not at all: "
                "give its jobs another queue."
            )
        if connection is not None:
            with joined(connection, self.store.database) as conn:
                results = self.store.enqueue_together_within(conn, jobs)
        else:
            results = self.store.enqueue_together(jobs)
            self._wake_workers()
        return dict(zip(named, self._handles(jobs, results), strict=True))

    async def aenqueue_graph(self, workflow: Workflow, *, connection: Any = None) -> dict[str, JobHandle[Any]]:
        """`enqueue_graph` for async code."""
        if hasattr(connection, "run_sync"):
            return cast(
                "dict[str, JobHandle[Any]]",
                await connection.run_sync(lambda inner: self.enqueue_graph(workflow, connection=inner)),
            )
        return await asyncio.to_thread(self.enqueue_graph, workflow, connection=connection)

    def enqueue(self, kind: str, arguments: dict[str, Any] | None = None, **options: Unpack[Asked]) -> JobHandle[Any]:
        """Store a job of a registered kind by its name.

        Raises:
            ConfigurationError: a kind that this app does not know, or a wrong option.
            ArgumentsError: the arguments do not fit the handler.
        """
        handler = self._handler(kind)
        prepared: Prepared[..., Any] = Prepared(self, handler, handler.options)
        return prepared.using(**options).enqueue(**(arguments or {}))

    @staticmethod
    def _refuse_bootstrap() -> None:
        """A child process that is being started imports its parent's main script: what stands there unguarded."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigurationError(
                "This script enqueues or works while a child process imports it, and would do so once more in each. "
                "Put what it does under `if __name__ == '__main__':`, and leave only definitions outside."
            )

    def _enqueue(self, jobs: Sequence[NewJob], connection: Any, *, grouped: bool = True) -> list[JobHandle[Any]]:
        self._refuse_bootstrap()
        _check_built(jobs)
        if connection is not None:
            with joined(connection, self.store.database) as conn:
                if bounded := self._bounded(jobs):
                    results = enqueue_within_bounds(self.store, conn, jobs, bounded)
                else:
                    results = self.store.enqueue_within(conn, jobs)
        elif bounded := self._bounded(jobs, learns=True):
            results = self._waited(bounded_steps(self.store, jobs, bounded))
            self._wake_workers()
        else:
            results = self._enqueuer.enqueue(jobs) if grouped else self.store.enqueue(jobs)
            self._wake_workers()
        return self._handles(jobs, results)

    async def _aenqueue(self, jobs: Sequence[NewJob], connection: Any) -> list[JobHandle[Any]]:
        _check_built(jobs)
        if connection is None:
            if not self.store.is_checked:
                await asyncio.to_thread(self.store.ensure_schema)
            if bounded := self._bounded(jobs):
                results = await self._awaited(bounded_steps(self.store, jobs, bounded))
                self._wake_workers()
                return self._handles(jobs, results)
            results = await self._enqueuer.aenqueue(jobs)
            self._wake_workers()
            return self._handles(jobs, results)
        if hasattr(connection, "run_sync"):  # AsyncConnection and AsyncSession
            return cast(
                "list[JobHandle[Any]]",
                await connection.run_sync(lambda inner: self._enqueue(jobs, inner)),
            )
        return await asyncio.to_thread(self._enqueue, jobs, connection)

    def _bounded(self, jobs: Sequence[NewJob], *, learns: bool = False) -> Mapping[str, QueueSettings]:
        """The bounded queues that this process knows, if some of the jobs are theirs."""
        if learns:
            self.store.ensure_schema()
        bounded = self.store.database.known_queues.bounded
        return bounded if bounded and any(job.options.queue in bounded for job in jobs) else {}

    def _waited(self, steps: Generator[float, None, list[EnqueueResult]]) -> list[EnqueueResult]:
        while True:
            try:
                pause = next(steps)
            except StopIteration as done:
                return cast("list[EnqueueResult]", done.value)
            self._wake_workers()
            time.sleep(pause)

    async def _awaited(self, steps: Generator[float, None, list[EnqueueResult]]) -> list[EnqueueResult]:
        """The same on an event loop, which neither waits on the database nor keeps a thread while it pauses."""

        def step() -> tuple[float, list[EnqueueResult] | None]:
            try:
                return next(steps), None
            except StopIteration as done:
                return 0.0, done.value

        while True:
            pause, results = await asyncio.to_thread(step)
            if results is not None:
                return results
            self._wake_workers()
            await asyncio.sleep(pause)

    def _handles(self, jobs: Sequence[NewJob], results: Sequence[Any]) -> list[JobHandle[Any]]:
        get = self._registry.get
        return [
            JobHandle(self.store, get(job.kind), result.id, created=result.created, replaced=result.replaced)
            for job, result in zip(jobs, results, strict=True)
        ]

    def _wake_workers(self) -> None:
        for reference in self._workers:
            worker = reference()
            if worker is not None:
                worker.wake()

    def _forget_parent(self) -> None:
        # The parent's workers have no threads in a forked child, and one of their locks may be held for ever.
        self._workers = ()

    # Working

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this app's handlers, to be run with `.run()` and stopped with `.stop()` from another thread.

        See `fencepost.Worker` for the options.
        """
        self._refuse_bootstrap()
        worker = Worker(self.store, self._registry, prepare=self._prepare, **options)
        alive = tuple(reference for reference in self._workers if reference() is not None)
        self._workers = (*alive, weakref.ref(worker))
        return worker

    def _prepare(self) -> None:
        """What a worker brings in step when it starts."""
        self.queues.sync()
        self.schedules.sync()
        self.store.save_retention(self._retention)

    def run_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Run a worker until SIGTERM or SIGINT; with `burst=True` until nothing is left that could run now.

        See `fencepost.Worker` for the options.
        """
        self.worker(**options).run()

    # Operating

    def migrate(self) -> bool:
        """Create or upgrade the tables, and write the declared queues' settings.

        Safe to call from any number of processes at once.

        Returns:
            Whether there was anything to do.
        """
        changed = self.store.migrate()
        self.queues.sync()
        return changed

    def health(self, *, is_thorough: bool = False) -> Health:
        """What `fencepost doctor` finds: the database, its tables and clock, workers, stuck leases, schedules, permits.

        Nothing is written, and a database that cannot be reached is a finding and no exception. What the largest
        payload needs of the database is judged by this app's `max_payload_bytes`.

        Args:
            is_thorough: whether to read the whole of a SQLite file, to see that it is undamaged; default False.
        """
        findings = diagnose(self.store.database, payload_bytes=self._max_payload_bytes, is_thorough=is_thorough)
        return Health(tuple(findings))

    def prune(
        self,
        older_than: float | timedelta | None = None,
        *,
        state: State | str | Collection[State | str] | None = None,
        queue: str | None = None,
        keep: int | None = None,
    ) -> int:
        """Delete final jobs, in bounded batches.

        Args:
            older_than: seconds or timedelta: those that ended longer ago than this; default: 7 days, or with `keep`
                whatever their age.
            state: of these final states only, one or several; None: all four.
            queue: of this queue only; None: all.
            keep: how many of the newest of each queue and state stay at most; None: all that are young enough.

        Returns:
            How many were deleted.

        Raises:
            ConfigurationError: an argument that cannot be, with what would be right.
        """
        if older_than is None and keep is None:
            older_than = timedelta(days=7)
        if state is None and queue is None and keep is None:
            assert older_than is not None
            return self.store.prune(older_than)
        wanted = sorted(FINAL_STATES) if state is None else [state] if isinstance(state, str) else sorted(state)
        live = [word for word in wanted if word not in list(FINAL_STATES)]
        if live:
            raise ConfigurationError(
                f"Only final jobs are pruned ({', '.join(sorted(FINAL_STATES))}), none {live[0]!r}"
            )
        kept = Retention(
            **dict.fromkeys(map(str, wanted), older_than), keep=None if keep is None else dict.fromkeys(wanted, keep)
        )
        rules = {EVERY_QUEUE if queue is None else check_name(queue, "queue"): kept.rules}
        walk = Walk(rules, self.store.now(), spares_last_success=False)
        deleted = 0
        while not walk.is_over:
            deleted += walk.step(self.store)
        return deleted

    def pause_queue(self, queue: str) -> None:
        """Let a queue's jobs wait: nothing in it is claimed until it is resumed. Running jobs end."""
        self.queues.pause(queue)

    def resume_queue(self, queue: str) -> None:
        """Let a paused queue's jobs be claimed again."""
        self.queues.resume(queue)

    def close(self) -> None:
        """Close the connections of the pool."""
        self.store.close()


_apps: weakref.WeakSet[App] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for app in list(_apps):
        app._forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _executor_for(function: Callable[..., Any], asked: str | None) -> ExecutorName:
    is_async = inspect.iscoroutinefunction(function)
    if asked is None:
        return "async" if is_async else "thread"
    if asked not in ("async", "thread", "process"):
        raise ConfigurationError(f"executor is async, thread or process; not {asked!r}")
    if asked == "async" and not is_async:
        raise ConfigurationError(
            f"{function.__qualname__} is a plain function and would block the event loop. Make it `async def`, or "
            "leave executor= out: it then runs on a thread."
        )
    return cast(ExecutorName, asked)


@contextmanager
def _counting(handles: Sequence[JobHandle[Any]]) -> Iterator[None]:
    """A full queue's error says how many jobs the batches before it stored too."""
    try:
        yield
    except QueueFull as error:
        stored = len(handles) + error.stored
        raise QueueFull(error.queue, error.max_pending, refused=error.refused, stored=stored) from None


def _check_built(jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        if not isinstance(job, NewJob):
            raise ConfigurationError(
                f"Not a built job: {job!r}. Pass what build() returns: "
                "app.enqueue_many(send.build(user_id=i) for i in range(100))"
            )


def _checked_rules(retention: Retention | Mapping[str, Retention]) -> Rules:
    rules = build_rules(retention)
    return {check_name(queue, "queue", QUEUE_CHARS): of_queue for queue, of_queue in rules.items()}


def _kind(kind: str | JobFunction[Any, Any]) -> str:
    return kind.kind if isinstance(kind, JobFunction) else kind


def _checked_id(job_id: str) -> str:
    parsed = parse_id(job_id)
    if parsed is None:
        raise JobNotFound(f"{job_id!r} is not a job id. An id looks like {new_id()}")
    return parsed
