"""Every error that fencepost raises, as one tree.

    FencepostError
    ├── ConfigurationError            the program or the database is set up in a way that cannot work
    │   └── SchemaError               tables missing, older or newer than this build
    ├── EnqueueError                  a job was refused; nothing was stored
    │   ├── ArgumentsError            its arguments do not fit the handler's signature
    │   ├── EncodingError             a value cannot be stored so that it comes back equal
    │   ├── DependencyError           what it waits for is not there, or waits for it in turn
    │   └── QueueFull                 its queue holds as many waiting jobs as it may
    ├── JobNotFound                   no job with this id (it may have been pruned)
    ├── ScheduleNotFound              no schedule with this name
    ├── InvalidTransition             the job's state does not allow what was asked
    ├── StoreUnavailable              the database could not be asked; nothing is known
    ├── DecodingError                 a stored value cannot be read as its declared type
    ├── LeaseLost                     the attempt's lease passed to somebody else
    ├── LeadershipLost                another planner leads now, or nobody does
    └── ResultError                   `handle.result()` has no result to give
        ├── JobFailed
        ├── JobCancelled
        ├── JobSkipped
        └── ResultTimeout             also a TimeoutError

Beside it stand the words that a handler raises to decide what becomes of its job; they are not errors:

    Outcome signals: Retry, Abandon, Snooze, Cancel
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.job import Job

__all__ = [
    "Abandon",
    "ArgumentsError",
    "Cancel",
    "ConfigurationError",
    "DecodingError",
    "DependencyError",
    "EncodingError",
    "EnqueueError",
    "FencepostError",
    "InvalidTransition",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobSkipped",
    "LeadershipLost",
    "LeaseLost",
    "QueueFull",
    "ResultError",
    "ResultTimeout",
    "Retry",
    "ScheduleNotFound",
    "SchemaError",
    "Signal",
    "Snooze",
    "StoreUnavailable",
]


class FencepostError(Exception):
    """The root: `except FencepostError` catches all that fencepost raises on purpose."""


class ConfigurationError(FencepostError):
    """The program or the database is set up in a way that cannot work; the text says what to change."""


class SchemaError(ConfigurationError):
    """The tables are missing, older than this build (migrate), or newer (upgrade fencepost)."""


class EnqueueError(FencepostError, ValueError):
    """A job was refused and nothing was stored."""


class ArgumentsError(EnqueueError):
    """The arguments do not fit the handler's signature; the text names each parameter."""


class EncodingError(EnqueueError):
    """A value cannot be stored so that it comes back equal; the text names its path."""


class DependencyError(EnqueueError):
    """A job was to wait for one that is not there, for itself, or in a circle; nothing was stored."""


class QueueFull(EnqueueError):
    """A queue holds as many waiting jobs as its `max_pending` allows: those that did not fit were not stored.

    Attributes:
        queue: its name.
        max_pending: its bound.
        refused: how many of this call's jobs for this queue were not stored.
        stored: how many of this call's jobs were stored all the same, the first ones of those for this queue and those
            for others; 0 unless the call enqueued many.
    """

    def __init__(self, queue: str, max_pending: int, *, refused: int, stored: int = 0, waited: float = 0.0) -> None:
        after = f" and had no room for {waited:.3g} s" if waited else ""
        super().__init__(
            f"The queue {queue!r} holds {max_pending:,} waiting jobs, as many as its max_pending allows{after}: "
            f"of this call {refused:,} were not stored, {stored:,} were. Start more workers, enqueue later, or give "
            "the queue another bound or overflow."
        )
        self.queue = queue
        self.max_pending = max_pending
        self.refused = refused
        self.stored = stored


class JobNotFound(FencepostError, LookupError):
    """No job has this id: it never existed, or retention has removed it."""


class ScheduleNotFound(FencepostError, LookupError):
    """No schedule has this name."""


class InvalidTransition(FencepostError):
    """The job's present state does not allow what was asked (a succeeded job is not retried)."""


class StoreUnavailable(FencepostError):
    """The database could not be asked, even after retries. The driver's error is the cause."""


class DecodingError(FencepostError):
    """A stored value cannot be read as the type that the handler declares."""


class LeaseLost(FencepostError):
    """The attempt's lease passed to somebody else, or the job was settled: nothing was written."""


class LeadershipLost(FencepostError):
    """The lead has run out or passed to somebody else (a greater epoch): the transaction wrote nothing."""


class ResultError(FencepostError):
    """The job ended without a result, or has none yet.

    Attributes:
        job: the job as it was last read.
    """

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(ResultError):
    """The job is final and failed; the text carries its reason and its last error."""


class JobCancelled(ResultError):
    """The job was cancelled."""


class JobSkipped(ResultError):
    """The job was skipped (its deadline passed, for example) and never ran to its end."""


class ResultTimeout(ResultError, TimeoutError):
    """The job was not final within the time given; it goes on, and may be asked again."""


class Signal(Exception):
    """What a handler raises to decide what becomes of its job. Not an error, and never logged as one."""


class Retry(Signal):
    """Try again: spends this attempt, like any exception, but names the delay.

    Args:
        reason: kept as the job's last error.
        after: seconds (or timedelta) until the next attempt; None: the job's backoff decides.
    """

    def __init__(self, reason: str = "retry requested", *, after: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Abandon(Signal):
    """Give the job up for good: `failed`, reason `abandoned`, whatever attempts are left.

    Args:
        reason: kept as the job's last error.
    """

    def __init__(self, reason: str = "abandoned by its handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Signal):
    """Come back later without spending an attempt.

    Args:
        delay: seconds (or timedelta) until the job is due again.
    """

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = delay


class Cancel(Signal):
    """End the job as `cancelled`.

    Args:
        reason: kept as the job's last error.
    """

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason
