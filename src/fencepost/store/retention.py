"""Retention: final jobs go, in bounded batches (J10): all that ended before a cutoff, or what rules do not keep.

Never one that a live job depends on: it may ask what came of it.

Rules are looked at job by job along the index of final jobs, newest first. An index by queue and state would let each
rule find its own jobs, at the price of one more write for every job that ends, whether or not anybody prunes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, delete, not_, or_, select
from sqlalchemy.engine import Connection

from fencepost.job import Micros, State
from fencepost.planning.retention import Final, Rules
from fencepost.retention import Rule
from fencepost.store.database import Database
from fencepost.store.dependencies import forget_dependencies, is_needed, needed_of
from fencepost.store.rows import UNREADABLE
from fencepost.store.tables import jobs, retention

__all__ = ["Place", "delete_final", "final_jobs", "prune_batch", "retention_rules", "save_retention"]

Place = tuple[Micros, str]
"""Where a walk along the final jobs stands: the end and the id of the last one that was read."""

# Served by the `finished` index. Only final rows have `finished_at`: a job scheduled for next year is not old.
_OLD = (
    select(jobs.c.id, jobs.c.waits_for)
    .where(jobs.c.finished_at < bindparam("cutoff"), not_(is_needed()))
    .order_by(jobs.c.finished_at)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
_STILL_FINAL = (
    select(jobs.c.id, jobs.c.waits_for)
    .where(jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.finished_at < bindparam("cutoff"))
    .order_by(jobs.c.id)
    .with_for_update()
)
_DELETE = delete(jobs).where(jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.finished_at < bindparam("cutoff"))

# Served by the `finished` index, backwards. Jobs that were settled together ended at one instant, so the id is part
# of the place; the first criterion alone bounds the range.
_BEFORE = (
    select(*(jobs.c[name] for name in ("id", "queue", "state", "finished_at", "schedule", "scheduled_for")))
    .where(
        jobs.c.finished_at <= bindparam("at"), or_(jobs.c.finished_at < bindparam("at"), jobs.c.id < bindparam("id"))
    )
    .order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    .limit(bindparam("batch"))
)
_RULES = select(retention.c.queue, retention.c.rules)


def prune_batch(conn: Connection, cutoff: Micros, *, batch: int) -> int:
    """Delete up to `batch` jobs that were final before `cutoff`. Returns how many went."""
    rows = conn.execute(_OLD, {"cutoff": cutoff, "batch": batch}).fetchall()
    if not rows:
        return 0
    forget_dependencies(conn, [str(row.id) for row in rows if row.waits_for is not None])
    return conn.execute(_DELETE, {"ids": [row.id for row in rows], "cutoff": cutoff}).rowcount


def final_jobs(conn: Connection, before: Place, *, batch: int) -> list[Final]:
    """Up to `batch` final jobs that ended before a place, the newest first."""
    at, job_id = before
    found = conn.execute(_BEFORE, {"at": at, "id": job_id, "batch": batch})
    return [Final(str(row.id), *row[1:]) for row in found]


def delete_final(conn: Connection, ids: Sequence[str], until: Micros) -> int:
    """Delete these jobs if they are still final and ended by `until`: one that was retried since stays.

    So does one that a live job depends on.
    """
    if not ids:
        return 0
    # Locked, so that nobody retries one whose dependencies are gone.
    final = {str(row.id): row for row in conn.execute(_STILL_FINAL, {"ids": sorted(ids), "cutoff": until + 1})}
    going = sorted(final.keys() - needed_of(conn, list(final)))
    if not going:
        return 0
    forget_dependencies(conn, [job_id for job_id in going if final[job_id].waits_for is not None])
    return conn.execute(_DELETE, {"ids": going, "cutoff": until + 1}).rowcount


def save_retention(database: Database, conn: Connection, rules: Rules) -> int:
    """Write the rules of the queues that are named; those of others stay. Returns of how many queues they changed."""
    present = {row.queue: row.rules for row in conn.execute(_RULES)}
    changed = 0
    for queue, of_queue in sorted(rules.items()):
        text = json.dumps({state: _plain(rule) for state, rule in sorted(of_queue.items())})
        if present.get(queue, "{}") != text:
            conn.execute(database.dialect.upsert(retention, {"queue": queue, "rules": text}, key="queue"))
            changed += 1
    return changed


def _plain(rule: Rule) -> dict[str, int]:
    given = {"age": rule.age, "keep": rule.keep}
    return {name: value for name, value in given.items() if value is not None}


def retention_rules(conn: Connection) -> dict[str, Mapping[State, Rule]]:
    """The rules by queue. What this version cannot read keeps its jobs for ever."""
    return {row.queue: _read_rules(row.rules) for row in conn.execute(_RULES)}


def _read_rules(text: str) -> dict[State, Rule]:
    try:
        return {
            State(word): Rule(**{name: int(value) for name, value in rule.items()})
            for word, rule in json.loads(text).items()
        }
    except UNREADABLE:
        return {}
