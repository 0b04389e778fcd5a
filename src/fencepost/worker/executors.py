"""Where handlers run: the event loop and threads. (Processes: see `processes.py`.)"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from fencepost.planning.outcome import Outcome
from fencepost.store import Store
from fencepost.worker.execution import Execution
from fencepost.worker.outcomes import not_started, outcome_of_error, outcome_of_return

__all__ = ["AsyncExecutor", "Executor", "ThreadExecutor", "call_handler"]

logger = logging.getLogger("fencepost.worker")

_BREATH = 50  # handlers that finish without waiting, before the loop sees to its timers and sockets


class Executor(Protocol):
    """Runs attempts. Both methods may be called from any thread and return at once."""

    def start(self, executions: Sequence[Execution]) -> None:
        """Run these; each calls `finish` once."""
        ...

    def stop(self, execution: Execution) -> None:
        """Try to make one stop; its `stop_reason` says why."""
        ...


def call_handler(execution: Execution, store: Store) -> Any:
    """Decode the arguments and call the handler; the coroutine, if it is one."""
    handler = execution.handler
    arguments = handler.arguments.decode(execution.claim.arguments)
    if handler.arguments.context_parameter is not None:
        arguments[handler.arguments.context_parameter] = execution.context(store)
    return handler.function(**arguments)


class _InContext:
    """Awaits a coroutine, whose first step was taken, with every further step in the same context.

    Handlers share a few long-lived tasks, since a task a job costs more than a short job itself. What one handler
    puts into a context variable must not be seen by the next.
    """

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, awaited: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        run, awaited = self._context.run, self._awaited
        while True:
            value: Any
            try:
                value, step = (yield awaited), self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in, the coroutine is to see
                value, step = error, self._coroutine.throw
            try:
                awaited = run(step, value)
            except StopIteration as stop:
                return stop.value
            except GeneratorExit as error:
                if isinstance(value, GeneratorExit):  # the loop is being torn down, and it passed on
                    raise
                raise RuntimeError("the handler raised GeneratorExit") from error


class AsyncExecutor:
    """Runs coroutines on one event loop, in tasks that go on to the next attempt while handlers do not wait.

    A handler that finishes without waiting costs no task of its own and no turn of the loop. When one does wait,
    a successor task, always kept at hand while attempts are left, takes up the next.

    Args:
        loop: the loop; this class's methods may be called from any thread.
        store: for the handlers' contexts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._waiting: deque[Execution] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._successor: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()

    def start(self, executions: Sequence[Execution]) -> None:
        """Run these, in order."""
        self._waiting.extend(executions)
        self._in_loop(self._need_task)

    def stop(self, execution: Execution) -> None:
        """Cancel its coroutine."""
        self._in_loop(self._cancel, execution)

    def _in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has ended, and with it the worker: what it ran is handed back
            logger.debug("The event loop has ended; %s is left.", arguments)

    def _cancel(self, execution: Execution) -> None:
        if execution.task is not None:
            execution.task.cancel()

    def _need_task(self) -> None:
        if self._waiting and self._successor is None:
            self._successor = task = self._loop.create_task(self._run_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A handler may cancel every task of the loop, this one before it had begun.
        self._tasks.discard(task)
        if task is self._successor:
            self._successor = None
        self._need_task()

    async def _run_waiting(self) -> None:
        self._successor = None
        task = asyncio.current_task()
        assert task is not None
        since_breath = 0
        while self._waiting:
            execution = self._waiting.popleft()
            self._need_task()
            await self._run(execution, task)
            since_breath += 1
            if since_breath >= _BREATH:
                since_breath = 0
                await asyncio.sleep(0)

    async def _call(self, execution: Execution, task: asyncio.Task[None]) -> Any:
        coroutine = call_handler(execution, self._store)
        execution.task = task
        context = self._context.copy()
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration as stop:  # most short handlers wait for nothing
            return stop.value
        except GeneratorExit as error:
            raise RuntimeError("the handler raised GeneratorExit") from error
        return await _InContext(coroutine, context, awaited)

    async def _run(self, execution: Execution, task: asyncio.Task[None]) -> None:
        outcome: Outcome | None
        try:
            if execution.begin():
                outcome = outcome_of_return(execution, await self._call(execution, task))
            else:
                outcome = not_started(execution)
        except GeneratorExit:  # the loop is being torn down
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a handler does not stop its worker
            outcome = outcome_of_error(execution, error)
        execution.task = None
        if task.cancelling():
            await _forget_cancellation(task)
        execution.finish(outcome)


async def _forget_cancellation(task: asyncio.Task[None]) -> None:
    """What was asked of the task was meant for the attempt that has ended, not for the next one."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # one that the handler did not wait for comes now; `uncancel` alone leaves it pending
    while task.cancelling():
        task.uncancel()


class ThreadExecutor:
    """Runs plain functions on daemon threads, started as needed and kept.

    Not concurrent.futures: its threads are joined when the interpreter exits, so one handler that never returns
    would keep a worker from ever ending.

    Args:
        store: for the handlers' contexts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, executions: Sequence[Execution]) -> None:
        """Run these, in order."""
        for execution in executions:
            with self._lock:
                # Counted here and not where a thread takes it up: a thread that was just started, or is about to
                # take something, is spoken for.
                needs_thread = self._idle == 0
                if needs_thread:
                    self._threads += 1
                else:
                    self._idle -= 1
            self._waiting.put(execution)
            if needs_thread:
                threading.Thread(target=self._work, name="fencepost-handler", daemon=True).start()

    def stop(self, execution: Execution) -> None:
        """Nothing can stop a thread; the handler sees `ctx.cancelled`."""

    def close(self) -> None:
        """End the threads: the idle ones now, the others when their handlers return."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _work(self) -> None:
        while True:
            execution = self._waiting.get()
            if execution is None:
                return
            self._run(execution)
            del execution  # or an idle thread would keep its last job's arguments alive
            with self._lock:
                self._idle += 1

    def _run(self, execution: Execution) -> None:
        outcome: Outcome | None
        try:
            if execution.begin():
                value = contextvars.Context().run(call_handler, execution, self._store)
                if inspect.iscoroutine(value):
                    value = asyncio.run(value)
                outcome = outcome_of_return(execution, value)
            else:
                outcome = not_started(execution)
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a handler does not stop its worker
            outcome = outcome_of_error(execution, error)
        execution.finish(outcome)
