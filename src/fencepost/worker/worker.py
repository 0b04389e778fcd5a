"""Puts the worker together: its threads, its executors, its end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

from fencepost.errors import ConfigurationError
from fencepost.job import DEFAULT_LEASE_SECONDS
from fencepost.labels import check_labels
from fencepost.planner.passes import seconds_until_wake
from fencepost.planning.outcome import Outcome, Verb
from fencepost.registry import Registry
from fencepost.store import DEFAULT_LEADER_LEASE_SECONDS, Store
from fencepost.timing import seconds
from fencepost.worker.claimer import Claimer, Pool
from fencepost.worker.collector import calm_collector
from fencepost.worker.execution import Board, Stop
from fencepost.worker.executors import AsyncExecutor, Executor, ThreadExecutor
from fencepost.worker.heartbeat import HeartbeatLoop, Watchdog, request_stop
from fencepost.worker.planner import Planner
from fencepost.worker.processes import ProcessExecutor
from fencepost.worker.settler import Settler
from fencepost.worker.starts import Starts
from fencepost.worker.threads import WorkerThread

__all__ = ["Worker", "WorkerFigures", "WorkerOptions"]

logger = logging.getLogger("fencepost.worker")

DEFAULT_CONCURRENCY = 100
DEFAULT_GRACE_SECONDS = 30.0
DEFAULT_POLL_SECONDS = 0.2
_UNWIND_SECONDS = 1.0
_LOOP_END_SECONDS = 0.3  # with the time to unwind, less than 2 s beyond the grace
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0
_FLUSH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker has done so far and does now.

    Attributes:
        running: handlers that run.
        settled: attempts settled, of which `succeeded` with success and `failed` with an error (tried again or not).
        lost: attempts whose lease was gone when they ended.
    """

    running: int
    settled: int
    succeeded: int
    failed: int
    lost: int


class WorkerOptions(TypedDict, total=False):
    """The options of a worker; see `Worker`."""

    queues: Collection[str] | None
    concurrency: int
    processes: int | None
    lease: float | timedelta
    grace: float | timedelta
    poll: float | timedelta
    burst: bool
    labels: Mapping[str, str] | None
    leader_lease: float | timedelta


