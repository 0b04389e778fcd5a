"""Schedules: definitions with a durable cursor, and the occurrences that it makes.

`next_fire_at` is the cursor, and `plan_at` the instant at which the planner is to move it: the same, or a little
earlier where starts are fixed. Both are set only while the schedule is to be planned, so that the planner's question
is one index range scan. The cursor moves by compare-and-set, in the transaction that inserts the occurrences:
whoever planned from an old cursor writes nothing at all (S2), and of any number of planners one makes each occurrence
(S1).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, delete, func, not_, null, select, update
from sqlalchemy.engine import Connection

from fencepost.codec import clean_text
from fencepost.errors import ConfigurationError, ScheduleNotFound, StoreUnavailable
from fencepost.ids import new_id
from fencepost.job import (
    BusyPolicy,
    Concurrency,
    EnqueueResult,
    Micros,
    NewJob,
    Occurrence,
    Reason,
    State,
    Trigger,
)
from fencepost.planning.cron import fires_after, jitter_of, next_fire
from fencepost.planning.misfire import Missed, missed_between, plan_pass
from fencepost.planning.rank import EARLY_CLAIM
from fencepost.schedule import OWN_KEY_PREFIX, NewSchedule, Overlap, Schedule
from fencepost.store.database import Database
from fencepost.store.definitions import definition_columns, schedule_from_row, shown_schedule
from fencepost.store.dependencies import is_needed
from fencepost.store.enqueue import final_columns, insert_jobs
from fencepost.store.rows import is_storable, shown
from fencepost.store.tables import jobs, schedules

__all__ = [
    "PausedBy",
    "Saved",
    "backfill",
    "delete_occurrences",
    "delete_schedule",
    "due_schedules",
    "get_schedule",
    "list_schedules",
    "materialise",
    "next_plan_at",
    "pause_by_operator",
    "pause_undeclared",
    "previous_success",
    "recheck_undecodable",
    "resume_schedule",
    "save_schedule",
    "set_error",
    "trigger_schedule",
]

MOST_BACKFILLED = 1000

_MOST_ROUNDS = 20
_SETTLING: Micros = 60 * 60 * 1_000_000
"""For how long after it was replaced a definition of equal version cannot come back: longer than a rolling deploy."""


class PausedBy(StrEnum):
    """Who paused a schedule."""

    OPERATOR = "operator"
    UNDECLARED = "undeclared"
    """It vanished from the code that declared it."""


class Saved(StrEnum):
    """What became of a definition."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    OUTRANKED = "outranked"
    """A definition of a higher version, or a newer one of the same, stands and stays."""


# Served by the `next` index. One that could not be decoded stays where it is and is not planned (L6).
_DUE = (
    select(schedules)
    .where(schedules.c.plan_at <= bindparam("now"), schedules.c.error.is_(None))
    .order_by(schedules.c.plan_at)
    .limit(bindparam("batch"))
)
_NEXT = select(func.min(schedules.c.plan_at)).where(schedules.c.plan_at.is_not(None), schedules.c.error.is_(None))
_BY_NAME = select(schedules).where(schedules.c.name == bindparam("name"))

# The compare-and-set. One row: the plan was made from what still stands. None: somebody planned it, changed it or
# paused it since.
_MOVE_CURSOR = (
    update(schedules)
    .where(
        schedules.c.name == bindparam("_name"),
        schedules.c.next_fire_at == bindparam("_planned"),
        schedules.c.config_hash == bindparam("_hash"),
    )
    .values(
        next_fire_at=bindparam("_cursor"),
        plan_at=bindparam("_plan_at", type_=BigInteger),
        runs=schedules.c.runs + bindparam("_made"),
    )
)


def save_schedule(database: Database, conn: Connection, new: NewSchedule) -> Saved:
    """Create a schedule, or bring it in step with `new`: a changed one starts from now, unpaused, in one write (S3).

    Of two definitions the higher version wins. Of two of equal version the later one wins once: the one that it
    replaced cannot come back for an hour, so that old and new processes of a rolling deploy do not take turns.

    What had passed of the old definition and was not planned yet is recorded as missed in that write. A changed timing
    or `max_runs` counts its runs from 0.
    """
    now = database.now(conn)
    definition = definition_columns(new)
    digest = blake2b(json.dumps(definition, sort_keys=True).encode(), digest_size=16).hexdigest()
    columns = definition | {"version": new.version, "config_hash": digest, "declared_in": new.declared_in}
    unpaused: dict[str, Any] = {"paused_at": None, "paused_reason": None, "error": None}
    for _ in range(_MOST_ROUNDS):
        found = conn.execute(_BY_NAME, {"name": new.name}).first()
        if found is None:
            fresh = _first_cursor(new, now, 0) | unpaused
            values = columns | fresh | {"name": new.name, "runs": 0, "created_at": now, "updated_at": now}
            conn.execute(database.dialect.ignoring_conflicts(schedules).values(values))
            stored = conn.execute(_BY_NAME, {"name": new.name}).first()
            if stored is not None and stored.config_hash == digest:
                return Saved.CREATED
            continue  # somebody else created it at this moment, with another definition
        superseded: dict[str, Micros] = json.loads(found.superseded or "{}")
        if _is_outranked(found, new, digest, superseded, now):
            return Saved.OUTRANKED
        returns = found.paused_reason == PausedBy.UNDECLARED and new.declared_in is not None
        if found.config_hash == digest and not returns:
            return _keep(conn, found, new)
        if found.config_hash != digest:
            superseded[found.config_hash] = now
        recent = {hash_: at for hash_, at in superseded.items() if hash_ != digest and now - at < _SETTLING}
        counts_anew = (found.timing, found.max_runs) != (columns["timing"], columns["max_runs"])
        runs = 0 if counts_anew else found.runs
        fresh = _first_cursor(new, now, runs) | unpaused
        changed = conn.execute(
            update(schedules)
            .where(_stands_at(found), schedules.c.version == found.version)
            .values(columns | fresh | {"runs": runs, "superseded": json.dumps(recent), "updated_at": now})
        )
        if changed.rowcount == 1:
            _record_overdue(database, conn, found, now)
            return Saved.CHANGED
    raise StoreUnavailable(f"The schedule {new.name!r} was changed faster than it could be saved. Save it again.")


def _is_outranked(found: Any, new: NewSchedule, digest: str, superseded: dict[str, Micros], now: Micros) -> bool:
    if new.version != found.version:
        return bool(new.version < found.version)
    if new.declared_in is None:
        return False
    replaced_at = superseded.get(digest)
    if replaced_at is None and found.config_hash == digest and found.paused_reason == PausedBy.UNDECLARED:
        replaced_at = found.paused_at  # it was taken out of the code; what is not the same is newer than that
    return replaced_at is not None and now - replaced_at < _SETTLING


def _keep(conn: Connection, found: Any, new: NewSchedule) -> Saved:
    if found.version != new.version or found.declared_in != new.declared_in:
        conn.execute(
            update(schedules)
            .where(schedules.c.name == new.name, schedules.c.config_hash == found.config_hash)
            .values(version=new.version, declared_in=new.declared_in)
        )
    return Saved.UNCHANGED


def pause_undeclared(
    database: Database, conn: Connection, modules: Iterable[str], declared: Iterable[str]
) -> list[str]:
    """Pause the schedules that these modules declared once and declare no more. They are never deleted (S13).

    Only what was declared in a module that this program has imported is judged: another program's schedules in the
    same database are none of its business.
    """
    now = database.now(conn)
    gone = and_(
        schedules.c.declared_in.in_(sorted(modules)),
        schedules.c.name.not_in(sorted(declared)),
        schedules.c.paused_at.is_(None),
    )
    names = [row.name for row in conn.execute(select(schedules.c.name).where(gone).order_by(schedules.c.name))]
    return [name for name in names if _pause(database, conn, name, now, PausedBy.UNDECLARED)]


