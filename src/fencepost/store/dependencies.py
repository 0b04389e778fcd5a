"""Jobs that wait for others: `blocked`, in no line, until each of their predecessors has ended as they ask.

    an enqueue inserts the job (wake_at: now) and a row for each predecessor, and touches nothing else
      └─▶ attach      marks those predecessors that are live (has_successors), counts those that have ended
    whatever ends a marked job writes its wake_at, in the same write
      └─▶ pass_on     counts it off at its successors, a bounded batch a transaction
            └─▶ a successor is released, or skipped, which ends it: and so on, all the way down

Both are found by the pass that promotes, through the index of what is due: jobs without dependencies pay nothing.

Why nobody is forgotten: `attach` marks a predecessor before it reads its state. Whoever ends it before that is seen to
have; whoever ends it after that finds the mark, since both write its row. What is due stays so until the transaction
that passes it on has committed, so a kill means that it is done again.

Why nobody is released twice: who counts off holds the lock of the successor's row, reads which of its dependencies are
open after that, and closes them in the same transaction. Of any number that meet at one successor each counts others;
the one that comes to nothing left releases it, guarded by `blocked` and `waits_for`, which is 0 from then on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Integer,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exc,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection

from fencepost.errors import DependencyError
from fencepost.job import (
    FINAL_STATES,
    LIVE_STATES,
    Dependency,
    EnqueueResult,
    Micros,
    NewJob,
    Priority,
    Reason,
    State,
    When,
)
from fencepost.planning.dependencies import circle_in, is_met, stricter
from fencepost.planning.fairness import takes_turns
from fencepost.planning.outcome import waiting
from fencepost.store.database import Database
from fencepost.store.dialects import Dialect
from fencepost.store.enqueue import insert_jobs
from fencepost.store.rows import UNREADABLE, fixed_start, unreadable_text
from fencepost.store.tables import ONE, dependencies, jobs, line_of_row, live_key_of, told_at, turn_line_of, word, words

__all__ = [
    "attach",
    "forget_dependencies",
    "is_needed",
    "needed_of",
    "open_dependencies",
    "pass_on",
    "place_jobs",
    "results_of",
    "revive_successors",
]

T = TypeVar("T")

_AT_ONCE = 500  # ids in one statement
_LOOK_AGAIN: Micros = 300_000_000
"""After how many microseconds a job that waits is looked at again although nobody told of an end: what somebody deleted
or changed behind our back. Each time it is as long as it has waited already, so that it costs next to nothing."""

_LIVE = words(sorted(LIVE_STATES))
_FINAL = words(sorted(FINAL_STATES))
_NONE: ColumnElement[int] = literal_column("0", Integer)  # no parameter: hot statements carry none that are constant
_WAITS = and_(jobs.c.state == word(State.BLOCKED), jobs.c.waits_for > _NONE)
_WAS_SKIPPED = and_(jobs.c.state == word(State.SKIPPED), jobs.c.reason == word(Reason.DEPENDENCY_FAILED))


def _among(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return column.in_(bindparam(name, expanding=True))


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    listed = list(items)
    for start in range(0, len(listed), _AT_ONCE):
        yield listed[start : start + _AT_ONCE]


# Enqueue

_PRESENT = select(jobs.c.id).where(_among(jobs.c.id, "ids"))
_HOLDERS = select(jobs.c.id, jobs.c.live_key).where(_among(jobs.c.live_key, "keys"))
_MARK = update(jobs).where(_among(jobs.c.id, "ids"), jobs.c.has_successors.is_(None)).values(has_successors=1)


def place_jobs(
    dialect: Dialect,
    conn: Connection,
    new: Sequence[Sequence[NewJob]],
    now: Micros,
    *,
    shared_transaction: bool = False,
    fair: Collection[str] = (),
) -> list[EnqueueResult]:
    """Store jobs with what they wait for, in the connection's transaction. Safe to repeat with the same jobs.

    Args:
        dialect: the database's.
        conn: in a transaction that can write.
        new: the jobs, in parts that fit into one statement.
        now: the database's clock.
        shared_transaction: the transaction is the application's.
        fair: the queues whose jobs wait for their tenant's turn.

    Returns:
        One result per job, in order. One that names a live job that was there already (`created=False`) waits for
        nothing else than before.

    Raises:
        DependencyError: a job waits for one that is not there, or for itself. Nothing was written.
    """
    dependents = [job for part in new for job in part if job.options.after]
    by_key = _check(dialect, conn, new, dependents, shared_transaction) if dependents else {}
    results: list[EnqueueResult] = []
    for part in new:
        results += insert_jobs(dialect, conn, part, now, shared_transaction=shared_transaction, fair=fair)
    if dependents:
        named = {job.id: result for part, result in zip(_flat(new), results, strict=True) for job in (part,)}
        _insert(dialect, conn, dependents, named, by_key)
    return results


def _flat(parts: Sequence[Sequence[NewJob]]) -> Iterator[NewJob]:
    for part in parts:
        yield from part


def _digest(dependency: Dependency) -> str | None:
    if dependency.kind is None or dependency.key is None:
        return None
    return live_key_of(dependency.kind, dependency.key)


def _check(
    dialect: Dialect,
    conn: Connection,
    new: Sequence[Sequence[NewJob]],
    dependents: Sequence[NewJob],
    shared_transaction: bool,
) -> Mapping[str, str]:
    """Refuse what cannot be waited for. Returns the jobs that keys name, by their digests."""
    own = {job.id: job for job in _flat(new)}
    asked = [dependency for job in dependents for dependency in job.options.after]
    digests = {digest for digest in map(_digest, asked) if digest is not None}
    outside = {found.job_id for found in asked if found.job_id is not None and found.job_id not in own}
    by_key = {row.live_key: str(row.id) for row in _found(dialect, conn, _HOLDERS, "keys", digests, shared_transaction)}
    if len(by_key) < len(digests):
        for job in own.values():
            if job.options.key is not None:
                by_key.setdefault(live_key_of(job.kind, job.options.key), job.id)
    present = {str(row.id) for row in _found(dialect, conn, _PRESENT, "ids", outside, shared_transaction)}
    stored: set[str] | None = None
    waits_for: dict[str, list[str]] = {}
    for job in dependents:
        for dependency in job.options.after:
            digest = _digest(dependency)
            target = dependency.job_id if digest is None else by_key.get(digest)
            if target == job.id:
                raise DependencyError(f"A job of kind {job.kind!r} was to wait for itself: leave itself out of after=.")
            if target is None or not (target in own or target in present or digest is not None):
                if stored is None:  # a try before this one may have stored it, and what it waited for be gone since
                    ids = sorted(job.id for job in dependents)
                    stored = {str(row.id) for row in _found(dialect, conn, _PRESENT, "ids", ids, False)}
                if job.id not in stored:
                    raise DependencyError(_unknown_text(job, dependency))
            elif target in own:
                waits_for.setdefault(job.id, []).append(target)
    circle = circle_in(waits_for)
    if circle:
        kinds = " -> ".join(own[job_id].kind for job_id in [*circle, circle[0]])
        raise DependencyError(f"These jobs wait for each other in a circle: {kinds}. Leave out one of the steps.")
    return by_key


def _unknown_text(job: NewJob, dependency: Dependency) -> str:
    if dependency.kind is not None:
        return (
            f"A job of kind {job.kind!r} was to wait for the live job ({dependency.kind!r}, {dependency.key!r}), and "
            "there is none. Enqueue that first; if it has ended already, name it by its id."
        )
    return (
        f"A job of kind {job.kind!r} was to wait for the job {dependency.job_id}, which is not there: it was pruned, "
        "its transaction has not been committed, or the id is wrong. Enqueue it first, or both together."
    )


def _found(
    dialect: Dialect, conn: Connection, query: Any, name: str, values: Collection[str], shared_transaction: bool
) -> Iterator[Any]:
    for part in _chunks(sorted(values)):
        rows = conn.execute(query, {name: part}).fetchall()
        if shared_transaction and len(rows) < len(part):  # its snapshot may be older than they are
            rows = conn.execute(dialect.reading_latest(query), {name: part}).fetchall()
        yield from rows


def _insert(
    dialect: Dialect,
    conn: Connection,
    dependents: Sequence[NewJob],
    named: Mapping[str, EnqueueResult],
    by_key: Mapping[str, str],
) -> None:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    marked: set[str] = set()
    for job in dependents:
        if not named[job.id].created:
            continue
        for dependency in job.options.after:
            digest = _digest(dependency)
            target = dependency.job_id if digest is None else by_key.get(digest)
            if target is None:
                continue  # stored by a try before this one
            if target in named:
                if named[target].created:
                    marked.add(target)
                target = named[target].id
            place = (job.id, target)
            known = rows.get(place)
            when = dependency.when if known is None else stricter(When(known["condition"]), dependency.when)
            rows[place] = {
                "job_id": job.id,
                "predecessor_id": target,
                "condition": when.value,
                "name": dependency.name if known is None or known["name"] is None else known["name"],
                "is_open": 1,
            }
    for part in _chunks(sorted(rows)):
        conn.execute(dialect.ignoring_conflicts(dependencies), [rows[place] for place in part])
    # Rows of this very transaction, which nobody else sees: their first worker then knows already that others wait.
    for ids in _chunks(sorted(marked)):
        conn.execute(_MARK, {"ids": ids})


# Looking at those who wait

_MARK_LIVE = _MARK.where(jobs.c.state.in_(_LIVE))
_WAITING_COLUMNS = (
    *("id", "queue", "kind", "labels", "tenant", "priority", "run_at", "deadline", "options", "permit_key", "limits"),
    *("waits_for", "has_successors", "created_at"),
)
_LOCK_WAITING = (
    select(*(jobs.c[name] for name in _WAITING_COLUMNS))
    .where(_among(jobs.c.id, "ids"), _WAITS)
    .order_by(jobs.c.id)
    .with_for_update()
)
_EDGES = select(
    dependencies.c.job_id, dependencies.c.predecessor_id, dependencies.c.condition, jobs.c.state, jobs.c.reason
).select_from(dependencies.outerjoin(jobs, jobs.c.id == dependencies.c.predecessor_id))
_OPEN = dependencies.c.is_open == 1
_PREDECESSORS = select(dependencies.c.predecessor_id).where(_among(dependencies.c.job_id, "ids"), _OPEN).distinct()
_EDGES_OF = _EDGES.where(_among(dependencies.c.job_id, "ids"), _OPEN)
_EDGES_BETWEEN = _EDGES.where(
    _among(dependencies.c.predecessor_id, "ended"), _among(dependencies.c.job_id, "ids"), _OPEN
)
_CLOSE = (
    update(dependencies)
    .where(dependencies.c.job_id == bindparam("_job"), dependencies.c.predecessor_id == bindparam("_predecessor"))
    .values(is_open=0)
)


def attach(database: Database, conn: Connection, ids: Sequence[str]) -> int:
    """Look at jobs that wait and were not looked at before, or not for long. Served by primary keys.

    Args:
        database: where.
        conn: in a transaction of our own.
        ids: at most a batch of a pass.

    Returns:
        How many of them do not wait any longer.
    """
    predecessors = [str(row[0]) for part in _chunks(ids) for row in conn.execute(_PREDECESSORS, {"ids": part})]
    for part in _chunks(sorted(predecessors)):
        conn.execute(_MARK_LIVE, {"ids": part})
    found = [row for part in _chunks(sorted(ids)) for row in conn.execute(_LOCK_WAITING, {"ids": part})]
    # Only now: what ended before the lock is seen here, what ends after it is passed on.
    edges = [edge for part in _chunks(row.id for row in found) for edge in conn.execute(_EDGES_OF, {"ids": part})]
    left = Counter(str(edge.job_id) for edge in edges)
    return _count_off(database, conn, found, edges, lambda row: left[str(row.id)], looked_at=True)


_LOCK_ENDED = (
    select(jobs.c.id)
    .where(_among(jobs.c.id, "ids"), jobs.c.state.in_(_FINAL), jobs.c.wake_at.is_not(None))
    .order_by(jobs.c.id)
    .with_for_update()
)
_SUCCESSORS = (
    select(dependencies.c.job_id).where(_among(dependencies.c.predecessor_id, "ended"), _OPEN).limit(bindparam("batch"))
)
_PASSED_ON = update(jobs).where(_among(jobs.c.id, "ended"), jobs.c.state.in_(_FINAL)).values(wake_at=null())


def pass_on(database: Database, conn: Connection, ids: Sequence[str], *, batch: int) -> tuple[int, bool]:
    """Count jobs that have ended off at those who wait for them. Served by the index on predecessors.

    Args:
        database: where.
        conn: in a transaction of our own.
        ids: jobs that are final and due; those that are not any more are left alone.
        batch: how many successors are looked at.

    Returns:
        How many do not wait any longer, and whether there is more to pass on.
    """
    # Locked, so that nobody retries one of them meanwhile.
    ended = [str(row.id) for part in _chunks(sorted(ids)) for row in conn.execute(_LOCK_ENDED, {"ids": part})]
    if not ended:
        return 0, False
    pairs = conn.execute(_SUCCESSORS, {"ended": ended, "batch": batch}).fetchall()
    successors = sorted({str(row.job_id) for row in pairs})
    found = [row for part in _chunks(successors) for row in conn.execute(_LOCK_WAITING, {"ids": part})]
    edges = [
        edge for part in _chunks(successors) for edge in conn.execute(_EDGES_BETWEEN, {"ended": ended, "ids": part})
    ]
    moved = _count_off(database, conn, found, edges, lambda row: row.waits_for)
    is_more = len(pairs) == batch
    if not is_more:
        conn.execute(_PASSED_ON, {"ended": ended})
    return moved, is_more


def _count_off(
    database: Database,
    conn: Connection,
    found: Sequence[Any],
    edges: Iterable[Any],
    waited_for: Callable[[Any], int],
    *,
    looked_at: bool = False,
) -> int:
    """Close the dependencies whose predecessor has ended, and write what that makes of the jobs, which are locked."""
    now = database.now_and_pin(conn)
    closed: dict[str, int] = defaultdict(int)
    failed: dict[str, str] = {}
    closing = []
    for edge in edges:
        if edge.state in LIVE_STATES:
            continue
        job_id = str(edge.job_id)
        closed[job_id] += 1
        closing.append({"_job": job_id, "_predecessor": str(edge.predecessor_id)})
        state = None if edge.state is None else State(edge.state)
        if not is_met(When(edge.condition), state):
            failed.setdefault(job_id, _failed_text(edge))
    if closing:
        closing.sort(key=lambda values: (values["_job"], values["_predecessor"]))
        conn.execute(_CLOSE, closing)
    moves, waits = [], []
    for place, row in enumerate(found):
        job_id = str(row.id)
        left = max(0, waited_for(row) - closed[job_id])
        if job_id in failed:
            moves.append(_skipped(row, now, failed[job_id]))
        elif left == 0:
            moves.append(_released(row, now, place, database.known_queues.fair))
        elif looked_at:
            waits.append((job_id, left, now + max(_LOOK_AGAIN, now - row.created_at)))
        elif closed[job_id]:
            waits.append((job_id, left, None))
    if waits:
        database.dialect.update_rows(conn, _waits_rows, _WAITS_NAMES, sorted(waits))
    return sum(database.dialect.update_rows(conn, _moved_rows, _MOVED_NAMES, sorted(moves))) if moves else 0


def _failed_text(edge: Any) -> str:
    if edge.state is None:
        return f"It was to run after the {edge.condition} of job {edge.predecessor_id}, which was deleted."
    why = "" if edge.reason is None else f" ({edge.reason})"
    return f"It was to run after the {edge.condition} of job {edge.predecessor_id}, which {_ENDED[edge.state]}{why}."


_ENDED = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "was cancelled",
    State.SKIPPED: "was skipped",
}

_WAITS_NAMES = ("_id", "_waits_for", "_wake_at")


def _waits_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Fewer are left; the row is locked."""
    return (
        update(jobs)
        .where(match, _WAITS)
        .values(waits_for=value("_waits_for"), wake_at=func.coalesce(value("_wake_at"), jobs.c.wake_at))
    )


