"""Schedules' definitions as the columns of their table, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fencepost.errors import ConfigurationError
from fencepost.job import Backoff, BusyPolicy, Concurrency, Micros, OnMiss, Options, Priority, Rate
from fencepost.labels import label_set
from fencepost.planning.cron import checked
from fencepost.schedule import Cron, Every, Misfire, NewSchedule, Once, Overlap, Schedule, Timing
from fencepost.store.rows import instant

__all__ = ["definition_columns", "schedule_from_row", "shown_schedule"]

_KEPT_ELSEWHERE = ("queue", "delay", "run_at", "start_at", "deadline", "key", "hold", "on_conflict", "computed")
"""Options that belong to one job and not to a schedule, or that have columns of their own."""

_KEPT_IF_GIVEN = ("concurrency", "rate", "resources", "labels")
"""Options that came later: a schedule without them keeps the digest that it had, and is not started anew."""


def definition_columns(new: NewSchedule) -> dict[str, Any]:
    """The columns that the definition consists of; their digest tells whether it changed."""
    return {
        "kind": new.kind,
        "queue": new.options.queue,
        "timing": _encode_timing(new.timing),
        "arguments": new.arguments,
        "options": _encode_options(new.options),
        "misfire": new.misfire.value,
        "max_catch_up": new.max_catch_up,
        "grace": new.grace,
        "jitter": new.jitter,
        "until": new.until,
        "max_runs": new.max_runs,
        "overlap": new.overlap.value,
        "permit_key": new.permit_key,
        "permit_slots": new.slots,
    }


def schedule_from_row(row: Any) -> NewSchedule:
    """A row as a definition.

    Raises:
        ConfigurationError: it was written by a newer version, or is damaged.
    """
    try:
        return NewSchedule(
            name=row.name,
            kind=row.kind,
            arguments=row.arguments,
            options=_decode_options(row.options, row.queue),
            timing=checked(_decode_timing(row.timing)),
            misfire=Misfire(row.misfire),
            max_catch_up=row.max_catch_up,
            grace=row.grace,
            jitter=row.jitter,
            until=row.until,
            max_runs=row.max_runs,
            version=row.version,
            declared_in=row.declared_in,
            overlap=Overlap(row.overlap),
            permit_key=row.permit_key,
            slots=row.permit_slots,
        )
    except (ConfigurationError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"The schedule {row.name!r} cannot be decoded by this version of fencepost ({type(error).__name__}: "
            f"{error}). It stays in place and is not planned. Upgrade fencepost, or save it anew."
        ) from error


def _encode_timing(timing: Timing) -> str:
    match timing:
        case Cron(expression, timezone):
            return json.dumps({"cron": expression, "timezone": timezone})
        case Every(period, anchor):
            return json.dumps({"every": period, "anchor": anchor})
        case Once(at):
            return json.dumps({"at": at})


def _decode_timing(text: str) -> Timing:
    stored = json.loads(text)
    if "cron" in stored:
        return Cron(stored["cron"], stored["timezone"])
    if "every" in stored:
        return Every(_whole(stored["every"]), _whole(stored["anchor"]))
    return Once(_whole(stored["at"]))


def _whole(value: object) -> Micros:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number of microseconds")
    return value


def _encode_options(options: Options) -> str:
    kept = asdict(options)
    for elsewhere in _KEPT_ELSEWHERE:
        del kept[elsewhere]
    if options.tolerance is None:  # so that definitions from before there were fixed starts are still the same
        del kept["tolerance"], kept["on_miss"]
    for late in _KEPT_IF_GIVEN:
        if not kept[late]:
            del kept[late]
    return json.dumps(kept, ensure_ascii=False, sort_keys=True)


def _decode_options(text: str | None, queue: str) -> Options:
    stored = json.loads(text or "{}")
    if isinstance(stored.get("backoff"), dict):
        stored["backoff"] = Backoff(**stored["backoff"])
    if "priority" in stored:
        stored["priority"] = Priority(stored["priority"])
    if "tags" in stored:
        stored["tags"] = tuple(stored["tags"])
    if "on_miss" in stored:
        stored["on_miss"] = OnMiss(stored["on_miss"])
    if "concurrency" in stored:
        busy = BusyPolicy(stored["concurrency"]["busy"])
        stored["concurrency"] = Concurrency(**(stored["concurrency"] | {"busy": busy}))
    if "rate" in stored:
        stored["rate"] = Rate(**stored["rate"])
    if "resources" in stored:
        stored["resources"] = tuple((name, _whole(amount)) for name, amount in stored["resources"])
    options = Options(queue=queue, **stored)
    if options.tolerance is not None:
        _whole(options.tolerance)
    _whole(options.max_attempts)
    _whole(options.duration_hint)
    if label_set(options.labels) is None:
        raise ValueError(f"{options.labels!r} are no labels")
    return options


def shown_schedule(row: Any) -> Schedule:
    """A schedule for people: what this version cannot decode is shown as far as it goes."""
    error = row.error
    timing: Timing | None = None
    tolerance: Micros | None = None
    on_miss: OnMiss | None = None
    try:
        timing = _decode_timing(row.timing)
        arguments = json.loads(row.arguments)
    except (ValueError, TypeError, KeyError) as problem:
        arguments = row.arguments
        error = error or f"{type(problem).__name__}: {problem}"
    if error is None:
        try:
            options = schedule_from_row(row).options
        except ConfigurationError as problem:  # no planner has come across it yet
            error = str(problem)
        else:
            tolerance, on_miss = options.tolerance, None if options.tolerance is None else options.on_miss
    created_at, updated_at = instant(row.created_at), instant(row.updated_at)
    assert created_at is not None
    assert updated_at is not None
    return Schedule(
        name=row.name,
        kind=row.kind,
        queue=row.queue,
        cron=timing.expression if isinstance(timing, Cron) else None,
        every=timing.period / 1_000_000 if isinstance(timing, Every) else None,
        anchor=instant(timing.anchor) if isinstance(timing, Every) else None,
        at=instant(timing.at) if isinstance(timing, Once) else None,
        timezone=timing.timezone if isinstance(timing, Cron) else "UTC",
        arguments=arguments,
        misfire=row.misfire,
        max_catch_up=row.max_catch_up,
        grace=row.grace / 1_000_000,
        jitter=row.jitter / 1_000_000,
        overlap=row.overlap,
        permit_key=row.permit_key,
        slots=row.permit_slots,
        tolerance=None if tolerance is None else tolerance / 1_000_000,
        on_miss=on_miss,
        until=instant(row.until),
        max_runs=row.max_runs,
        runs=row.runs,
        version=row.version,
        next_fire_at=instant(row.next_fire_at),
        paused_at=instant(row.paused_at),
        paused_reason=row.paused_reason,
        declared_in=row.declared_in,
        labels=_shown_labels(row.options),
        error=error,
        created_at=created_at,
        updated_at=updated_at,
    )


def _shown_labels(options: str | None) -> dict[str, str]:
    try:
        return dict(label_set(json.loads(options or "{}").get("labels")) or ())
    except (ValueError, TypeError, AttributeError):
        return {}
