"""Fixtures of the tests with a worker on a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import pytest

import fencepost

Working: TypeAlias = Callable[..., fencepost.Worker]


@contextmanager
def running(app: fencepost.App, **options: Any) -> Iterator[fencepost.Worker]:
    """A worker that runs on a thread while the block does."""
    worker = app.worker(**{"lease": 2, "grace": 5, "poll": 0.05} | options)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert failures == []


@pytest.fixture
def working(app: fencepost.App) -> Iterator[Working]:
    """Starts workers for `app`, and stops them at the end. Call it once the handlers are registered."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(app, **options))
