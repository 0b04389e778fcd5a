"""Fixed starts in a worker: its slots, its end, and the instant at which a handler begins."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import fencepost
from fencepost import State
from fencepost.job import FixedStart, OnMiss
from fencepost.planning.outcome import Outcome, Verb
from fencepost.planning.rank import EARLY_CLAIM
from fencepost.store.tables import line_of
from fencepost.worker import starts as module
from fencepost.worker.execution import Board, Execution, Stop
from fencepost.worker.heartbeat import request_stop
from fencepost.worker.starts import Starts
from tests.jobs import overwrite, row
from tests.unit.attempts import attempt
from tests.waiting import until
from tests.worker.conftest import Working


def soon(app: fencepost.App, seconds: float) -> datetime:
    """An instant by the database's clock."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=app.store.now() + round(seconds * 1_000_000))


@pytest.mark.parametrize("executor", ["async", "thread"])
def test_no_handler_begins_before_its_fixed_start(
    app: fencepost.App, working: Working, executor: Literal["async", "thread"]
) -> None:
    began: list[int] = []

    async def on_loop() -> None:
        began.append(app.store.now())

    def on_thread() -> None:
        began.append(app.store.now())

    job = app.job(kind="exact")(on_loop if executor == "async" else on_thread)
    at = soon(app, 1.2)
    working()
    handle = job.using(start_at=at, tolerance=30).enqueue()
    until(lambda: handle.job().state == State.RUNNING, "it is claimed ahead", look=0.005)
    assert not began or began[0] >= (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    handle.result(timeout=20)
    assert began[0] >= (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert app.jobs.start_figures().kept == 1


def test_starts_that_are_awaited_take_no_more_than_their_share_of_the_slots(
    app: fencepost.App, working: Working
) -> None:
    """The rest of the work goes on beside them, and they all run in the end."""
    at = soon(app, 1.5)
    ran: list[str] = []

    @app.job(kind="exact")
    async def exact(number: int) -> None:
        ran.append(f"exact {number}")

    @app.job(kind="plain")
    async def plain() -> None:
        ran.append("plain")

    working(concurrency=8)
    fixed = app.enqueue_many(exact.using(start_at=at, tolerance=30).build(number=i) for i in range(20))
    app.enqueue_many(plain.build() for _ in range(50))
    until(
        # More are claimed, and given back at once until their instant.
        lambda: len(app.jobs.list(kind="exact", state="running")) <= 2 or soon(app, 0) >= at,
        "at most a quarter of the slots is held",
        look=0.005,
    )
    for handle in fixed:
        handle.result(timeout=20)
    until(lambda: ran.count("plain") == 50, "the others ran")
    assert sorted(set(ran)) == sorted(["plain", *(f"exact {number}" for number in range(20))])


def test_a_worker_that_stops_gives_back_the_starts_it_awaits(app: fencepost.App, working: Working) -> None:
    """J8: unspent, for another worker to begin in time."""
    began = threading.Event()

    @app.job(kind="exact")
    def exact() -> None:
        began.set()

    handle = exact.using(start_at=soon(app, 0.95), tolerance=60, on_miss="fail").enqueue()
    worker = working()
    until(lambda: handle.job().state == State.RUNNING, "it is claimed ahead", look=0.002)
    worker.stop()
    until(lambda: handle.job().state in (State.READY, State.SUCCEEDED), "it is given back")
    if not began.is_set():
        assert handle.job().attempts == 0
    working()
    handle.result(timeout=20)
    assert handle.job().attempts == 1


def test_what_became_ready_long_before_its_start_is_given_back_until_then(app: fencepost.App, working: Working) -> None:
    @app.job(kind="exact")
    async def exact() -> None: ...

    at = soon(app, 3600)
    handle = exact.using(start_at=at).enqueue()
    overwrite(app.store, handle.id, state="ready", rank=1, wake_at=None, line=line_of("default", "exact"))
    working()
    until(lambda: handle.job().state == State.SCHEDULED, "it is given back")
    early = at - timedelta(microseconds=EARLY_CLAIM)
    assert row(app.store, handle.id)["wake_at"] == (early - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
    assert handle.job().attempts == 0


class Idle:
    """An executor that keeps what it is given."""

    def __init__(self) -> None:
        self.started: list[Execution] = []

    def start(self, executions: Sequence[Execution]) -> None:
        self.started += executions

    def stop(self, execution: Execution) -> None: ...


class Slow:
    """A database whose clock agrees with the process's, and whose answers take so long: it reads it at once."""

    def __init__(self, answers: list[float]) -> None:
        self.answers = answers
        self.time = 1000.0

    def now(self) -> int:
        read = round(self.time * 1_000_000)
        self.time += self.answers.pop(0)
        return read

    def monotonic(self) -> float:
        return self.time


def held(starts: Starts, board: Board, *, executor: str = "async", at: int = 2**50) -> Execution:
    """An attempt that waits for its start."""
    handler: Any = SimpleNamespace(executor=executor)
    claim = replace(attempt(), start=FixedStart(at, 1, OnMiss.SKIP))
    execution = Execution(claim, handler, board)
    board.add([execution])
    starts.hold([execution])
    return execution


def quiet_board(decided: list[Outcome]) -> Board:
    return Board(lambda _, outcome: decided.append(outcome), lambda: None, lambda: None)


@pytest.mark.parametrize(
    ("answers", "late"),
    [([0.001], 0.001), ([2.0, 0.003], 0.003), ([0.5, 0.2, 0.3, 0.4], 0.2)],
    ids=["prompt", "slow once", "slow"],
)
def test_a_slow_answer_of_the_clock_makes_a_start_late_and_never_early(
    monkeypatch: pytest.MonkeyPatch, answers: list[float], late: float
) -> None:
    database: Any = Slow([*answers])
    monkeypatch.setattr(module, "time", database)
    starts = Starts(database, {})
    held(starts, quiet_board([]), at=2_000_000_000)
    ((instant, _, _),) = starts._waiting
    assert instant == pytest.approx(2000 + late)
    assert database.answers == []


@pytest.mark.parametrize(
    ("reason", "verb"), [(Stop.CANCEL, Verb.CANCEL), (Stop.SHUTDOWN, Verb.RELEASE), (Stop.LEASE_LOST, None)]
)
def test_an_attempt_that_is_to_stop_is_let_go_before_its_start(reason: Stop, verb: Verb | None) -> None:
    """S11: its slot and its lease are not kept until an instant that may be far."""
    decided: list[Outcome] = []
    board, database, executor = quiet_board(decided), Slow([0.0] * 2), Idle()
    starts = Starts(database, {"async": executor})  # type: ignore[arg-type]
    stopped, other = held(starts, board), held(starts, board)
    request_stop(stopped, reason, {"async": executor})
    assert [outcome.verb for outcome in decided] == ([] if verb is None else [verb])
    assert (board.running(), executor.started) == ([other], [])


def test_starts_that_are_awaited_are_counted_by_the_slots_that_they_take() -> None:
    starts, board = Starts(Slow([0.0] * 3), {}), quiet_board([])  # type: ignore[arg-type]
    for executor in ("async", "process", "thread"):
        held(starts, board, executor=executor)
    assert (starts.count(in_processes=True), starts.count(in_processes=False)) == (1, 2)
