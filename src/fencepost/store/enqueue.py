"""Enqueue: the identity index decides, whoever races (J1). An enqueue inserts rows and locks nothing shared."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.engine import Connection

from fencepost.errors import StoreUnavailable
from fencepost.job import Backoff, EnqueueResult, Micros, NewJob, OnConflict, Options, State
from fencepost.planning.fairness import takes_turns
from fencepost.planning.outcome import waiting
from fencepost.store.demands import encode_limits
from fencepost.store.dialects import Dialect
from fencepost.store.tables import gate_of, jobs, line_of, live_key_of, turn_line_of

__all__ = ["final_columns", "insert_jobs"]

_MOST_ROUNDS = 50
_DEFAULTS = Options()
_cached_line = lru_cache(maxsize=4096)(line_of)
_cached_turn_line = lru_cache(maxsize=4096)(turn_line_of)

_HOLDERS = select(jobs.c.id, jobs.c.live_key, jobs.c.state).where(
    jobs.c.live_key.in_(bindparam("keys", expanding=True))
)
_EXISTING = select(jobs.c.id).where(jobs.c.id.in_(bindparam("ids", expanding=True)))

# Served by the primary key. One row: the waiting holder took the new arguments. None: it has started, or ended.
_REPLACE = update(jobs).where(
    jobs.c.id == bindparam("_id"),
    jobs.c.live_key == bindparam("_live_key"),
    jobs.c.state.in_([State.READY, State.SCHEDULED, State.BLOCKED]),
)
_REPLACED_COLUMNS = (
    *("permit_key", "permit_slots", "permit_policy", "limits"),
    *("queue", "state", "priority", "line", "rank", "wake_at", "max_attempts", "hold", "run_at"),
    *("deadline", "tenant", "tags", "labels", "options", "arguments", "waits_for"),
)


@dataclass(frozen=True, slots=True)
class _Template:
    """What the rows of one `Options` share: all but id, arguments, rank and creation."""

    columns: tuple[str, ...]
    values: tuple[Any, ...]
    rank: int | None
    live_key: str | None


def insert_jobs(
    dialect: Dialect,
    conn: Connection,
    new: Sequence[NewJob],
    now: Micros,
    *,
    shared_transaction: bool = False,
    fair: Collection[str] = (),
) -> list[EnqueueResult]:
    """Store jobs, in the connection's transaction. One result per job, in order.

    Safe to repeat with the same jobs: an id that stands in the table already was stored by an earlier try.

    Args:
        dialect: the database's.
        conn: in a transaction that can write.
        new: the jobs; their ids decide what is a repetition.
        now: the database's clock.
        shared_transaction: the transaction is the application's and may read an old snapshot.
        fair: the queues whose jobs wait for their tenant's turn.

    Raises:
        StoreUnavailable: an identity changed hands so often that its holder could not be named.
    """
    results: dict[str, EnqueueResult] = {}
    pending = list(enumerate(new))
    for _ in range(_MOST_ROUNDS):
        if not pending:
            return [results[job.id] for job in new]
        pending = _round(dialect, conn, pending, now, results, shared_transaction, fair)
    raise StoreUnavailable(
        f"The identity {pending[0][1].options.key!r} of {pending[0][1].kind} changed hands {_MOST_ROUNDS} times "
        "during one enqueue. Enqueue again."
    )


def _round(
    dialect: Dialect,
    conn: Connection,
    pending: list[tuple[int, NewJob]],
    now: Micros,
    results: dict[str, EnqueueResult],
    shared_transaction: bool,
    fair: Collection[str],
) -> list[tuple[int, NewJob]]:
    """Insert each identity's first job of those pending, name its holder, and return what is left to do."""
    shapes: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    templates: dict[int, _Template] = {}
    contested: dict[str, tuple[int, NewJob, _Template]] = {}
    later: list[tuple[int, NewJob]] = []
    for place, job in pending:
        template = templates.get(id(job.options))
        if template is None or job.kind != template.values[0] or job.occurrence is not None:
            template = templates[id(job.options)] = _template(job, now, fair)
        if template.live_key is not None:
            if template.live_key in contested:  # the same identity twice in one call: one after the other
                later.append((place, job))
                continue
            contested[template.live_key] = place, job, template
        else:
            results[job.id] = EnqueueResult(job.id, created=True)
        shapes.setdefault(template.columns, []).append(_row(job, template, place))
    for columns, rows in shapes.items():
        dialect.insert_rows(conn, columns, rows)
    if contested:
        later += _name_holders(dialect, conn, contested, results, shared_transaction)
    return sorted(later, key=lambda entry: entry[0])


def _name_holders(
    dialect: Dialect,
    conn: Connection,
    contested: dict[str, tuple[int, NewJob, _Template]],
    results: dict[str, EnqueueResult],
    shared_transaction: bool,
) -> list[tuple[int, NewJob]]:
    holders_query = dialect.reading_latest(_HOLDERS) if shared_transaction else _HOLDERS
    holders = {row.live_key: row for row in conn.execute(holders_query, {"keys": list(contested)})}
    # A job that an earlier try of this enqueue stored may have ended since, and somebody else hold the identity.
    elsewhere = [job.id for key, (_, job, _) in contested.items() if key not in holders or holders[key].id != job.id]
    stored_before = {str(row.id) for row in conn.execute(_EXISTING, {"ids": elsewhere})} if elsewhere else set()
    undecided: list[tuple[int, NewJob]] = []
    for key, (place, job, template) in contested.items():
        holder = holders.get(key)
        if job.id in stored_before or (holder is not None and holder.id == job.id):
            results[job.id] = EnqueueResult(job.id, created=True)
        elif holder is None:
            undecided.append((place, job))  # the holder ended between our insert and our question
        elif job.options.on_conflict is OnConflict.KEEP or holder.state == State.RUNNING:
            results[job.id] = EnqueueResult(holder.id, created=False)
        elif _replace(conn, holder.id, key, job, template, place):
            results[job.id] = EnqueueResult(holder.id, created=False, replaced=True)
        else:
            undecided.append((place, job))  # it started or ended since we asked
    return undecided