_MOVED_NAMES = (*("_id", "_state", "_reason", "_line", "_rank", "_wake_at", "_run_at", "_finished_at", "_last_error"),)


def _moved_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """The one write that releases a job, or ends it. The count says whether it was this one."""
    is_final = value("_finished_at").is_not(None)
    return (
        update(jobs)
        .where(match, _WAITS)
        .values(
            state=value("_state"),
            reason=value("_reason"),
            line=value("_line"),
            rank=value("_rank"),
            wake_at=case((is_final, told_at(value("_finished_at"))), else_=value("_wake_at")),
            run_at=func.coalesce(value("_run_at"), jobs.c.run_at),
            finished_at=value("_finished_at"),
            last_error=value("_last_error"),
            live_key=case((is_final, null()), else_=jobs.c.live_key),
            waits_for=_NONE,
        )
    )


def _skipped(row: Any, now: Micros, text: str) -> tuple[Any, ...]:
    """The values of `_MOVED_NAMES`."""
    state, reason = State.SKIPPED.value, Reason.DEPENDENCY_FAILED.value
    return (str(row.id), state, reason, None, None, None, None, now, text)


def _released(row: Any, now: Micros, place: int, fair: Collection[str]) -> tuple[Any, ...]:
    """The values of `_MOVED_NAMES` of a job that takes its place as if it were enqueued now."""
    try:
        rare = {} if row.options is None else json.loads(row.options)
        start = fixed_start(rare)
        start_at = None if start is None else start.at
        due_at = max(row.run_at or now, now + int(rare.get("delay", 0)))
        state, rank, wake_at = waiting(
            Priority(row.priority),
            due_at,
            now,
            deadline=row.deadline,
            duration_hint=int(rare.get("duration_hint", 0)),
            start_at=start_at,
        )
    except UNREADABLE as error:
        text = unreadable_text(error)
        return (str(row.id), State.FAILED.value, Reason.UNDECODABLE.value, None, None, None, None, now, text)
    line = None
    if rank is not None:
        line = line_of_row(row)
        if start_at is None:
            rank += place  # those that are released together keep the order in which they were enqueued
        if row.queue in fair and takes_turns(Priority(row.priority), start_at):
            state, line = State.BLOCKED, turn_line_of(row.queue, row.kind, row.tenant)
    run_at = due_at if start_at is None else start_at
    return (str(row.id), state.value, None, line, rank, wake_at, run_at, None, None)


