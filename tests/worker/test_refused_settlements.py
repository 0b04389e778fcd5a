"""A settlement that the database refuses, and attempts that fail in unexpected places, hold nobody up."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import exc

import fencepost
from fencepost.job import Claim, Reason, State
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store


class BadRetry(fencepost.Retry):
    def __init__(self) -> None:
        """As a subclass that forgets its base."""


def test_a_result_that_the_database_refuses_fails_its_job_and_no_other(
    app: fencepost.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5, L4: the database answers, so waiting would not help; the others of the group are settled."""

    @app.job(kind="returns")
    async def returns(text: str) -> str:
        return text

    settle = Store.settle

    def refusing(store: Store, settlements: list[tuple[Claim, Outcome]], **how: Any) -> list[bool]:
        if any(outcome.verb is Verb.COMPLETE and "refused" in (outcome.result or "") for _, outcome in settlements):
            raise exc.OperationalError("UPDATE", {}, Exception("packet too large"))
        return settle(store, settlements, **how)

    monkeypatch.setattr(Store, "settle", refusing)
    handles = [returns.enqueue(text) for text in ("first", "refused", "last")]
    app.run_worker(burst=True)
    assert [handle.job().state for handle in handles] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
    refused = handles[1].job()
    assert refused.reason == Reason.UNENCODABLE_RESULT
    assert "packet too large" in (refused.last_error or "")


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("is_written", [True, False])
def test_settlements_whose_answer_was_lost_with_the_database_are_neither_abandoned_nor_counted_as_lost(
    app: fencepost.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, is_written: bool
) -> None:
    """L3, J5: it is back at the next question, whether or not they had been written."""

    @app.job(kind="returns")
    async def returns() -> str:
        return "ok"

    settle = Store.settle
    unanswered: list[bool] = []

    def losing(store: Store, settlements: list[tuple[Claim, Outcome]], **how: Any) -> list[bool]:
        if unanswered:
            return settle(store, settlements, **how)
        unanswered.append(True)
        if is_written:
            settle(store, settlements, **how)
        raise fencepost.StoreUnavailable("the connection was lost at the commit")

    handles = app.enqueue_many(returns.build() for _ in range(number))
    monkeypatch.setattr(Store, "settle", losing)
    worker = app.worker(burst=True)
    worker.run()
    assert [handle.job().state for handle in handles] == [State.SUCCEEDED] * number
    assert (worker.figures.settled, worker.figures.succeeded, worker.figures.lost) == (number, number, 0)
    assert caplog.records == []


@pytest.mark.parametrize("is_async", [True, False])
def test_an_exception_that_breaks_while_it_is_read_is_a_failed_attempt(app: fencepost.App, is_async: bool) -> None:
    """J4: the slot is free again, and the job is tried again."""
    if is_async:

        @app.job(kind="breaks", max_attempts=2, backoff=0)
        async def breaks() -> None:
            raise BadRetry
    else:

        @app.job(kind="breaks", max_attempts=2, backoff=0)
        def breaks() -> None:
            raise BadRetry

    handle = breaks.enqueue()
    app.run_worker(burst=True, concurrency=1)
    assert (handle.job().state, handle.job().attempts) == (State.FAILED, 2)


def test_workers_leave_no_threads_behind(app: fencepost.App) -> None:
    """A program that runs workers again and again does not grow."""

    @app.job(kind="plain")
    def plain() -> None: ...

    def handler_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "fencepost-handler"}

    before = handler_threads()
    for _ in range(3):
        app.enqueue_many(plain.build() for _ in range(5))
        app.run_worker(burst=True)
    for thread in handler_threads() - before:
        thread.join(10)
    assert handler_threads() <= before