def _replace(conn: Connection, holder: str, key: str, job: NewJob, template: _Template, place: int) -> bool:
    row = dict(zip(template.columns, _row(job, template, place), strict=True))
    values = {column: row.get(column) for column in _REPLACED_COLUMNS}
    fresh = {"attempts": 0, "reason": None, "last_error": None}
    statement = _REPLACE.values(values | fresh)
    return conn.execute(statement, {"_id": holder, "_live_key": key}).rowcount == 1


def _row(job: NewJob, template: _Template, place: int) -> tuple[Any, ...]:
    if template.rank is None:
        return (job.id, job.arguments, *template.values)
    # One microsecond a row keeps a batch in the order in which it was given.
    return (job.id, job.arguments, *template.values, template.rank + place)


def _template(job: NewJob, now: Micros, fair: Collection[str]) -> _Template:
    kind, options = job.kind, job.options
    due_at = now
    if options.start_at is not None:
        due_at = options.start_at
    elif options.run_at is not None:
        due_at = max(now, options.run_at)
    elif options.delay is not None and not options.after:  # or it counts from the end of what it waits for
        due_at = now + max(options.delay, 0)
    state, rank, wake_at = waiting(
        options.priority,
        due_at,
        now,
        deadline=options.deadline,
        duration_hint=options.duration_hint,
        start_at=options.start_at,
    )
    if options.after:  # it stands in no line before a pass has looked at what it waits for
        state, rank, wake_at = State.BLOCKED, None, now
    live_key = None if options.key is None else live_key_of(kind, options.key)
    optional: dict[str, Any] = {
        "wake_at": wake_at,
        "run_at": due_at if due_at > now else None,
        "deadline": options.deadline,
        "live_key": live_key,
        "dedup_key": options.key,
        "hold": None if options.key is None else options.hold,
        "tenant": options.tenant,
        "tags": json.dumps(options.tags, ensure_ascii=False) if options.tags else None,
        "labels": options.labels,
        "options": _encode_rare(options),
        "waits_for": len(options.after) or None,
    }
    if options.concurrency is not None:
        optional |= {
            "permit_key": options.concurrency.key,
            "permit_slots": options.concurrency.slots,
            "permit_policy": options.concurrency.busy.value,
        }
    if options.rate is not None or options.resources:
        optional["limits"] = encode_limits(options.rate, options.resources)
    if rank is not None:
        gate = gate_of(optional.get("permit_key"), optional.get("limits"))
        optional["line"] = _cached_line(options.queue, kind, labels=options.labels, gate=gate)
        if options.queue in fair and takes_turns(options.priority, options.start_at):
            state = State.BLOCKED
            optional["line"] = _cached_turn_line(options.queue, kind, options.tenant)
    if job.occurrence is not None:
        optional |= {
            "schedule": job.occurrence.schedule,
            "scheduled_for": job.occurrence.scheduled_for,
            "trigger": job.occurrence.trigger.value,
        }
    present = {name: value for name, value in optional.items() if value is not None}
    shared = {
        "kind": kind,
        "queue": options.queue,
        "state": state.value,
        "priority": options.priority.value,
        "max_attempts": options.max_attempts,
        "created_at": now,
    } | present
    columns = ("id", "arguments", *shared)
    return _Template(columns if rank is None else (*columns, "rank"), tuple(shared.values()), rank, live_key)


def final_columns(job: NewJob, now: Micros) -> dict[str, Any]:
    """The columns of a job that is final from the first, but for its state: all that a retry by hand needs."""
    template = _template(job, now, ())
    held = dict(zip(template.columns, _row(job, template, 0), strict=True))
    for waiting_column in ("state", "line", "rank", "wake_at", "live_key"):
        held.pop(waiting_column, None)
    return held


def _encode_rare(options: Options) -> str | None:
    """What only some jobs ask for and no statement needs, as JSON; None where all is at its default."""
    rare: dict[str, Any] = {}
    if options.timeout_seconds is not None:
        rare["timeout"] = options.timeout_seconds
    if options.backoff != _DEFAULTS.backoff:
        backoff = options.backoff
        if isinstance(backoff, Backoff):
            rare["backoff"] = {
                "base": backoff.base,
                "factor": backoff.factor,
                "cap": backoff.cap,
                "jitter": backoff.jitter,
            }
        else:
            rare["backoff"] = backoff if isinstance(backoff, (int, float)) else list(backoff)
    if options.duration_hint:
        rare["duration_hint"] = options.duration_hint
    if not options.keep_result:
        rare["keep_result"] = False
    start = options.fixed_start
    if start is not None:
        rare["start"] = {"at": start.at, "tolerance": start.tolerance, "on_miss": start.on_miss.value}
    if options.after and options.delay:
        rare["delay"] = options.delay
    return json.dumps(rare) if rare else None
