"""Diagnosis: what is wrong with a database, its tables, its clock and the jobs in it. Nothing here writes.

What one kind of database alone can have wrong is its dialect's business: `Dialect.facts` and `Dialect.judge`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import BigInteger, and_, bindparam, exc, func, select
from sqlalchemy.engine import Connection

from fencepost.errors import FencepostError
from fencepost.job import Micros, Reason, State
from fencepost.labels import encode_labels, label_words
from fencepost.schedule import Schedule
from fencepost.store import schema
from fencepost.store.claim import Line, all_ready_lines
from fencepost.store.control import paused_queues
from fencepost.store.database import Database
from fencepost.store.demands import Gate, row_demands, stuck_line_of
from fencepost.store.finding import Finding, Level
from fencepost.store.leader import Leader, Pass, find_leader, list_passes
from fencepost.store.limits import count_free
from fencepost.store.rows import instant
from fencepost.store.schedules import list_schedules
from fencepost.store.tables import ONE, jobs, limits, permit_line_of, word
from fencepost.store.waiting import waiting_lines, waiting_member
from fencepost.store.workers import WorkerRecord, list_workers

__all__ = ["Finding", "Level", "diagnose", "ready_by_line"]


_LATE_SECONDS = 10  # any living worker's planner plans, promotes and reclaims within a second or so
_SILENT_PASS_SECONDS = {Pass.RETENTION: 3 * 3600}  # it rests between its walks, the longer the more there is to read
_USUAL_PASS_SECONDS = 60
_SKEW_SECONDS = 1.0
_QUARANTINE_DAYS = 7
_NAMED = 5
_MOST_GATES = 1000  # at which jobs wait: two small questions each
_MOST_COUNTED = 10_000
_SECOND: Micros = 1_000_000


def diagnose(database: Database, *, payload_bytes: int, is_thorough: bool = False) -> list[Finding]:
    """Look at everything that can be looked at without writing.

    Args:
        database: which.
        payload_bytes: the largest arguments or result that are to be stored.
        is_thorough: whether to read the whole database where that is a check (SQLite's quick_check).

    Returns:
        At least one finding per check, in the order of the checks. What a failed check makes pointless is left out.
    """
    try:
        facts = database.read(lambda conn: database.dialect.facts(conn, is_thorough=is_thorough))
        findings = [Finding("database", Level.OK, f"{database.display_url} answers.")]
        findings += database.dialect.judge(facts, payload_bytes=payload_bytes)
        findings.append(_clock(database))
        tables = _schema(database)
        findings.append(tables)
        if tables.level is Level.OK:
            findings += database.read(lambda conn: _jobs(database, conn, database.now(conn)))
    except (FencepostError, exc.SQLAlchemyError) as error:
        return [_unreachable(database, error)]
    return findings


def _unreachable(database: Database, error: Exception) -> Finding:
    reason = error.orig if isinstance(error, exc.DBAPIError) else error
    return Finding(
        "database",
        Level.PROBLEM,
        f"{database.display_url} cannot be used: {reason}",
        "Check that it runs, that this machine reaches it, and the URL's host, user, password and database name.",
    )


def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = database.read(database.now) / _SECOND
    after = time.time()
    skew = theirs - (before + after) / 2
    doubt = (after - before) / 2
    if abs(skew) <= _SKEW_SECONDS + doubt:
        return Finding("clock", Level.OK, f"The database's clock and this machine's agree (to {abs(skew):.2f} s).")
    return Finding(
        "clock",
        Level.WARNING,
        f"This machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's. Jobs run by "
        "the database's clock, so none runs at a wrong time; but a `run_at` computed here, logs and ids are off.",
        "Synchronise both clocks (NTP, chrony, systemd-timesyncd).",
    )


def _schema(database: Database) -> Finding:
    status = schema.status(database)
    if status.is_current:
        return Finding("schema", Level.OK, f"The tables are of version {status.found}, as this build needs.")
    if status.is_newer:
        return Finding(
            "schema",
            Level.PROBLEM,
            f"The tables are of version {status.found}, newer than this build knows (up to {status.wanted}).",
            "Upgrade fencepost on this machine: pip install --upgrade fencepost",
        )
    found = (
        "There are no fencepost tables."
        if status.found is None
        else f"The tables are of version {status.found}; this build needs {status.wanted}."
    )
    return Finding(
        "schema", Level.PROBLEM, found, "Create or upgrade them: fencepost migrate (workers need not be stopped first)."
    )


def _jobs(database: Database, conn: Connection, now: Micros) -> list[Finding]:
    workers = list_workers(conn)
    at = instant(now)
    assert at is not None
    alive = [worker for worker in workers if worker.is_alive(at)]
    paused = paused_queues(conn)
    waiting = ready_by_line(database, conn)
    return [
        _workers(workers, alive, waiting, paused, now),
        *_unserved(alive, waiting, paused),
        *_leadership(conn, alive, at),
        _leases(conn, now),
        _overdue(conn, now),
        *_paused(waiting, paused, now),
        *_gates(conn, now),
        _quarantined(conn, now),
        *_schedules(conn, alive, now),
    ]


# Served by the `ready` index alone, and bounded: whether a million or ten thousand wait, somebody should look.
_IN_LINE = select(func.count()).select_from(
    select(ONE)
    .where(jobs.c.line == bindparam("line"), jobs.c.rank.is_not(None))
    .limit(bindparam("most"))
    .subquery("standing")
)


class Ready(NamedTuple):
    """A line, and how many jobs are ready in it; above `_MOST_COUNTED` they are not counted any further."""

    line: Line
    number: int

    @property
    def what(self) -> str:
        needs = f" with the labels {label_words(self.line.labels)}" if self.line.labels else ""
        return f"{_number(self.number)} of kind {self.line.kind!r} in queue {self.line.queue!r}{needs}"


def ready_by_line(database: Database, conn: Connection) -> list[Ready]:
    """How many jobs are ready, by line. Jobs are counted in the index; none is read."""
    lines = sorted(all_ready_lines(database, conn), key=lambda line: (line.queue, line.kind, line.labels or ""))
    most = _MOST_COUNTED + 1
    counted = (Ready(line, conn.execute(_IN_LINE, {"line": line.number, "most": most}).scalar_one()) for line in lines)
    return [entry for entry in counted if entry.number]


def _total(waiting: Iterable[Ready]) -> int:
    """How many jobs there are in several lines, counted no further than `_MOST_COUNTED` either."""
    return min(sum(entry.number for entry in waiting), _MOST_COUNTED + 1)


def _workers(
    workers: list[WorkerRecord], alive: list[WorkerRecord], waiting: Sequence[Ready], paused: Iterable[str], now: Micros
) -> Finding:
    ready = _total(entry for entry in waiting if entry.line.queue not in set(paused))
    silent = len(workers) - len(alive)
    gone = f" {_count(silent, 'worker')} stopped reporting without a word: killed, or cut off." if silent else ""
    if alive:
        return Finding("workers", Level.OK, f"{_are(len(alive), 'worker')} alive.{gone}")
    last = min((_micros_since(worker, now) for worker in workers), default=None)
    seen = "none is known" if last is None else f"the last one reported {_span(last)} ago"
    if not ready:
        return Finding("workers", Level.OK, f"No worker is alive ({seen}), and no job is ready.{gone}")
    return Finding(
        "workers",
        Level.PROBLEM,
        f"{_are(ready, 'job')} ready, and no worker is alive ({seen}).{gone}",
        "Start one: fencepost worker APP",
    )


def _unserved(alive: list[WorkerRecord], waiting: Sequence[Ready], paused: Iterable[str]) -> list[Finding]:
    """Ready jobs that none of the living workers would claim."""
    if not alive:
        return []
    left = [
        f"{entry.what} ({why})"
        for entry in waiting
        if entry.line.queue not in set(paused) and (why := _why_unserved(alive, entry.line)) is not None
    ]
    if not left:
        return [Finding("unserved", Level.OK, "Every ready job is served by a living worker.")]
    return [
        Finding(
            "unserved",
            Level.WARNING,
            f"Jobs are ready that no living worker serves: {_some(left)}.",
            "Start a worker of the app that registers these kinds, for these queues (or without --queue: for all) and "
            "with these labels (--label NAME=VALUE).",
        )
    ]


def _why_unserved(alive: Iterable[WorkerRecord], line: Line) -> str | None:
    """What the nearest of the workers lacks to serve a line; None: one serves it."""
    knowing = [worker for worker in alive if line.kind in worker.kinds]
    if not knowing:
        return "no worker registers the kind"
    near = [worker for worker in knowing if worker.serves_queue(line.queue)]
    if not near:
        return "no worker that registers the kind serves the queue"
    return None if any(worker.has(line.needs) for worker in near) else "no such worker has the labels"


def _leadership(conn: Connection, alive: list[WorkerRecord], now: datetime) -> list[Finding]:
    """Who leads, and whether what a leader does is done."""
    found = find_leader(conn)
    if found is not None and found.is_leading(now):
        assert found.since is not None
        span = _span((now - found.since) // timedelta(microseconds=1))
        who = f"{found.holder} leads the planners for {span} (since {found.since:%Y-%m-%d %H:%M:%S} UTC)"
        return [Finding("leader", Level.OK, f"{who}, epoch {found.epoch}."), _passes(conn, found, now)]
    if not any(_is_settled(worker, now) for worker in alive):
        return [Finding("leader", Level.OK, "Nobody leads the planners, as no worker is there that could.")]
    return [
        Finding(
            "leader",
            Level.WARNING,
            f"{_are(len(alive), 'worker')} alive, and nobody leads the planners{_last_lead(found, now)}: nothing is "
            "planned, taken back or pruned.",
            "A living worker takes the lead within moments. See what the workers' logs say, and whether they are of "
            "a version that leads; restart them.",
        )
    ]


def _is_settled(worker: WorkerRecord, now: datetime) -> bool:
    """Whether a worker has been there for long enough to have taken the lead."""
    return worker.started_at is not None and now - worker.started_at > timedelta(seconds=_LATE_SECONDS)


def _last_lead(found: Leader | None, now: datetime) -> str:
    if found is None:
        return ""
    return f" (the last renewal was {_span((now - found.renewed_at) // timedelta(microseconds=1))} ago)"


def _passes(conn: Connection, found: Leader, now: datetime) -> Finding:
    """The passes that have not succeeded for long, although somebody leads."""
    assert found.since is not None
    records = {record.name: record.succeeded_at for record in list_passes(conn)}
    late = []
    for name in Pass:
        limit = timedelta(seconds=_SILENT_PASS_SECONDS.get(name, _USUAL_PASS_SECONDS))
        last = records.get(name)
        if now - max(last or found.since, found.since) > limit:
            span = "never" if last is None else f"{_span((now - last) // timedelta(microseconds=1))} ago"
            late.append(f"{name} ({span})")
    if not late:
        return Finding("passes", Level.OK, "Every pass of the leader has succeeded lately.")
    return Finding(
        "passes",
        Level.WARNING,
        f"Passes of the leader have not succeeded for long: {_some(late)}.",
        f"See what the log of {found.holder} says. Stopping it lets another worker lead.",
    )


def _late(column: str, state: State) -> Callable[[Connection, Micros], tuple[int, Micros | None]]:
    # Served by the `lease` or the `wake` index.
    query = select(func.count(), func.min(jobs.c[column])).where(
        and_(jobs.c[column] <= bindparam("late"), jobs.c.state == word(state))
    )

    def look(conn: Connection, now: Micros) -> tuple[int, Micros | None]:
        number, oldest = conn.execute(query, {"late": now - _LATE_SECONDS * _SECOND}).one()
        return number, None if oldest is None else now - oldest

    return look


_late_leases = _late("lease_until", State.RUNNING)
_late_promotions = _late("wake_at", State.SCHEDULED)


def _leases(conn: Connection, now: Micros) -> Finding:
    number, oldest = _late_leases(conn, now)
    if oldest is None:
        return Finding("leases", Level.OK, "No expired lease is left lying.")
    return Finding(
        "leases",
        Level.PROBLEM,
        f"{_are(number, 'job')} running by name only: the worker is gone, the lease ran out up to {_span(oldest)} "
        "ago, and nobody took it back.",
        "Any living worker takes expired leases back within moments. Start one: fencepost worker APP",
    )


def _overdue(conn: Connection, now: Micros) -> Finding:
    number, oldest = _late_promotions(conn, now)
    if oldest is None:
        return Finding("due", Level.OK, "No scheduled job is overdue.")
    return Finding(
        "due",
        Level.PROBLEM,
        f"{_are(number, 'job')} due for up to {_span(oldest)}, and nobody makes them ready.",
        "Any living worker does so within moments. Start one: fencepost worker APP",
    )


def _paused(waiting: Sequence[Ready], paused: dict[str, Micros], now: Micros) -> list[Finding]:
    held = []
    for queue, since in sorted(paused.items()):
        number = _total(entry for entry in waiting if entry.line.queue == queue)
        if number:
            held.append(f"{queue!r} ({_count(number, 'job')}, paused {_span(now - since)} ago)")
    if not held:
        return [Finding("paused", Level.OK, "No jobs wait in a paused queue.")]
    return [
        Finding(
            "paused",
            Level.WARNING,
            f"Jobs are ready in paused queues: {_some(held)}.",
            "Let them run again: fencepost queues resume NAME",
        )
    ]


# Served by the `finished` index.
_UNDECODABLE = (
    select(func.count())
    .select_from(jobs)
    .where(
        jobs.c.finished_at >= bindparam("since"),
        jobs.c.state == word(State.FAILED),
        jobs.c.reason == word(Reason.UNDECODABLE),
    )
)


def _quarantined(conn: Connection, now: Micros) -> Finding:
    since = now - _QUARANTINE_DAYS * 86_400 * _SECOND
    number = conn.execute(_UNDECODABLE, {"since": since}).scalar_one()
    if not number:
        return Finding("quarantine", Level.OK, f"No job was undecodable in the last {_QUARANTINE_DAYS} days.")
    return Finding(
        "quarantine",
        Level.WARNING,
        f"{_count(number, 'job')} failed as undecodable in the last {_QUARANTINE_DAYS} days: the stored arguments did "
        "not fit the handler, or the row was not readable by the worker's version.",
        "See why: fencepost jobs list --state failed, then fencepost jobs show ID. Mend the handler or upgrade, then: "
        "fencepost jobs retry ID",
    )


# Served by the `ready` index: those who wait at a gate stand in a line of its own.
_BLOCKED = (
    select(func.count())
    .select_from(jobs)
    .where(
        jobs.c.line == bindparam("line", type_=BigInteger),
        jobs.c.state == word(State.BLOCKED),
        func.coalesce(jobs.c.run_at, jobs.c.created_at) <= bindparam("late", type_=BigInteger),
    )
)


_LIMIT = select(limits).where(limits.c.digest == bindparam("digest"))


def _gates(conn: Connection, now: Micros) -> list[Finding]:
    """Jobs that wait for what is free (whoever freed it, or a planner, should have woken them) or for what never is."""
    late = now - _LATE_SECONDS * _SECOND
    stuck, absent, never = [], [], []
    for line in waiting_lines(conn, 0, _MOST_GATES):
        member = waiting_member(conn, line)
        number = conn.execute(_BLOCKED, {"line": line, "late": late}).scalar_one()
        if member is None or not number:
            continue
        jobs_ = _count(number, "job")
        demand = next(
            (one for one in row_demands(member) if line in (permit_line_of(one.digest), stuck_line_of(one.digest))),
            None,
        )
        if demand is None:
            continue
        row = conn.execute(_LIMIT, {"digest": demand.digest}).first()
        if line == stuck_line_of(demand.digest):
            never.append(f"{jobs_} for {demand.amount:,} of {demand.name!r}")
        elif demand.gate is Gate.RESOURCE and row is None:
            absent.append(f"{jobs_} for {demand.name!r}")
        else:
            free = count_free(conn, demand, row, now)
            if free >= demand.amount and (row is None or row.due_at is None or row.due_at <= late):
                stuck.append(f"{jobs_} for {demand.name!r} ({free:,} free)")
    return [
        Finding(
            "permits",
            Level.PROBLEM,
            f"Jobs have been waiting for over {_LATE_SECONDS} s for permits, tokens or shares that are free: "
            f"{_some(stuck)}.",
            "Any living worker wakes them within moments. Start one: fencepost worker APP",
        )
        if stuck
        else Finding("permits", Level.OK, "No job waits for a permit, token or share that is free."),
        Finding(
            "resources",
            Level.PROBLEM,
            f"Jobs wait for resources that nobody has declared: {_some(absent)}.",
            "Declare them, and the jobs go on: fencepost limits set-bucket NAME --rate N --burst N, or fencepost "
            "limits set-semaphore NAME --capacity N",
        )
        if absent
        else Finding("resources", Level.OK, "Every resource for which jobs wait is declared."),
        Finding(
            "demands",
            Level.PROBLEM,
            f"Jobs wait for more than there will ever be: {_some(never)}.",
            "Raise the capacity or burst (fencepost limits list shows them), or cancel the jobs: fencepost jobs "
            "cancel ID",
        )
        if never
        else Finding("demands", Level.OK, "No job waits for more of a limit than there will ever be."),
    ]


def _schedules(conn: Connection, alive: list[WorkerRecord], now: Micros) -> list[Finding]:
    found = list_schedules(conn)
    active = [one for one in found if one.error is None and one.next_fire_at is not None]
    return [_undecodable(found), _planner(active, alive), *_unknown_kinds(active, alive), _cursors(active, now)]


def _undecodable(found: Sequence[Schedule]) -> Finding:
    broken = [f"{one.name!r} ({one.error})" for one in found if one.error is not None]
    if not broken:
        return Finding("schedules", Level.OK, f"{_count(len(found), 'schedule')}, each of which can be decoded.")
    return Finding(
        "schedules",
        Level.PROBLEM,
        f"{_count(len(broken), 'schedule')} cannot be decoded and may not fire: {_some(broken)}",
        "Upgrade fencepost on this machine and restart the workers; or save the schedule anew, by the code that "
        "declares it or with: fencepost schedules set",
    )


def _planner(active: Sequence[Schedule], alive: list[WorkerRecord]) -> Finding:
    if alive or not active:
        return Finding("planner", Level.OK, f"{_are(len(active), 'schedule')} active.")
    return Finding(
        "planner",
        Level.PROBLEM,
        f"{_are(len(active), 'schedule')} active, and no worker is alive: nothing fires.",
        "Start one, of any app on this database: fencepost worker APP",
    )


def _unknown_kinds(active: Sequence[Schedule], alive: list[WorkerRecord]) -> list[Finding]:
    """Schedules whose occurrences no living worker would claim."""
    if not alive:
        return []
    left = [
        f"{one.name!r} (kind {one.kind!r} in queue {one.queue!r}{_with(one)})"
        for one in active
        if not any(worker.serves(one.queue, one.kind, frozenset(one.labels.items())) for worker in alive)
    ]
    if not left:
        return [Finding("schedule-kinds", Level.OK, "What the active schedules make is served by a living worker.")]
    return [
        Finding(
            "schedule-kinds",
            Level.WARNING,
            f"Schedules are active whose jobs no living worker serves: {_some(left)}.",
            "Start a worker of the app that registers these kinds, for these queues, with these labels; or stop the "
            "schedule: fencepost schedules pause NAME",
        )
    ]


def _with(schedule: Schedule) -> str:
    return f" with the labels {label_words(encode_labels(schedule.labels))}" if schedule.labels else ""


def _cursors(active: Sequence[Schedule], now: Micros) -> Finding:
    overdue = []
    for one in active:
        current = instant(now)
        assert current is not None
        assert one.next_fire_at is not None
        late = (current - one.next_fire_at) // timedelta(microseconds=1)
        if late > max(one.grace, _LATE_SECONDS) * _SECOND:
            overdue.append(f"{one.name!r} ({_span(late)})")
    if not overdue:
        return Finding("cursors", Level.OK, "No schedule is overdue by more than its grace.")
    return Finding(
        "cursors",
        Level.PROBLEM,
        f"Schedules are overdue by more than their grace, so that instants will count as missed: {_some(overdue)}.",
        "Any living worker plans them within moments. Start one, or see what its log says: fencepost worker APP",
    )


def _micros_since(worker: WorkerRecord, now: Micros) -> Micros:
    seen, current = worker.seen_at, instant(now)
    if seen is None or current is None:
        return 0
    return (current - seen) // timedelta(microseconds=1)


def _number(number: int) -> str:
    return f"{number:,}" if number <= _MOST_COUNTED else f"over {_MOST_COUNTED:,}"


def _count(number: int, noun: str) -> str:
    return f"{_number(number)} {noun}" if number == 1 else f"{_number(number)} {noun}s"


def _are(number: int, noun: str) -> str:
    return f"{_count(number, noun)} {'is' if number == 1 else 'are'}"


def _some(items: list[str]) -> str:
    rest = len(items) - _NAMED
    return "; ".join(items[:_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _span(span: Micros) -> str:
    seconds = max(0, span) // _SECOND
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
