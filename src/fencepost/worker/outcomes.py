"""What a handler's return or exception makes of its attempt."""

from __future__ import annotations

import asyncio
import logging
import traceback

from fencepost.errors import Abandon, Cancel, ConfigurationError, DecodingError, EncodingError, LeaseLost, Retry, Snooze
from fencepost.job import Reason
from fencepost.planning.outcome import Outcome, Verb, bounded_error
from fencepost.timing import micros
from fencepost.worker.execution import Execution, Stop

__all__ = ["not_started", "outcome_of_error", "outcome_of_return", "timed_out"]

logger = logging.getLogger("fencepost.worker")

_COMPLETED = Outcome(Verb.COMPLETE)


def outcome_of_return(execution: Execution, value: object) -> Outcome:
    """Success, unless what was returned cannot be stored."""
    if value is not None and execution.discards_return:
        logger.warning(
            "Job %s (%s) was completed by its own transaction, so what its handler returned is not stored. Name the "
            "result inside the transaction: ctx.set_result(value).",
            execution.claim.id,
            execution.claim.kind,
        )
        return _COMPLETED
    if value is None or not execution.claim.keep_result:
        return _COMPLETED
    try:
        return Outcome(Verb.COMPLETE, result=execution.handler.result.encode(value))
    except EncodingError as error:
        return Outcome(Verb.ABANDON, error=str(error), reason=Reason.UNENCODABLE_RESULT)


def outcome_of_error(execution: Execution, error: BaseException) -> Outcome | None:
    """What an exception makes of the attempt. None: there is nothing to settle. Never raises."""
    try:
        return _outcome_of_error(execution, error)
    except Exception as second:  # noqa: BLE001 - a signal's subclass without our __init__, an error whose str fails
        return Outcome(Verb.RETRY, error=_traceback(second))


def _outcome_of_error(execution: Execution, error: BaseException) -> Outcome | None:
    match error:
        case LeaseLost():
            if execution.stop_reason is None:  # or the heartbeat has said so
                execution.stop_reason = Stop.LEASE_LOST
                logger.warning("%s", error)
            return None
        case Retry():
            return _delayed(Verb.RETRY, error.after, error=str(error.reason))
        case Snooze():
            return _delayed(Verb.SNOOZE, error.delay)
        case Abandon():
            return Outcome(Verb.ABANDON, error=str(error.reason))
        case Cancel():
            return Outcome(Verb.CANCEL, error=str(error.reason))
        case DecodingError():
            return Outcome(Verb.ABANDON, error=str(error), reason=Reason.UNDECODABLE)
    match execution.stop_reason:
        case Stop.CANCEL:
            text = None if isinstance(error, asyncio.CancelledError) else _traceback(error)
            return Outcome(Verb.CANCEL, error=text)
        case Stop.SHUTDOWN:
            return Outcome(Verb.RELEASE)
        case Stop.LEASE_LOST:
            return None
        case _:
            return Outcome(Verb.RETRY, error=_traceback(error))


def not_started(execution: Execution) -> Outcome | None:
    """What becomes of a claimed attempt that was stopped before its handler began."""
    match execution.stop_reason:
        case Stop.CANCEL:
            return Outcome(Verb.CANCEL)
        case Stop.LEASE_LOST:
            return None
        case _:
            return Outcome(Verb.RELEASE, is_unbegun=True)


def timed_out(execution: Execution) -> Outcome:
    """What a passed timeout makes of the attempt."""
    return Outcome(
        Verb.RETRY,
        error=f"Timed out after {execution.claim.timeout_seconds:g} s.",
        reason=Reason.TIMEOUT,
    )


def _delayed(verb: Verb, delay: object, *, error: str | None = None) -> Outcome:
    if delay is None:
        return Outcome(verb, error=error)
    try:
        return Outcome(verb, error=error, delay=micros(delay, "the delay"))  # type: ignore[arg-type]
    except ConfigurationError as wrong:
        # The handler asked for the impossible; its backoff decides instead, and the error says so.
        return Outcome(Verb.RETRY, error=f"{error or verb}: {wrong}")


def _traceback(error: BaseException) -> str:
    return bounded_error("".join(traceback.format_exception(error)))
