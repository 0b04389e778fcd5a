"""What the worker's threads wait for, and what ends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import exc

import fencepost
from fencepost.errors import StoreUnavailable
from fencepost.store import Store
from fencepost.worker import threads
from fencepost.worker.threads import WorkerThread


def driver_error() -> Exception:
    return exc.OperationalError("SELECT", {}, Exception("gone away"))


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> WorkerThread:
    monkeypatch.setattr(threads, "_FIRST_PAUSE", 0.001)
    return WorkerThread("test", lambda thread: None, lambda error: None)


@pytest.mark.parametrize("passing", [driver_error, lambda: StoreUnavailable("away"), lambda: exc.TimeoutError("pool")])
def test_errors_that_may_pass_are_waited_out(thread: WorkerThread, passing: Callable[[], Exception]) -> None:
    """L4."""
    errors = [passing(), passing()]

    def call() -> str:
        if errors:
            raise errors.pop()
        return "answered"

    assert thread.persist(call, "asking") == "answered"


@pytest.mark.parametrize(
    "fault", [exc.CompileError("no such construct"), exc.ArgumentError("not a column"), exc.InvalidRequestError("no")]
)
def test_a_fault_of_the_program_is_raised_at_once(thread: WorkerThread, fault: Exception) -> None:
    """L4: waiting would not mend it."""

    def call() -> None:
        raise fault

    with pytest.raises(type(fault)):
        thread.persist(call, "asking")


@pytest.mark.parametrize("deed", ["claim", "settle", "heartbeat", "promote_due"])
def test_a_fault_of_the_program_ends_the_worker_with_the_error(
    app: fencepost.App, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """L4: instead of being repeated for ever, whichever thread it happens on."""

    @app.job(kind="k")
    async def handler() -> None: ...

    def broken(*_: object, **__: object) -> None:
        raise exc.CompileError("a statement of ours")

    handler.enqueue()
    monkeypatch.setattr(Store, deed, broken)
    with pytest.raises(exc.CompileError, match="a statement of ours"):
        app.run_worker(grace=0.1, lease=2)