# Retry

_ALL_SUCCESSORS = select(dependencies.c.job_id).where(_among(dependencies.c.predecessor_id, "ids")).distinct()
_LOCK_HUNG = (
    select(jobs.c.id, jobs.c.state, jobs.c.kind, jobs.c.dedup_key)
    .where(_among(jobs.c.id, "ids"), or_(_WAITS, _WAS_SKIPPED))
    .order_by(jobs.c.id)
    .with_for_update()
)
_COUNTED = select(func.count()).where(dependencies.c.job_id == jobs.c.id).scalar_subquery()
_WAIT_AGAIN = (
    update(jobs)
    .where(_among(jobs.c.id, "ids"), or_(_WAITS, _WAS_SKIPPED))
    .values(
        state=State.BLOCKED.value,
        reason=null(),
        wake_at=bindparam("_now", type_=jobs.c.wake_at.type),
        finished_at=null(),
        last_error=null(),
        waits_for=_COUNTED,
    )
)
_OPEN_AGAIN = update(dependencies).where(_among(dependencies.c.job_id, "ids")).values(is_open=1)


def revive_successors(conn: Connection, job_id: str, now: Micros) -> None:
    """A job that had ended is live again: who was skipped for it waits again, and who still waits, waits for it too.

    Each is looked at afresh by `attach`, and skipped once more if something else is in its way. One whose identity
    another live job holds by now stays as it is.

    Args:
        conn: the transaction that brought the job back.
        job_id: the job.
        now: the database's clock.
    """
    above = [job_id]
    while above:
        below = sorted(
            {str(row.job_id) for part in _chunks(above) for row in conn.execute(_ALL_SUCCESSORS, {"ids": part})}
        )
        hung = [row for part in _chunks(below) for row in conn.execute(_LOCK_HUNG, {"ids": part})]
        above = [str(row.id) for row in hung if row.state == State.SKIPPED]
        for ids in _chunks(str(row.id) for row in hung if row.state != State.SKIPPED or row.dedup_key is None):
            conn.execute(_WAIT_AGAIN, {"ids": ids, "_now": now})
            conn.execute(_OPEN_AGAIN, {"ids": ids})
        for row in hung:
            if row.state == State.SKIPPED and row.dedup_key is not None and not _take_identity(conn, row, now):
                above.remove(str(row.id))