class Worker:
    """Claims and runs jobs until it is told to stop. Make one with `app.worker(...)`; run it once.

    Args:
        store: where the jobs are.
        registry: the handlers.
        queues: the queues to serve; None (default): all.
        concurrency: how many attempts run at once on the event loop and on threads together; default 100.
        processes: how many run at once in processes of their own; default: the number of cores.
        lease: seconds (or timedelta) for which jobs are claimed and renewed; default 30. After a crash they come
            back when it has run out.
        grace: seconds (or timedelta) that a stop waits for running handlers before it hands them back; default 30.
        poll: seconds (or timedelta) between an idle worker's questions; default 0.2.
        burst: whether to end when nothing is left that could run now.
        labels: what this worker has, names and values: `{"gpu": "a100"}`. A job with labels is taken only by a worker
            that has each of them with the same value; default: none.
        leader_lease: seconds (or timedelta) for which the worker's planner takes and renews the lead; default 5.
            After a crash of the leader another one leads when it has run out.
        prepare: called once at the start, when the schema has been checked: what the app brings in step.

    Raises:
        ConfigurationError: an option out of range, or no handlers.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        queues: Collection[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        processes: int | None = None,
        lease: float | timedelta = DEFAULT_LEASE_SECONDS,
        grace: float | timedelta = DEFAULT_GRACE_SECONDS,
        poll: float | timedelta = DEFAULT_POLL_SECONDS,
        burst: bool = False,
        labels: Mapping[str, str] | None = None,
        leader_lease: float | timedelta = DEFAULT_LEADER_LEASE_SECONDS,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        if isinstance(queues, str):
            raise ConfigurationError(f"queues is a list of names: queues=[{queues!r}]")
        if concurrency < 1 or (processes is not None and processes < 1):
            raise ConfigurationError("concurrency and processes are at least 1")
        if not registry.kinds():
            raise ConfigurationError(
                "This app has no handlers, so its worker would have nothing to do. Decorate a function with @app.job, "
                "and import its module before the worker starts."
            )
        self._app_store = store
        # Connections and a patience of its own: handlers that use up the application's pool cannot keep the
        # heartbeat from the database, and a stop does not wait for it longer than this.
        self._store = Store(store.database.sibling(patience=_PATIENCE_SECONDS), migrates=False)
        self._registry = registry
        self._queues = None if queues is None else frozenset(queues)
        self._labels = {} if labels is None else check_labels(labels)
        self._concurrency = concurrency
        self._processes = processes or os.cpu_count() or 1
        self._lease_seconds = seconds(lease, "lease")
        if self._lease_seconds < 1:
            raise ConfigurationError("lease is at least 1 second, so that a heartbeat can be late without losing it")
        self._leader_lease_seconds = seconds(leader_lease, "leader_lease")
        if self._leader_lease_seconds < 1:
            raise ConfigurationError(
                "leader_lease is at least 1 second, so that a renewal can be late without losing it"
            )
        self._grace_seconds = seconds(grace, "grace")
        self._poll_seconds = max(0.01, seconds(poll, "poll"))
        self._burst = burst
        self._prepare = prepare
        self._check_handlers()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        """The worker's name: host, process, and a draw, so that no restart and no fork repeats it."""
        # Flags and a SimpleQueue, not Events: `stop` runs in signal handlers, which may interrupt the main thread
        # while it holds an Event's lock, and would then wait for that lock for ever.
        self._stop_requested = False
        self._hurry = False
        self._changed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._settler = Settler(self._store, self.wake)
        self._board = Board(self._settler.put, self._slot_freed, self._settler.wake)
        self._claimer: Claimer | None = None
        self._planner: Planner | None = None

    def _check_handlers(self) -> None:
        """Find at the start what would fail at the first job."""
        for handler in self._registry.handlers():
            _ = handler.arguments, handler.result
            if handler.executor == "process" and self._store.database.in_memory:
                raise ConfigurationError(
                    f"{handler.kind} runs in a process, which cannot see an in-memory database. Use a file."
                )

    @property
    def figures(self) -> WorkerFigures:
        """What it has done so far and does now."""
        settler, board = self._settler, self._board
        return WorkerFigures(
            running=board.slots_taken,
            settled=settler.settled + board.self_settled,
            succeeded=settler.succeeded + board.self_settled,
            failed=settler.failed,
            lost=settler.lost + board.lost,
        )

    def wake(self) -> None:
        """Jobs were enqueued in this process: look at once."""
        if self._planner is not None:
            self._planner.wake()
        self._wake_claimer()

    def _wake_claimer(self) -> None:
        if self._claimer is not None:
            self._claimer.wake()

    def stop(self) -> None:
        """Stop claiming, wait for the running handlers as long as the grace, hand back the rest.

        Called a second time: hand back at once. From any thread, or a signal handler.
        """
        self._hurry = self._stop_requested
        self._stop_requested = True
        self._changed.put(None)

    def run(self) -> None:
        """Work until stopped. In the main thread, SIGTERM and SIGINT stop it.

        Raises:
            SchemaError: the tables are missing, old or newer.
            StoreUnavailable: the database cannot be reached at the start. (Once running, it is waited for.)
        """
        if self._stop_requested:
            raise ConfigurationError("This worker was stopped. Make another: app.worker(...)")
        self._app_store.ensure_schema()
        if self._prepare is not None:
            self._prepare()
        started_at = self._store.now()
        with calm_collector(), _Signals(self.stop), _LoopThread(self._fail) as loop:
            processes = ProcessExecutor(self._processes)
            threads_for_handlers = ThreadExecutor(self._app_store)
            executors: dict[str, Executor] = {
                "async": AsyncExecutor(loop, self._app_store),
                "thread": threads_for_handlers,
                "process": processes,
            }
            description = HeartbeatLoop.describe(
                self.owner,
                socket.gethostname(),
                os.getpid(),
                self._concurrency,
                self._queues,
                self._registry.kinds(),
                round(self._lease_seconds * 1_000_000),
                started_at,
                self._labels,
            )
            heartbeat = HeartbeatLoop(
                self._store,
                self.owner,
                self._board,
                executors,
                lease_seconds=self._lease_seconds,
                description=description,
            )
            starts = Starts(self._store, executors)
            self._planner = Planner(
                self._store,
                self.owner,
                lease_seconds=self._leader_lease_seconds,
                is_fresh=lambda: heartbeat.is_fresh,
                on_moved=self._wake_claimer,
            )
            self._claimer = self._make_claimer(executors, starts)
            claimer = WorkerThread("claimer", self._claim, self._fail)
            settler = WorkerThread("settler", lambda thread: self._settler.run(thread, self._board), self._fail)
            beating = WorkerThread("heartbeat", heartbeat.run, self._fail)
            watchdog = WorkerThread("watchdog", Watchdog(self._board, executors).run, self._fail)
            planner = WorkerThread("planner", self._planner.run, self._fail)
            starting = WorkerThread("starts", starts.run, self._fail)
            threads = (claimer, settler, beating, watchdog, planner, starting)
            for thread in threads:
                thread.start()
            logger.info("Worker %s serves %s.", self.owner, ", ".join(sorted(self._registry.kinds())))
            self._wait(lambda: self._stop_requested or claimer.join(0.0))
            claimer.stop()
            self._claimer.wake()
            planner.stop()
            self._planner.wake()
            claimer.join(_FLUSH_SECONDS)
            starting.stop()
            starts.stop()
            self._wind_down(executors)
            processes.close()
            threads_for_handlers.close()
            for thread in (settler, beating, watchdog):
                thread.stop()
            self._settler.wake()
            self._board.timed.set()  # the watchdog sleeps on it
            for thread in threads:
                thread.join(_FLUSH_SECONDS)
        if self._store.database is not self._app_store.database:
            self._store.close()
        logger.info("Worker %s stopped.", self.owner)
        if self._failure is not None:
            raise self._failure

    def _claim(self, thread: WorkerThread) -> None:
        assert self._claimer is not None
        try:
            self._claimer.run(thread)
        finally:
            self._changed.put(None)

    def _wait(self, condition: Callable[[], bool], *, until: float = math.inf) -> None:
        """Wait for a condition that `_changed` announces, at most until a monotonic instant."""
        while not condition() and time.monotonic() < until:
            with suppress(queue.Empty):
                self._changed.get(timeout=min(_LOOK_SECONDS, max(0.0, until - time.monotonic())))

    def _make_claimer(self, executors: dict[str, Executor], starts: Starts) -> Claimer:
        in_processes = frozenset(h.kind for h in self._registry.handlers() if h.executor == "process")
        pools = [Pool("main", self._registry.kinds() - in_processes, self._concurrency)]
        if in_processes:
            pools.append(Pool("process", in_processes, self._processes))
        claimer = Claimer(
            self._store,
            self.owner,
            self._registry,
            self._board,
            executors,
            starts,
            pools,
            self._queues,
            self._labels or None,
            lease_seconds=self._lease_seconds,
            poll_seconds=self._poll_seconds,
            is_finished=self._is_finished,
        )
        self._store.database.on_due = claimer.wake_after
        return claimer

    def _slot_freed(self) -> None:
        self._wake_claimer()
        if self._stop_requested:
            self._changed.put(None)

    def _fail(self, error: BaseException) -> None:
        logger.critical("The worker stops: an unexpected error in one of its threads.", exc_info=error)
        self._failure = self._failure or error
        self.stop()

    def _is_finished(self) -> bool:
        """Asked by the claimer when it found nothing."""
        if not self._burst or not self._board.is_idle:
            return False
        # What became due since may be ready now, and a job that ended may have enqueued others.
        assert self._planner is not None
        self._planner.housekeep_for_itself()
        if seconds_until_wake(self._store) <= 0:
            return False  # another planner has it in hand at this moment
        kinds = self._registry.kinds()
        found = self._store.has_ready(kinds, self._queues, self._labels)
        return not found and self._board.is_idle

    def _wind_down(self, executors: dict[str, Executor]) -> None:
        """Wait for what runs, then hand the rest back."""
        deadline = time.monotonic() + self._grace_seconds
        running = self._board.running()
        if running and not self._hurry:
            logger.info("Stopping: waiting up to %g s for %d handlers.", self._grace_seconds, len(running))
        self._wait(lambda: not self._board.slots_taken or self._hurry, until=deadline)
        for execution in self._board.running():
            request_stop(execution, Stop.SHUTDOWN, executors)
        self._wait(
            lambda: all(execution.handler.executor == "thread" for execution in self._board.running()),
            until=time.monotonic() + _UNWIND_SECONDS,
        )
        left = [execution for execution in self._board.running() if not execution.decided]
        if left:
            logger.warning(
                "Stopping: %d handlers did not end within %g s; their jobs are handed back and may run again "
                "elsewhere.",
                len(left),
                self._grace_seconds,
            )
        for execution in left:
            execution.decide(Outcome(Verb.RELEASE, is_unbegun=not execution.has_begun))


class _LoopThread:
    """The event loop of the async handlers, on a daemon thread.

    Not the main thread: a handler that blocks the loop must keep neither signals nor the stop from being heard.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._is_ending = False

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fencepost-loop", daemon=True)
        self._thread.start()
        return self._loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:  # noqa: BLE001 - SystemExit from a task of a handler's own ends the loop
            self._on_failure(error)
        else:
            if not self._is_ending:
                self._on_failure(RuntimeError("A handler stopped the worker's event loop."))
        finally:
            self._loop.close()

    def __exit__(self, *_exc: object) -> None:
        self._is_ending = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LOOP_END_SECONDS)
        if self._thread.is_alive():
            logger.warning("A handler still blocks the event loop; it is left behind.")


class _Signals:
    """SIGTERM and SIGINT call `stop` while the worker runs, if it runs in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda *_: self._stop())

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set from outside Python