def _pause(database: Database, conn: Connection, name: str, now: Micros, by: PausedBy) -> bool:
    """Stop planning a schedule. What had passed and was not planned yet is recorded as missed.

    Returns:
        Whether it was being planned.
    """
    for _ in range(_MOST_ROUNDS):
        found = conn.execute(_BY_NAME, {"name": name}).first()
        if found is None or found.paused_at is not None:
            return False
        paused = conn.execute(
            update(schedules)
            .where(_stands_at(found), schedules.c.paused_at.is_(None))
            .values(paused_at=now, paused_reason=by.value, next_fire_at=null(), plan_at=null())
        )
        if paused.rowcount == 1:
            _record_overdue(database, conn, found, now)
            return True
    raise StoreUnavailable(f"The schedule {name!r} was changed faster than it could be paused. Pause it again.")


def _stands_at(found: Any) -> ColumnElement[bool]:
    """Whether a schedule's definition and cursor are still those that were read."""
    return and_(
        schedules.c.name == found.name,
        schedules.c.config_hash == found.config_hash,
        schedules.c.next_fire_at.is_not_distinct_from(found.next_fire_at),
    )


def _record_overdue(database: Database, conn: Connection, found: Any, now: Micros) -> None:
    """Record as missed what had passed of a definition that ends here, and that no planner has come to."""
    if found.next_fire_at is None or found.next_fire_at > now:
        return
    try:
        schedule = schedule_from_row(found)
    except ConfigurationError:
        return  # nothing is known of its instants
    last = now if schedule.until is None else min(now, schedule.until)
    missed = missed_between(schedule.timing, found.next_fire_at, last)
    if missed is not None:
        _record_missed(database, conn, schedule, missed, now)


def pause_by_operator(database: Database, conn: Connection, name: str) -> bool:
    """Pause a schedule because somebody asked. Returns whether it was being planned.

    Raises:
        ScheduleNotFound: no such schedule.
    """
    return _pause(database, conn, _named(conn, name).name, database.now(conn), PausedBy.OPERATOR)


def resume_schedule(database: Database, conn: Connection, name: str) -> bool:
    """Plan a paused schedule again, from now on: the pause ends and the cursor is set anew in one write (S3).

    One that has made its `max_runs`, or whose `until` has passed, has no cursor: it fires no more.

    Returns:
        Whether it was paused.

    Raises:
        ScheduleNotFound: no such schedule.
        ConfigurationError: it cannot be decoded by this version.
    """
    for _ in range(_MOST_ROUNDS):
        found = _named(conn, name)
        if found.paused_at is None:
            return False
        schedule = schedule_from_row(found)
        cursor = _first_cursor(schedule, database.now(conn), found.runs)
        resumed = conn.execute(
            update(schedules)
            .where(schedules.c.name == name, schedules.c.config_hash == found.config_hash)
            .where(schedules.c.paused_at == found.paused_at)
            .values(cursor | {"paused_at": None, "paused_reason": None})
        )
        if resumed.rowcount == 1:
            return True
    raise StoreUnavailable(f"The schedule {name!r} was changed faster than it could be resumed. Resume it again.")


def delete_schedule(conn: Connection, name: str) -> None:
    """Remove a schedule and its cursor. Its occurrences stay.

    Raises:
        ScheduleNotFound: no such schedule.
    """
    if not is_storable(name) or conn.execute(delete(schedules).where(schedules.c.name == name)).rowcount == 0:
        raise _not_found(name)


