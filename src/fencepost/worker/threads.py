"""What the worker's threads have in common: they outlive the database's absences, and never die unnoticed."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import exc

from fencepost.errors import StoreUnavailable

__all__ = ["PASSING", "WorkerThread"]

logger = logging.getLogger("fencepost.worker")

T = TypeVar("T")

PASSING = (StoreUnavailable, exc.DBAPIError, exc.TimeoutError)
"""Errors that may pass while one waits: the database is away, or refuses, or no connection of the pool is free.
Whatever else SQLAlchemy raises (a statement that it cannot compile, say) is a fault of the program, and stays."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


class WorkerThread:
    """A daemon thread that runs `work` until it returns.

    Args:
        name: for people.
        work: the body.
        on_failure: told of an exception that the body did not expect; the worker then stops.
    """

    def __init__(
        self, name: str, work: Callable[[WorkerThread], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._work = work
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=f"fencepost-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the body to end."""
        self.stopping.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for it. Returns whether it ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - reported to the worker, which raises it
            self._on_failure(error)

    def persist(self, call: Callable[[], T], what: str) -> T | None:
        """Call until the database answers, pausing longer each time. None: the thread was asked to stop meanwhile.

        Only the database's errors are waited out, and each time of it is logged at its start and at its end. Any other
        is raised: it ends the thread, and with it the worker.
        """
        pause, waited = _FIRST_PAUSE, False
        while True:
            try:
                answer = call()
            except PASSING as error:
                log = logger.debug if waited else logger.error
                log("%s: the database cannot be used; waiting for it. %s", what, error)
                waited = True
                if self.stopping.wait(random.uniform(pause / 2, pause)):  # noqa: S311
                    return None
                pause = min(_LONGEST_PAUSE, pause * 2)
            else:
                if waited:
                    logger.warning("%s: the database is back.", what)
                return answer