def _take_identity(conn: Connection, row: Any, now: Micros) -> bool:
    values = {"live_key": live_key_of(row.kind, row.dedup_key)}
    savepoint = conn.begin_nested()
    try:
        conn.execute(_WAIT_AGAIN.values(values), {"ids": [str(row.id)], "_now": now})
    except exc.IntegrityError:
        savepoint.rollback()
        return False
    savepoint.commit()
    conn.execute(_OPEN_AGAIN, {"ids": [str(row.id)]})
    return True


# Results, retention, people

_RESULTS = (
    select(dependencies.c.predecessor_id, dependencies.c.name, jobs.c.result)
    .select_from(dependencies.join(jobs, jobs.c.id == dependencies.c.predecessor_id))
    .where(dependencies.c.job_id == bindparam("job"))
    .order_by(dependencies.c.predecessor_id)
)
_NEXT_OPEN = (
    select(dependencies.c.predecessor_id, dependencies.c.condition)
    .where(dependencies.c.job_id == bindparam("job"), _OPEN)
    .order_by(dependencies.c.predecessor_id)
    .limit(bindparam("most"))
)
_FORGET = delete(dependencies).where(_among(dependencies.c.job_id, "ids"))
_successors = jobs.alias("successors")
_NEEDED = (
    select(dependencies.c.predecessor_id)
    .select_from(dependencies.join(_successors, _successors.c.id == dependencies.c.job_id))
    .where(_among(dependencies.c.predecessor_id, "ids"), _successors.c.state.in_(_LIVE))
    .distinct()
)