def delete_occurrences(conn: Connection, name: str, *, keep: int, batch: int) -> int:
    """Delete final occurrences of a schedule beyond its newest `keep` ones. Served by the `occurrence` index.

    Args:
        conn: in a transaction that can write.
        name: the schedule, which may be gone.
        keep: how many final ones stay.
        batch: how many go at most.

    Returns:
        How many went; more may be left when it equals `batch`.
    """
    final = (jobs.c.schedule == name) & jobs.c.finished_at.is_not(None)
    kept = select(jobs.c.scheduled_for).where(final).order_by(jobs.c.scheduled_for.desc()).limit(1).offset(keep)
    newest = conn.execute(kept).scalar()
    if newest is None:
        return 0
    old = select(jobs.c.id).where(final, jobs.c.scheduled_for <= newest, not_(is_needed())).limit(batch)
    ids = [row.id for row in conn.execute(old)]
    return conn.execute(delete(jobs).where(jobs.c.id.in_(ids), final)).rowcount if ids else 0


def due_schedules(conn: Connection, now: Micros, *, batch: int) -> list[Any]:
    """The rows of schedules whose cursor has come, the most overdue first."""
    return list(conn.execute(_DUE, {"now": now, "batch": batch}))


def next_plan_at(conn: Connection) -> Micros | None:
    """The earliest instant at which `materialise` will have something to do."""
    found = conn.execute(_NEXT).scalar()
    return None if found is None else int(found)


def set_error(conn: Connection, row: Any, error: str) -> None:
    """Keep a schedule from being planned as it stands, and say why. Recheck, a change or a newer version ends that."""
    conn.execute(
        update(schedules)
        .where(schedules.c.name == row.name, schedules.c.config_hash == row.config_hash)
        .values(error=clean_text(error))
    )


def materialise(database: Database, conn: Connection, row: Any) -> int:
    """Plan one due schedule and write the plan: the cursor first, by compare-and-set, then what it makes.

    Returns:
        How many occurrences were made; 0 where somebody else was first.
    """
    now = database.now(conn)
    try:
        schedule = schedule_from_row(row)
    except ConfigurationError as error:
        set_error(conn, row, str(error))
        return 0
    # Those are no runs of its own, and must not end it early.
    taken: Collection[Micros] = ()
    if schedule.max_runs is not None:
        taken = _instants_between(conn, row.name, row.next_fire_at, now + _ahead(schedule))
    plan = plan_pass(
        schedule.timing,
        row.next_fire_at,
        now,
        misfire=schedule.misfire,
        max_catch_up=schedule.max_catch_up,
        grace=schedule.grace,
        until=schedule.until,
        runs_left=None if schedule.max_runs is None else schedule.max_runs - row.runs,
        ahead=_ahead(schedule),
        taken=taken,
    )
    moved = conn.execute(
        _MOVE_CURSOR,
        {
            "_name": row.name,
            "_planned": row.next_fire_at,
            "_hash": row.config_hash,
            "_cursor": plan.cursor,
            "_plan_at": _cursor_at(schedule, plan.cursor)["plan_at"],
            "_made": len(plan.fires),
        },
    )
    if moved.rowcount != 1:
        return 0
    if plan.missed is not None:
        _record_missed(database, conn, schedule, plan.missed, now)
    # What the misfire policy chose of what was missed has no start to keep any more.
    starts_from = now - schedule.grace
    made = [
        occurrence(schedule, at, Trigger.SCHEDULE, is_exact=schedule.is_exact and at >= starts_from)
        for at in plan.fires
    ]
    insert_jobs(database.dialect, conn, made, now, fair=database.known_queues.fair)
    return len(made)


def _instants_between(conn: Connection, name: str, first: Micros, last: Micros) -> dict[Micros, str]:
    """The instants that have an occurrence already, and its id. Served by the `occurrence` index."""
    present = conn.execute(
        select(jobs.c.scheduled_for, jobs.c.id).where(
            jobs.c.schedule == name, jobs.c.scheduled_for.between(first, last)
        )
    )
    return {int(row.scheduled_for): str(row.id) for row in present}


