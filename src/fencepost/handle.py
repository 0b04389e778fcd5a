"""Handles: what an enqueue returns, to look at the job, wait for its result, or cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fencepost.errors import JobCancelled, JobFailed, JobNotFound, JobSkipped, ResultTimeout
from fencepost.job import FINAL_STATES, Job, State
from fencepost.timing import seconds

if TYPE_CHECKING:
    from datetime import timedelta

    from fencepost.registry import Handler
    from fencepost.store import Store

__all__ = ["JobHandle"]

R = TypeVar("R")

_FIRST_LOOK_SECONDS = 0.005
_LONGEST_LOOK_SECONDS = 0.25


class JobHandle(Generic[R]):
    """A stored job.

    Attributes:
        id: the job's id; with `created=False`, that of the live job which holds the identity.
        created: whether the enqueue made the job.
        replaced: whether the waiting holder took the new arguments (`on_conflict="replace"`).
    """

    __slots__ = ("_handler", "_store", "created", "id", "replaced")

    def __init__(
        self, store: Store, handler: Handler | None, job_id: str, *, created: bool = True, replaced: bool = False
    ) -> None:
        self._store = store
        self._handler = handler
        self.id = job_id
        self.created = created
        self.replaced = replaced

    def job(self) -> Job:
        """The job as it stands now.

        Raises:
            JobNotFound: retention has removed it, or the transaction that enqueued it was rolled back.
        """
        job = self._store.get(self.id)
        if job is None:
            raise JobNotFound(
                f"No job {self.id}: it was pruned, or the transaction that enqueued it is open or was rolled back."
            )
        return job

    def cancel(self) -> bool:
        """Cancel the job; see `app.jobs.cancel`."""
        return self._store.cancel_job(self.id)

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait until the job is final and return what its handler returned.

        Args:
            timeout: seconds (or timedelta) to wait at most; None: without end.

        Raises:
            JobFailed, JobCancelled, JobSkipped: it ended otherwise; the text carries its last error.
            ResultTimeout: it is not final yet.
            JobNotFound: it is not there.
            DecodingError: the result is not of the type that the handler declares.
        """
        deadline = _deadline(timeout)
        for pause in _pauses():
            left = deadline - time.monotonic()
            if self._is_final() or left <= 0:
                return self._outcome(timeout)
            time.sleep(min(pause, left))
        raise AssertionError("unreachable")

    async def aresult(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - the public face
        """`result()` for async code: the database is asked on a thread."""
        deadline = _deadline(timeout)
        for pause in _pauses():
            left = deadline - time.monotonic()
            if await asyncio.to_thread(self._is_final) or left <= 0:
                return await asyncio.to_thread(self._outcome, timeout)
            await asyncio.sleep(min(pause, left))
        raise AssertionError("unreachable")

    def _is_final(self) -> bool:
        state = self._store.states_of([self.id]).get(self.id)
        return state is None or state in FINAL_STATES

    def _outcome(self, timeout: float | timedelta | None) -> R:
        job = self.job()
        match job.state:
            case State.SUCCEEDED:
                if self._handler is None:
                    return cast(R, job.result)
                return cast(R, self._handler.result.decode(self._store.result_text(self.id)))
            case State.FAILED:
                raise JobFailed(f"Job {job.id} ({job.kind}) failed: {job.reason}\n{job.last_error or ''}".rstrip(), job)
            case State.CANCELLED:
                raise JobCancelled(f"Job {job.id} ({job.kind}) was cancelled.", job)
            case State.SKIPPED:
                raise JobSkipped(f"Job {job.id} ({job.kind}) was skipped: {job.reason}", job)
            case _:
                waited = "" if timeout is None else f" after {seconds(timeout, 'timeout'):g} s"
                raise ResultTimeout(f"Job {job.id} ({job.kind}) is {job.state}{waited}.", job)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        state: Any = "created" if self.created else "replaced" if self.replaced else "already live"
        return f"<JobHandle {self.id} {state}>"


def _deadline(timeout: float | timedelta | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + seconds(timeout, "timeout")


def _pauses() -> Iterator[float]:
    pause = _FIRST_LOOK_SECONDS
    while True:
        yield pause
        pause = min(_LONGEST_LOOK_SECONDS, pause * 1.5)
