"""Handlers in processes that can be killed: for code that burns CPU, leaks, crashes or must obey its timeout."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from fencepost.errors import ConfigurationError
from fencepost.job import Claim
from fencepost.planning.outcome import Outcome, Verb
from fencepost.worker.execution import Board, Execution, Stop
from fencepost.worker.executors import call_handler
from fencepost.worker.outcomes import not_started, outcome_of_error, outcome_of_return

__all__ = ["ProcessExecutor"]

_LOOK_SECONDS = 0.5
_SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit the worker's threads' locks and connections


class ProcessExecutor:
    """Runs each attempt in one of `processes` child processes, which are started as needed and kept.

    Args:
        processes: how many at once.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._waiting: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, executions: Sequence[Execution]) -> None:
        """Run these, in order."""
        with self._lock:
            wanted = min(self._processes, len(self._threads) + len(executions))
            while len(self._threads) < wanted:
                thread = threading.Thread(target=self._serve, name="fencepost-process", daemon=True)
                self._threads.append(thread)
                thread.start()
        for execution in executions:
            self._waiting.put(execution)

    def stop(self, execution: Execution) -> None:
        """Kill the process that runs it."""
        child = execution.task
        if child is not None:
            child.kill(execution)

    def close(self) -> None:
        """End the idle children."""
        for _ in self._threads:
            self._waiting.put(None)

    def _serve(self) -> None:
        child: _Child | None = None
        while True:
            execution = self._waiting.get()
            if execution is None:
                break
            outcome: Outcome | None
            try:
                if execution.begin():
                    if child is None or not child.is_usable:
                        child = _Child()
                    execution.task = child
                    outcome = child.run(execution)
                else:
                    outcome = not_started(execution)
            except Exception as error:  # noqa: BLE001 - no memory, no processes left, a script without __main__ guard
                outcome = outcome_of_error(execution, error)
            execution.task = None
            execution.finish(outcome)
        if child is not None:
            child.close()


class _Child:
    """One child process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_child_main, args=(theirs,), name="fencepost-child", daemon=True)
        self._process.start()
        theirs.close()
        self._lock = threading.Lock()
        self._current: Execution | None = None
        self._is_killed = False
        self._is_ready = False

    @property
    def is_usable(self) -> bool:
        """Whether another attempt can be given to it."""
        return not self._is_killed and self._process.is_alive()

    def kill(self, execution: Execution) -> None:
        """Kill it, if it (still) runs this attempt and not the next."""
        with self._lock:
            if self._current is execution:
                self._is_killed = True
                self._process.kill()

    def close(self) -> None:
        self._pipe.close()

    def run(self, execution: Execution) -> Outcome | None:
        """Have the child run one attempt; pass on what it says; None: there is nothing to settle."""
        with self._lock:
            self._current = execution
        if execution.stop_reason is not None:  # since it began: whoever stopped it knew of no child yet
            self.kill(execution)
        try:
            return self._converse(execution)
        except (EOFError, OSError):
            self._process.join()
            return self._death(execution)
        finally:
            with self._lock:
                self._current = None

    def _converse(self, execution: Execution) -> Outcome | None:
        function = execution.handler.function
        self._pipe.send((function.__module__, function.__qualname__, execution.claim))
        while True:
            while not self._pipe.poll(_LOOK_SECONDS):
                # A process that it left behind may hold the pipe open (and the sentinel): ask for its end itself.
                if not self._process.is_alive() and not self._pipe.poll():
                    raise EOFError
            match self._pipe.recv():
                case "ready", None, None:
                    self._is_ready = True
                case "progress", fraction, note:
                    execution.report(fraction, note)
                case "settled", has_result, None:
                    execution.settled(has_result=has_result)
                case "outcome", outcome, None:
                    return outcome  # type: ignore[no-any-return]

    def _death(self, execution: Execution) -> Outcome | None:
        code = self._process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        text = f"The process that ran the handler ended with {how}."
        if not self._is_ready and not self._is_killed:
            text = (
                f"A process for the handler ended with {how} before it was ready: importing the program failed in it. "
                "A script must enqueue and run its workers under `if __name__ == '__main__':`, since each child "
                "process imports it anew."
            )
        error = ChildProcessError(text)
        if execution.stop_reason is Stop.CANCEL:
            return Outcome(Verb.CANCEL)
        return outcome_of_error(execution, error)


def _child_main(pipe: Connection) -> None:
    """The child's life: run what comes through the pipe until it closes."""
    # A Ctrl-C or a SIGTERM to the whole process group is the worker's to act on; it kills us when it must.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    say = _Say(pipe)
    say("ready")
    while True:
        try:
            module, name, claim = pipe.recv()
        except EOFError:
            return
        say("outcome", _run_claim(module, name, claim, say))


class _Say:
    """What this child tells the worker; and only this child.

    A handler that forks, and whose twin returns or raises instead of ending there, would otherwise have two processes
    answer for one attempt, the second of them for the next.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._pid = os.getpid()

    def __call__(self, what: str, first: Any = None, second: Any = None) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        self._pipe.send((what, first, second))


def _die_with_parent() -> None:
    # A worker that was killed cannot kill us, and its jobs will be run elsewhere.
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _run_claim(module: str, name: str, claim: Claim, say: _Say) -> Outcome | None:
    def decided(_execution: Execution, _outcome: Outcome) -> None:
        """The worker settles; what is decided here travels as `_run_claim`'s answer."""

    def nothing() -> None:
        """The worker keeps the slots."""

    try:
        registered = _find(module, name)
    except (ImportError, AttributeError, ConfigurationError) as error:
        text = f"The handler {module}.{name} cannot be imported in a process: {type(error).__name__}: {error}"
        return Outcome(Verb.RETRY, error=text)
    execution = _ChildExecution(claim, registered.handler, Board(decided, nothing, nothing))
    execution.say = say
    try:
        value = call_handler(execution, registered.app.store)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return None if execution.decided else outcome_of_return(execution, value)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it is this attempt's failure
        return None if execution.decided else outcome_of_error(execution, error)


class _ChildExecution(Execution):
    """An attempt as its child sees it: what it says goes through the pipe."""

    __slots__ = ("say",)
    say: _Say

    def report(self, fraction: float, note: str | None) -> None:
        self.say("progress", fraction, note)

    def settled(self, *, has_result: bool) -> None:
        self.decided = True
        self.discards_return = not has_result
        self.say("settled", has_result)


def _find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if part == "<locals>":
            raise ConfigurationError("a handler that runs in a process must be defined at the top level of a module")
        found = getattr(found, part)
    if not hasattr(found, "handler"):
        raise ConfigurationError("it is not decorated with @app.job under its own name")
    return found
