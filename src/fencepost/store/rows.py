"""Rows of the jobs table as the data that the rest of fencepost works with."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Row

from fencepost.codec import clean_text
from fencepost.job import (
    Attempt,
    Backoff,
    BackoffSpec,
    BusyPolicy,
    Claim,
    Concurrency,
    FixedStart,
    Hold,
    Job,
    Lease,
    Micros,
    OnMiss,
    Priority,
    Reason,
    State,
    Trigger,
)
from fencepost.store.demands import limits_from_text, waits_for
from fencepost.store.tables import jobs
from fencepost.timing import FIRST_INSTANT, LAST_INSTANT

__all__ = [
    "CLAIM_COLUMNS",
    "LISTING_COLUMNS",
    "UNREADABLE",
    "claim_from_row",
    "fixed_start",
    "instant",
    "is_storable",
    "job_from_row",
    "shown",
    "unreadable_text",
]

CLAIM_COLUMNS = (
    *("id", "kind", "queue", "arguments", "attempts", "max_attempts", "lease_token", "priority"),
    *("created_at", "run_at", "deadline", "hold", "options", "tags", "tenant", "schedule", "scheduled_for"),
    *(
        "trigger",
        "permit_key",
        "permit_slots",
        "permit_policy",
        "reason",
        "history",
        "limits",
        "labels",
        "has_successors",
    ),
)
LISTING_COLUMNS = tuple(column.name for column in jobs.c if column.name not in ("arguments", "result", "history"))
"""What a listing reads: all but what may be large."""

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)
"""What reading a row raises that was damaged, or written by a newer version."""

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULT_BACKOFF = Backoff()
_PRIORITIES = {priority.value: priority for priority in Priority}


def instant(micros: Micros | None) -> datetime | None:
    """A stored instant as an aware datetime in UTC. (Not by way of a float, which would lose microseconds.)

    One that no datetime can be (a damaged row, or one that was not checked) is shown as the nearest that can.
    """
    return None if micros is None else _instant(micros)


def _instant(micros: Micros) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(micros, FIRST_INSTANT), LAST_INSTANT))


def is_storable(text: object) -> bool:
    """Whether it is a text that every database can be asked for: no NUL, no lone surrogate."""
    return isinstance(text, str) and clean_text(text) == text


def shown(micros: Micros) -> str:
    """A stored instant in ISO 8601, in UTC."""
    return _instant(micros).isoformat().replace("+00:00", "Z")


def unreadable_text(error: Exception) -> str:
    """What is said of a row that raised one of UNREADABLE."""
    return f"The row cannot be decoded by this version of fencepost: {type(error).__name__}: {error}"


def claim_from_row(row: Any, owner: str, claimed_at: Micros) -> Claim:
    """A claim from the values of `CLAIM_COLUMNS` as they stand after the claim.

    Raises:
        One of UNREADABLE: the row holds what this build cannot read.
    """
    # fmt: off
    (
        job_id, kind, queue, arguments, attempts, max_attempts, token, priority,
        created_at, run_at, deadline, hold, options, tags, tenant, schedule, scheduled_for, trigger,
        permit_key, permit_slots, permit_policy, reason, history, limits, labels, has_successors,
    ) = row
    # fmt: on
    timeout: float | None = None
    backoff: BackoffSpec = _DEFAULT_BACKOFF
    duration_hint, keep_result = 0, True
    start: FixedStart | None = None
    if options is not None:
        rare = json.loads(options)
        timeout = rare.get("timeout")
        duration_hint = rare.get("duration_hint", 0)
        keep_result = rare.get("keep_result", True)
        if "backoff" in rare:
            backoff = _backoff(rare["backoff"])
        if not (timeout is None or _is_number(timeout)) or not _is_number(duration_hint):
            raise ValueError(f"the options {options} hold no durations")
        start = fixed_start(rare)
        if start is not None and run_at is not None and run_at > max(start.at, created_at):
            start = None  # it was retried by hand, or rescheduled, since
    if history is not None and not isinstance(json.loads(history), list):
        raise ValueError("the history is no list")
    return Claim(
        Lease(job_id, owner, token),
        kind,
        queue,
        arguments,
        attempts,
        max_attempts,
        _PRIORITIES[priority],
        created_at,
        created_at if run_at is None or run_at < created_at else run_at,
        deadline,
        duration_hint,
        None if hold is None else Hold(hold),
        timeout,
        backoff,
        keep_result,
        () if tags is None else tuple(json.loads(tags)),
        tenant,
        schedule,
        scheduled_for,
        trigger,
        None if permit_key is None else Concurrency(permit_key, permit_slots, BusyPolicy(permit_policy)),
        reason,
        history,
        claimed_at,
        None,
        start,
        None if limits is None else limits_from_text(limits),
        labels,
        has_successors is not None,
    )


def fixed_start(rare: dict[str, Any]) -> FixedStart | None:
    """The fixed start among a row's rare options.

    Raises:
        One of UNREADABLE: this build cannot read it.
    """
    stored = rare.get("start")
    if stored is None:
        return None
    at, tolerance = stored["at"], stored["tolerance"]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (at, tolerance)):
        raise ValueError(f"the fixed start {stored} holds no instants")
    return FixedStart(at, tolerance, OnMiss(stored["on_miss"]))


def _backoff(stored: Any) -> BackoffSpec:
    if isinstance(stored, dict):
        return Backoff(**stored)
    if _is_number(stored) or (isinstance(stored, list) and stored and all(_is_number(each) for each in stored)):
        return stored  # type: ignore[no-any-return]
    raise ValueError(f"{stored!r} is no backoff")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def job_from_row(row: Row[Any]) -> Job:
    """A job for people. What this build cannot read is shown as it stands, never a crash."""
    values = row._mapping
    start = _json_as(dict, values["options"]).get("start")
    start = start if isinstance(start, dict) else {}
    waits = values["state"] == State.SCHEDULED
    due = (values["wake_at"] if waits else values["run_at"]) or values["created_at"]
    if waits:
        due = max(due, _number(start.get("at")) or due)  # it wakes a little before
    progress = values["progress"]
    return Job(
        id=str(values["id"]),
        kind=values["kind"],
        queue=values["queue"],
        state=_word(State, values["state"]),
        reason=None if values["reason"] is None else _word(Reason, values["reason"]),
        priority=_word(Priority, values["priority"]),
        arguments=_json(values.get("arguments")),
        attempts=values["attempts"],
        max_attempts=values["max_attempts"],
        key=values["dedup_key"],
        run_at=_instant(due),
        deadline=instant(values["deadline"]),
        created_at=_instant(values["created_at"]),
        started_at=instant(values["started_at"]),
        finished_at=instant(values["finished_at"]),
        start_at=instant(_number(start.get("at"))),
        tolerance=None if _number(start.get("tolerance")) is None else start["tolerance"] / 1_000_000,
        on_miss=None if start.get("on_miss") is None else _word(OnMiss, start["on_miss"]),
        last_error=values["last_error"],
        result=_json(values.get("result")),
        progress=None if progress is None else progress / 10_000,
        progress_note=values["progress_note"],
        tags=tuple(_json_as(list, values["tags"])),
        labels=_json_as(dict, values["labels"]),
        tenant=values["tenant"],
        schedule=values["schedule"],
        scheduled_for=instant(values["scheduled_for"]),
        trigger=None if values["trigger"] is None else _word(Trigger, values["trigger"]),
        lease_owner=values["lease_owner"],
        lease_until=instant(values["lease_until"]),
        cancel_requested=values["cancel_requested_at"] is not None,
        history=_history(values.get("history")),
        waits_for=_waits_for(row) if values["state"] == State.BLOCKED else None,
    )


def _waits_for(row: Row[Any]) -> str | None:
    left = row._mapping["waits_for"]
    return waits_for(row) if not left else f"{left:,} other job{'' if left == 1 else 's'}"


def _word(words: type[StrEnum], text: str) -> Any:
    try:
        return words(text)
    except ValueError:  # written by a newer version
        return text


def _number(value: Any) -> Micros | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json_as(kind: type[T], text: str | None) -> T:
    found = _json(text)
    return found if isinstance(found, kind) else kind()


def _history(text: str | None) -> tuple[Attempt, ...]:
    attempts = []
    for entry in _json_as(list, text):
        try:
            attempt = Attempt(
                attempt=entry["attempt"],
                at=_instant(entry["at"]),
                reason=_word(Reason, entry["reason"]),
                worker=entry["worker"],
                error=entry.get("error"),
            )
        except UNREADABLE:  # shown without what cannot be read
            continue
        attempts.append(attempt)
    return tuple(attempts)
