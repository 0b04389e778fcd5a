"""The state table: what an attempt's outcome makes of its job. Pure; `store.settle` writes what this decides.

| outcome    | attempts left    | becomes                                          | attempts | error   |
| ---------- | ---------------- | ------------------------------------------------ | -------- | ------- |
| retry      | some             | scheduled, or ready if the delay is 0            | kept     | written |
| retry      | none             | failed: attempts_exhausted (or the reason given) | kept     | written |
| reclaim    | some             | ready, reason lease_expired                      | kept     | written |
| reclaim    | none             | failed: lease_expired                            | kept     | written |
| release    | any              | ready (a reason lease_expired stays)             | minus 1  | kept    |
| snooze     | any              | scheduled, reason snoozed                        | minus 1  | kept    |
| reschedule | any              | scheduled                                        | zero     | cleared |
| abandon    | any              | failed                                           | kept     | written |
| cancel     | any              | cancelled                                        | kept     | written |
| skip       | any              | skipped                                          | kept     | kept    |

Success is not in it, since it depends on nothing: whatever the attempt, its job has succeeded, with attempts and error
kept. `store.settle` alone says so, in one statement for many.

An attempt whose fixed start lies ahead, or was given back before its handler began, has not been tried: a release, or a
reclaim before the start, leaves its job as it was before the claim.

If a cancellation was requested while it ran, every outcome that would bring the job back cancels it instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from fencepost.job import BackoffSpec, FixedStart, Micros, Priority, Reason, State
from fencepost.planning.backoff import backoff_seconds
from fencepost.planning.rank import early_at, fixed_start_rank, rank, urgent_at

__all__ = [
    "MAX_ERROR_CHARS",
    "MAX_HISTORY",
    "Change",
    "Ended",
    "Outcome",
    "Verb",
    "append_history",
    "bounded_error",
    "next_state",
    "waiting",
]

MAX_HISTORY = 50
MAX_HISTORY_ERROR_CHARS = 500
MAX_ERROR_CHARS = 32_000  # with 4-byte characters 128,000 bytes: a page of traceback, never a flood


class Verb(StrEnum):
    """How an attempt can end."""

    COMPLETE = "complete"
    RETRY = "retry"
    RECLAIM = "reclaim"
    RELEASE = "release"
    SNOOZE = "snooze"
    RESCHEDULE = "reschedule"
    ABANDON = "abandon"
    CANCEL = "cancel"
    SKIP = "skip"


_RETURNING = frozenset({Verb.RETRY, Verb.RECLAIM, Verb.RELEASE, Verb.SNOOZE, Verb.RESCHEDULE})
_SPENDING = frozenset({Verb.RETRY, Verb.RECLAIM})  # these end the job when no attempt is left


class Outcome(NamedTuple):
    """What a handler, a worker or the planner says of an attempt.

    Attributes:
        verb: what happened.
        result: JSON text, with `complete`.
        error: text, with `retry`, `abandon`, `cancel`.
        reason: why; each verb has its default.
        delay: microseconds until the job is due again; None with `retry`: the job's backoff decides.
        run_at: the instant it is due again, with `reschedule` (takes precedence over `delay`).
        is_unbegun: with `release`: no handler has begun, so that a fixed start is still to be kept.
    """

    verb: Verb
    result: str | None = None
    error: str | None = None
    reason: Reason | None = None
    delay: Micros | None = None
    run_at: Micros | None = None
    is_unbegun: bool = False

    @property
    def is_returning(self) -> bool:
        """Whether it would bring the job back rather than end it."""
        return self.verb in _RETURNING


class Ended(Protocol):
    """What the table needs to know of the attempt that ended (`Claim` has it all)."""

    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def run_at(self) -> Micros: ...
    @property
    def deadline(self) -> Micros | None: ...
    @property
    def duration_hint(self) -> Micros: ...
    @property
    def backoff(self) -> BackoffSpec: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def history(self) -> str | None: ...
    @property
    def start(self) -> FixedStart | None: ...


@dataclass(frozen=True, slots=True)
class Change:
    """What is written to the row; None in `run_at`, `last_error` and `history` leaves what stands there."""

    state: State
    reason: Reason | None
    attempts: int
    rank: int | None = None
    wake_at: Micros | None = None
    run_at: Micros | None = None
    finished_at: Micros | None = None
    last_error: str | None = None
    clears_error: bool = False
    history: str | None = None


def waiting(
    priority: Priority,
    due_at: Micros,
    now: Micros,
    *,
    deadline: Micros | None = None,
    duration_hint: Micros = 0,
    start_at: Micros | None = None,
) -> tuple[State, int | None, Micros | None]:
    """The state, rank and `wake_at` of a job that waits from now on and is due at `due_at`.

    With a fixed start it may be claimed a little before that.
    """
    if start_at is not None:
        early = early_at(start_at)
        return (State.SCHEDULED, None, early) if early > now else (State.READY, fixed_start_rank(start_at), None)
    if due_at > now:
        return State.SCHEDULED, None, due_at
    return State.READY, rank(priority, due_at), urgent_at(priority, deadline, duration_hint)


def bounded_error(text: str) -> str:
    """At most `MAX_ERROR_CHARS` characters: a longer error keeps its head and, mostly, its tail."""
    if len(text) <= MAX_ERROR_CHARS:
        return text
    head = MAX_ERROR_CHARS // 4
    tail = MAX_ERROR_CHARS - head - 100
    return f"{text[:head]}\n... {len(text) - head - tail} characters left out ...\n{text[-tail:]}"


def next_state(
    ended: Ended, outcome: Outcome, now: Micros, *, worker: str, draw: float, cancel_requested: bool = False
) -> Change:
    """What the row becomes when the attempt `ended` with `outcome`.

    Args:
        ended: the attempt.
        outcome: how it ended; any but `complete`.
        now: the database's clock.
        worker: who held the lease, for the history.
        draw: jitter in [0, 1) for the backoff.
        cancel_requested: whether somebody asked to cancel the job while it ran.
    """
    is_spent = outcome.verb in _SPENDING and ended.attempt >= ended.max_attempts
    if cancel_requested and outcome.is_returning and not is_spent:
        outcome = Outcome(Verb.CANCEL, error=outcome.error, reason=Reason.CANCELLED)
    verb, attempts = outcome.verb, ended.attempt
    assert verb is not Verb.COMPLETE, "success depends on nothing: store.settle writes it"

    def recorded(reason: Reason) -> str:
        return append_history(ended.history, attempts, now, reason, worker, outcome.error)

    def final(state: State, reason: Reason) -> Change:
        return Change(state, reason, attempts, finished_at=now, last_error=outcome.error, history=recorded(reason))

    def due(at: Micros, reason: Reason | None, **columns: Any) -> Change:
        state, new_rank, wake_at = waiting(
            ended.priority, at, now, deadline=ended.deadline, duration_hint=ended.duration_hint
        )
        return Change(**({"attempts": attempts} | columns), state=state, reason=reason, rank=new_rank, wake_at=wake_at)

    def awaiting(start: FixedStart) -> Change:
        # It has not begun, whatever became of its worker: the attempt was not spent, and the start stands.
        if outcome.run_at is not None:  # a worker that can hold no more of them gives it back until then
            state, new_rank, wake_at = waiting(ended.priority, outcome.run_at, now)
        else:
            state, new_rank, wake_at = waiting(ended.priority, start.at, now, start_at=start.at)
        return Change(state, _known_reason(ended.reason), max(attempts - 1, 0), new_rank, wake_at)

    if ended.start is not None:
        has_begun = ended.start.at <= now and not (outcome.is_unbegun and ended.reason is None)
        if verb in (Verb.RELEASE, Verb.RECLAIM) and not has_begun:
            return awaiting(ended.start)
    match verb:
        case Verb.ABANDON:
            return final(State.FAILED, outcome.reason or Reason.ABANDONED)
        case Verb.CANCEL:
            return final(State.CANCELLED, outcome.reason or Reason.CANCELLED)
        case Verb.SKIP:
            return final(State.SKIPPED, outcome.reason or Reason.EXPIRED)
        case Verb.RETRY:
            reason = outcome.reason or Reason.ERROR
            if is_spent:
                return final(State.FAILED, Reason.ATTEMPTS_EXHAUSTED if reason is Reason.ERROR else reason)
            delay = outcome.delay
            if delay is None:
                delay = round(backoff_seconds(max(attempts, 1), ended.backoff, draw) * 1_000_000)
            return due(now + delay, reason, last_error=outcome.error, history=recorded(reason))
        case Verb.RECLAIM:
            if is_spent:
                return final(State.FAILED, Reason.LEASE_EXPIRED)
            return due(
                min(ended.run_at, now),
                Reason.LEASE_EXPIRED,
                last_error=outcome.error,
                history=recorded(Reason.LEASE_EXPIRED),
            )
        case Verb.RELEASE:
            # What was handed back unspent is still suspected of having killed its last worker.
            suspected = ended.reason == Reason.LEASE_EXPIRED
            reason = Reason.LEASE_EXPIRED if suspected else Reason.RELEASED
            return due(min(ended.run_at, now), reason, attempts=max(attempts - 1, 0))
        case Verb.SNOOZE:
            return due(
                now + (outcome.delay or 0),
                Reason.SNOOZED,
                attempts=max(attempts - 1, 0),
                history=recorded(Reason.SNOOZED),
            )
        case Verb.RESCHEDULE:
            at = outcome.run_at if outcome.run_at is not None else now + (outcome.delay or 0)
            if ended.start is not None:
                at = max(at, ended.start.at + 1)  # due after its start: there is none to keep any more
            return due(at, None, attempts=0, run_at=at, clears_error=True)


def _known_reason(reason: str | None) -> Reason | None:
    return Reason(reason) if reason in list(Reason) else None


def append_history(
    history: str | None, attempt: int, at: Micros, reason: Reason, worker: str, error: str | None
) -> str:
    """The history with one more entry, as JSON text; the oldest go beyond `MAX_HISTORY`."""
    entries = json.loads(history) if history else []
    last_line = error.strip().rsplit("\n", 1)[-1][:MAX_HISTORY_ERROR_CHARS] if error else None
    entries.append({"attempt": attempt, "at": at, "reason": reason, "worker": worker, "error": last_line})
    return json.dumps(entries[-MAX_HISTORY:], ensure_ascii=False, separators=(",", ":"))
