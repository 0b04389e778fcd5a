"""The claimer: keeps the free slots filled, and no more than those."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fencepost.job import Claim, Micros
from fencepost.planning.fixed_start import most_held
from fencepost.planning.isolation import is_last_chance, is_suspect, isolate_suspects
from fencepost.planning.outcome import Outcome, Verb
from fencepost.planning.rank import early_at
from fencepost.registry import Registry
from fencepost.store import Store
from fencepost.worker.execution import Board, Execution
from fencepost.worker.executors import Executor
from fencepost.worker.outcomes import not_started
from fencepost.worker.starts import Starts, is_early, is_far
from fencepost.worker.threads import WorkerThread

__all__ = ["Claimer", "Pool"]

logger = logging.getLogger("fencepost.worker")

_MOST_AT_ONCE = 1000
_GATHER_SECONDS = 0.002
_SHORTEST_NAP_SECONDS = 0.002  # while another worker is at it
_ALONE_SECONDS = 5.0  # what kills its process mostly does so at once, and others must not wait for ever
_ALONE_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots that are claimed for together.

    Attributes:
        name: "main" (event loop and threads) or "process".
        kinds: what runs on them.
        slots: how many attempts at once.
    """

    name: str
    kinds: frozenset[str]
    slots: int


class Claimer:
    """Asks the store for as many jobs as there are free slots, and hands them to their executors.

    Args:
        store: where.
        owner: the worker's name.
        registry: the handlers.
        board: where attempts stand.
        executors: by the handlers' `executor`.
        starts: takes what was claimed ahead of its fixed start.
        pools: the slots.
        queues: where to look; None: everywhere.
        labels: what the worker has.
        lease_seconds: of the claims.
        poll_seconds: how often an idle worker asks.
        is_finished: asked when nothing was found; True ends the thread (a burst worker's end).
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        registry: Registry,
        board: Board,
        executors: Mapping[str, Executor],
        starts: Starts,
        pools: list[Pool],
        queues: frozenset[str] | None,
        labels: Mapping[str, str] | None,
        *,
        lease_seconds: float,
        poll_seconds: float,
        is_finished: Callable[[], bool],
    ) -> None:
        self._store = store
        self._owner = owner
        self._registry = registry
        self._board = board
        self._executors = executors
        self._starts = starts
        self._pools = pools
        self._queues = queues
        self._labels = labels
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._is_finished = is_finished
        self._wake = threading.Event()
        self._careful = False
        self._due = math.inf
        """The monotonic instant at which to look after those who wait for tokens."""

    def wake_after(self, span: Micros) -> None:
        """Somebody who waits for tokens is to be woken after so many microseconds."""
        self._due = min(self._due, time.monotonic() + max(span / 1_000_000, _SHORTEST_NAP_SECONDS))

    def wake(self) -> None:
        """A slot became free, or a job was enqueued in this process."""
        if not self._wake.is_set():
            self._wake.set()

    def run(self, thread: WorkerThread) -> None:
        """The thread's body."""
        while not thread.stopping.is_set():
            self._wake.clear()
            self._wake_due(thread)
            claimed = False
            for pool in self._pools:
                free = self._free(pool)
                if free < 1 or not pool.kinds:
                    continue
                # A job whose last attempt died with its worker may kill this one too: claim one by one while
                # such jobs come, and start each alone out of its batch.
                limit = 1 if self._careful else min(free, _MOST_AT_ONCE)
                claims = thread.persist(lambda pool=pool, limit=limit: self._claim(pool, limit), "claiming")  # type: ignore[misc]
                if claims is None:
                    return
                if claims:
                    claimed = True
                    self._start(thread, self._held_back(thread, pool, claims))
            if claimed:
                # Jobs that end within moments free their slots one by one. Waiting for a few of them makes the
                # next claim a batch instead of a single row.
                if not any(self._free(pool) > 0 for pool in self._pools):
                    self._wake.wait()
                if any(0 < self._free(pool) < pool.slots // 8 for pool in self._pools):
                    thread.stopping.wait(_GATHER_SECONDS)
                continue
            if thread.persist(self._is_finished, "finishing"):
                return
            self._idle(thread)

    def _idle(self, thread: WorkerThread) -> None:
        """Sleep until there is a sign, until the next poll, or until tokens have woken somebody."""
        # Spread out, so that many idle workers do not ask at the same moments.
        until = time.monotonic() + self._poll_seconds * random.uniform(0.75, 1.25)  # noqa: S311
        while not self._wake.wait(max(0.0, min(until, self._due) - time.monotonic())):
            if time.monotonic() >= until or self._wake_due(thread):
                return

    def _wake_due(self, thread: WorkerThread) -> bool:
        """Wake those whose tokens have come, if it is time to look. Returns whether somebody was woken.

        Not only in the planner's rounds: at high rates it happens many times a second, and the next claim is for them.
        """
        if time.monotonic() < self._due:
            return False
        self._due = math.inf  # the store tells the next one
        return bool(thread.persist(self._store.wake_due, "waking"))

    def _free(self, pool: Pool) -> int:
        by_process = self._board.running_by("process") if len(self._pools) > 1 else 0
        taken = by_process if pool.name == "process" else self._board.slots_taken - by_process
        return pool.slots - taken

    def _claim(self, pool: Pool, limit: int) -> list[Claim]:
        return self._store.claim(
            self._owner,
            kinds=pool.kinds,
            queues=self._queues,
            limit=limit,
            lease=self._lease_seconds,
            labels=self._labels,
        )

    def _held_back(self, thread: WorkerThread, pool: Pool, claims: list[Claim]) -> list[Claim]:
        """Hold what was claimed ahead of its start, and give back what would take more than its share of the slots.

        What became ready further ahead than that, whatever the reason, goes back too: holding it has no bound.

        Returns:
            The other claims.
        """
        early = [claim for claim in claims if is_early(claim)]
        if not early:
            return claims
        near = [claim for claim in early if not is_far(claim)]
        room = max(0, most_held(pool.slots) - self._starts.count(in_processes=pool.name == "process"))
        held, surplus = near[:room], near[room:]
        if held:
            executions = [self._execution(claim) for claim in held]
            self._board.add(executions)
            thread.persist(lambda: self._starts.hold(executions) or True, "reading the clock")  # type: ignore[func-returns-value]
        back = [(c, Outcome(Verb.RELEASE, run_at=c.start.at)) for c in surplus if c.start is not None]
        back += [(c, Outcome(Verb.RELEASE, run_at=early_at(c.start.at))) for c in early if c.start and is_far(c)]
        if back:
            thread.persist(lambda: self._store.settle(back), "releasing")
        return [claim for claim in claims if not is_early(claim)]

    def _execution(self, claim: Claim) -> Execution:
        handler = self._registry.get(claim.kind)
        assert handler is not None, "only registered kinds are claimed"
        return Execution(claim, handler, self._board)

    def _start(self, thread: WorkerThread, claims: list[Claim]) -> None:
        if not claims:
            return
        if thread.stopping.is_set():  # claimed in the very moment of the stop
            late = [claim.lease for claim in claims]
            thread.persist(lambda: self._store.release(self._owner, late, is_unbegun=True), "releasing")
            return
        running, surplus = isolate_suspects(claims)
        self._careful = is_suspect(claims[0]) or bool(surplus)
        if surplus:
            leases = [claim.lease for claim in surplus]
            thread.persist(lambda: self._store.release(self._owner, leases, is_unbegun=True), "releasing")
        by_executor: dict[str, list[Execution]] = {}
        for claim in running:
            execution = self._execution(claim)
            by_executor.setdefault(execution.handler.executor, []).append(execution)
        for name, executions in by_executor.items():
            self._board.add(executions)
            if is_last_chance(executions[0].claim):
                self._start_alone(thread, executions[0], self._executors[name])
            else:
                self._executors[name].start(executions)

    def _start_alone(self, thread: WorkerThread, execution: Execution, executor: Executor) -> None:
        """Start a job that must not die of another's crash when all else is settled, and nothing beside it.

        Either wait is bounded: where long jobs run, it starts beside them in the end.
        """
        self._wait_for_held(thread, 1)
        if thread.stopping.is_set():
            execution.finish(not_started(execution))
            return
        executor.start([execution])
        self._wait_for_held(thread, 0)

    def _wait_for_held(self, thread: WorkerThread, most: int) -> None:
        """Wait until this worker holds no more leases than that."""
        deadline = time.monotonic() + _ALONE_SECONDS
        while len(self._board.held()) > most and time.monotonic() < deadline:
            if thread.stopping.wait(_ALONE_LOOK_SECONDS):
                return