def occurrence(schedule: NewSchedule, scheduled_for: Micros, trigger: Trigger, *, is_exact: bool = False) -> NewJob:
    """The job of one instant; with `is_exact` that instant is its fixed start."""
    due_at = scheduled_for + jitter_of(schedule.name, scheduled_for, schedule.jitter)
    options = replace(schedule.options, delay=None, concurrency=_concurrency(schedule))
    if is_exact:
        options = replace(options, run_at=None, start_at=due_at)
    else:
        options = replace(options, run_at=due_at, start_at=None)
    return NewJob(
        new_id(),
        schedule.kind,
        schedule.arguments,
        options,
        Occurrence(schedule.name, scheduled_for, trigger),
    )


def _ahead(schedule: NewSchedule) -> Micros:
    return EARLY_CLAIM if schedule.is_exact else 0


def _cursor_at(schedule: NewSchedule, cursor: Micros | None) -> dict[str, Micros | None]:
    """The columns of a cursor."""
    return {"next_fire_at": cursor, "plan_at": None if cursor is None else cursor - _ahead(schedule)}


def _first_cursor(schedule: NewSchedule, now: Micros, runs: int) -> dict[str, Micros | None]:
    """The columns of the cursor of a schedule that starts from now; none where it fires no more."""
    at = next_fire(schedule.timing, now)
    is_spent = schedule.max_runs is not None and runs >= schedule.max_runs
    is_over = at is not None and schedule.until is not None and at > schedule.until
    return _cursor_at(schedule, None if is_spent or is_over else at)


def _concurrency(schedule: NewSchedule) -> Concurrency | None:
    if schedule.overlap is Overlap.ALLOW:
        return schedule.options.concurrency
    key = schedule.permit_key or f"{OWN_KEY_PREFIX}{schedule.name}"
    return Concurrency(key, schedule.slots, BusyPolicy(schedule.overlap.value))


def _record_missed(database: Database, conn: Connection, schedule: NewSchedule, missed: Missed, now: Micros) -> None:
    """One skipped row for all of them, under the last one's instant, which a retry by hand runs as its occurrence."""
    first, last = shown(missed.first), shown(missed.last)
    values = final_columns(occurrence(schedule, missed.last, Trigger.SCHEDULE), now) | {
        "state": State.SKIPPED.value,
        "reason": Reason.MISFIRE.value,
        "finished_at": now,
        "last_error": f"{missed.count} instants from {first} to {last} passed while nothing could run them.",
        "result": json.dumps({"missed": missed.count, "first": first, "last": last}),
    }
    for at in itertools.count(missed.last):
        # An instant that has its occurrence already gives its place to the microsecond after it.
        conn.execute(database.dialect.ignoring_conflicts(jobs).values(values | {"scheduled_for": at}))
        if conn.execute(select(jobs.c.id).where(jobs.c.id == values["id"])).first() is not None:
            return


def trigger_schedule(
    database: Database, conn: Connection, name: str, arguments: str | None, job_id: str
) -> EnqueueResult:
    """Make an occurrence for this very moment, by the same path as any other, whether or not it is paused.

    Args:
        database: where.
        conn: in a transaction that can write.
        name: the schedule.
        arguments: as JSON text; None: the schedule's.
        job_id: of the occurrence: repeated with the same id it makes no second one.

    Raises:
        ScheduleNotFound: no such schedule.
        ConfigurationError: it cannot be decoded by this version.
    """
    schedule = replace(schedule_from_row(_named(conn, name)), jitter=0)
    if arguments is not None:
        schedule = replace(schedule, arguments=arguments)
    scheduled_for = now = database.now(conn)
    for _ in range(_MOST_ROUNDS):
        made = occurrence(schedule, scheduled_for, Trigger.MANUAL)
        made.id = job_id
        made.options = replace(made.options, run_at=None)  # at once, whichever microsecond is free
        insert_jobs(database.dialect, conn, [made], now, fair=database.known_queues.fair)
        stored = conn.execute(select(jobs.c.id).where(jobs.c.id == job_id)).scalar()
        if stored is not None:
            return EnqueueResult(job_id, created=True)
        scheduled_for += 1  # that instant has its occurrence already
    raise StoreUnavailable(f"No free instant was found for {name!r}. Trigger it again.")