def results_of(conn: Connection, job_id: str) -> list[tuple[str, str | None]]:
    """What the jobs that a job waited for returned, as JSON text, each under its name, or else its id."""
    found = conn.execute(_RESULTS, {"job": job_id})
    return [(str(row.predecessor_id) if row.name is None else row.name, row.result) for row in found]


def open_dependencies(conn: Connection, job_id: str, *, most: int) -> list[tuple[str, str]]:
    """The first ones of those that a job still waits for, and what it asks of each."""
    found = conn.execute(_NEXT_OPEN, {"job": job_id, "most": most})
    return [(str(row.predecessor_id), row.condition) for row in found]


def is_needed() -> ColumnElement[bool]:
    """Whether a live job depends on the job of a row, for a query that selects jobs. A probe of an index."""
    # Not EXISTS: of that PostgreSQL would make a join, and read all live jobs of a table that it knows nothing of.
    found = (
        select(ONE)
        .select_from(dependencies.join(_successors, _successors.c.id == dependencies.c.job_id))
        .where(dependencies.c.predecessor_id == jobs.c.id, _successors.c.state.in_(_LIVE))
        .limit(1)
        .correlate(jobs)
    )
    return found.scalar_subquery().is_not(None)


def needed_of(conn: Connection, ids: Sequence[str]) -> set[str]:
    """Those of these jobs on which a live job depends."""
    return {str(row[0]) for part in _chunks(sorted(ids)) for row in conn.execute(_NEEDED, {"ids": part})}


def forget_dependencies(conn: Connection, ids: Sequence[str]) -> None:
    """Remove what these jobs waited for: they are being deleted."""
    for part in _chunks(sorted(ids)):
        conn.execute(_FORGET, {"ids": part})