def backfill(
    database: Database, conn: Connection, name: str, first: Micros, last: Micros, ids: dict[Micros, str]
) -> list[str]:
    """Make the occurrences of a past range that are not there, in order. Returns their ids.

    Args:
        database: where.
        conn: in a transaction that can write.
        name: the schedule.
        first, last: the range, both included.
        ids: by instant, of what it makes; filled here, and given again when the transaction is repeated.

    Raises:
        ScheduleNotFound: no such schedule.
        ConfigurationError: the range reaches into the future, holds instants after `until`, or more than 1,000.
    """
    schedule = schedule_from_row(_named(conn, name))
    now = database.now(conn)
    if last > now:
        raise ConfigurationError("A backfill is of the past; its end lies in the future, which is the schedule's own.")
    instants: list[Micros] = []
    for at in fires_after(schedule.timing, first - 1):
        if at > last:
            break
        if len(instants) == MOST_BACKFILLED:
            raise ConfigurationError(
                f"The range holds more than {MOST_BACKFILLED:,} instants of {name!r}. Backfill it in parts."
            )
        if schedule.until is not None and at > schedule.until:
            raise ConfigurationError(
                f"The range holds instants of {name!r} after its until={shown(schedule.until)}, at which it does not "
                "fire. End the range there."
            )
        instants.append(at)
    have = _instants_between(conn, name, first, last)
    made = [occurrence(schedule, at, Trigger.BACKFILL) for at in instants if at not in have]
    for job in made:
        assert job.occurrence is not None
        job.id = ids.setdefault(job.occurrence.scheduled_for, job.id)
    insert_jobs(database.dialect, conn, made, now, fair=database.known_queues.fair)
    stored = set(_instants_between(conn, name, first, last).values())
    return sorted(stored.intersection(ids.values()))


def previous_success(conn: Connection, name: str, before: Micros) -> Micros | None:
    """The newest instant before `before` whose occurrence succeeded. Served by the `occurrence` index."""
    found = conn.execute(
        select(jobs.c.scheduled_for)
        .where(jobs.c.schedule == name, jobs.c.scheduled_for < before, jobs.c.state == State.SUCCEEDED.value)
        .order_by(jobs.c.scheduled_for.desc())
        .limit(1)
    ).scalar()
    return None if found is None else int(found)


def recheck_undecodable(conn: Connection) -> list[str]:
    """Plan again what an older version could not decode and this one can. Returns what is still undecodable."""
    still = []
    for row in conn.execute(select(schedules).where(schedules.c.error.is_not(None))).fetchall():
        try:
            schedule_from_row(row)
        except ConfigurationError:
            still.append(row.name)
        else:
            conn.execute(update(schedules).where(schedules.c.name == row.name).values(error=null()))
    return still


def get_schedule(conn: Connection, name: str) -> Schedule | None:
    """One schedule for people, or None."""
    row = _find(conn, name)
    return None if row is None else shown_schedule(row)


def list_schedules(conn: Connection) -> list[Schedule]:
    """All schedules, by name."""
    return [shown_schedule(row) for row in conn.execute(select(schedules).order_by(schedules.c.name))]


def _named(conn: Connection, name: str) -> Any:
    found = _find(conn, name)
    if found is None:
        raise _not_found(name)
    return found


def _find(conn: Connection, name: str) -> Any:
    # A driver refuses what no row can hold, each with an error of its own.
    return conn.execute(_BY_NAME, {"name": name}).first() if is_storable(name) else None


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"No schedule {name!r}. `fencepost schedules list` shows those that there are.")
