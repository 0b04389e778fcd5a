"""Claim: a ready job goes to exactly one worker, best rank first (J3), and its attempt counts from here (J4).

A worker asks in two steps, in one transaction:

1. Which lines hold ready jobs? One loose scan of the `ready` index that touches each line once, whatever the
   number of jobs in it. Lines of kinds the worker does not know, of labels it has not, and of paused queues fall
   away here: the 100,000 jobs in such a line are never read.
2. From each line that is left, take the best-ranked jobs: one range scan of the same index, passing over rows
   that other workers are claiming at this moment. With several lines, a look at their ranks first says how many
   each gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    Update,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Connection

from fencepost.errors import StoreUnavailable
from fencepost.job import Claim, Hold, Micros, Reason, State
from fencepost.labels import NO_LABELS, LabelSet, label_set
from fencepost.planning.fixed_start import is_kept, outcome_of_miss, start_note
from fencepost.planning.outcome import Outcome, Verb, append_history
from fencepost.store.admission import admit
from fencepost.store.database import Database
from fencepost.store.dialects.base import compiled_sql, driver_rows
from fencepost.store.lines import MOST_AT_ONCE, lines_from, lines_onwards
from fencepost.store.rows import CLAIM_COLUMNS, UNREADABLE, claim_from_row
from fencepost.store.settle import settle, undecodable
from fencepost.store.tables import ONE, jobs, line_numbers_of, line_of_row, queues, word

__all__ = ["Line", "all_ready_lines", "claim", "lines_of", "ready_lines"]

_MOST_LINES_KEPT = 10_000

_TOKEN = CLAIM_COLUMNS.index("lease_token")
_OPTIONS = CLAIM_COLUMNS.index("options")
_HISTORY = CLAIM_COLUMNS.index("history")
_PERMIT_KEY = CLAIM_COLUMNS.index("permit_key")
_LIMITS = CLAIM_COLUMNS.index("limits")

_MOST_REFUSED = 1000  # in one call, where it finds nothing else: some tenths of a second


class Line(NamedTuple):
    """Where jobs of one kind and of equal needs wait in one queue.

    Attributes:
        number: `line_of` the rest.
        queue, kind: theirs.
        labels: what they need of a worker, as it is stored.
        needs: the same as pairs; None: it cannot be read, so that no worker has it.
    """

    number: int
    queue: str
    kind: str
    labels: str | None = None
    needs: LabelSet | None = NO_LABELS


# It starts above the negative lines, in which jobs wait for limits and for turns.
_PRESENT_LINES = lines_from(select(func.min(jobs.c.line)).where(jobs.c.line >= literal_column("0", BigInteger)))
_STANDING = ("queue", "kind", "labels", "permit_key", "limits")
_LINE_MEMBER = select(*(jobs.c[name] for name in _STANDING)).where(jobs.c.line == bindparam("line")).limit(1)
_PAUSED = select(queues.c.name).where(queues.c.paused_at.is_not(None))


# In rank order, served by the `ready` index alone. `kind` and `queue` are checked because a line is a digest.
def _picking(*columns: ColumnElement[Any]) -> Select[Any]:
    return (
        select(*columns)
        .where(
            jobs.c.line == bindparam("line"),
            jobs.c.rank.is_not(None),
            jobs.c.state == word(State.READY),
            jobs.c.queue == bindparam("queue"),
            jobs.c.kind == bindparam("kind"),
        )
        .order_by(jobs.c.rank)
        .limit(bindparam("quota", type_=BigInteger))
    )


_GROWING = frozenset({"lease_token", "attempts"})
_PICK = _picking(jobs.c.rank, *(jobs.c[name] + ONE if name in _GROWING else jobs.c[name] for name in CLAIM_COLUMNS))
_PICK_UNLOCKED = _PICK.with_for_update(skip_locked=True)


def _marking(now: Any, owner: Any, lease_until: Any) -> dict[str, Any]:
    """The values by which a ready row becomes a running one."""
    return {
        "state": word(State.RUNNING),
        "line": null(),
        "rank": null(),
        "wake_at": null(),
        "live_key": case((jobs.c.hold.is_distinct_from(word(Hold.QUEUED)), jobs.c.live_key), else_=null()),
        "lease_owner": owner,
        "lease_until": lease_until,
        "lease_token": jobs.c.lease_token + ONE,
        "attempts": jobs.c.attempts + ONE,
        "started_at": now,
    }


_START_NAMES = ("_id", "_started_at", "_history")


def _note_start_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Served by the primary key, in the transaction of the mark, which locks the rows."""
    return update(jobs).where(match).values(started_at=value("_started_at"), history=value("_history"))


_MARK_NAMES = ("_id", "_lease_token", "_started_at", "_lease_owner", "_lease_until")
"""`_lease_token` is the token of the lease that the mark begins."""


def _mark_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Mark picked rows as running. The count is the rows that were still ready, with the token they had."""
    return (
        update(jobs)
        .where(match, jobs.c.state == word(State.READY), jobs.c.lease_token == value("_lease_token") - ONE)
        .values(_marking(value("_started_at"), value("_lease_owner"), value("_lease_until")))
    )


def _pick_and_mark() -> Update:
    """Both steps in one statement. The materialised CTE locks the picked rows before any is updated."""
    picked = _picking(jobs.c.id, jobs.c.rank).with_for_update(skip_locked=True)
    cte = picked.cte("picked").prefix_with("MATERIALIZED")
    marked = update(jobs).where(jobs.c.id == cte.c.id, jobs.c.state == word(State.READY))
    now, until = bindparam("now", type_=BigInteger), bindparam("until", type_=BigInteger)
    return marked.values(_marking(now, bindparam("owner", type_=Text), until)).returning(
        cte.c.rank, cast(jobs.c.id, Text), *(jobs.c[name] for name in CLAIM_COLUMNS[1:])
    )


_PICK_AND_MARK = _pick_and_mark()


def _mark_picked() -> Update:
    """Mark what the same search has just picked, where nobody can have written since."""
    row = literal_column("rowid", BigInteger)  # spares a look into the primary key's index for each
    picked = _picking(row).correlate(None).offset(literal_column("0"))  # or the dialect adds one, as a parameter
    now, until = bindparam("now", type_=BigInteger), bindparam("until", type_=BigInteger)
    return update(jobs).where(row.in_(picked)).values(_marking(now, bindparam("owner", type_=Text), until))


_MARK_PICKED = _mark_picked()


def claim(
    database: Database,
    owner: str,
    *,
    kinds: frozenset[str],
    queues: frozenset[str] | None,
    limit: int,
    lease: Micros,
    labels: LabelSet = NO_LABELS,
) -> list[Claim]:
    """Claim up to `limit` ready jobs of `kinds`, in rank order, for `lease` microseconds.

    A job whose deadline has passed is retired on the spot (skipped, `expired`), one whose fixed start was missed as
    its `on_miss` says, and a row that cannot be decoded is quarantined (failed, `undecodable`): none of them is
    returned, and none is read again at the next claim. A job with a fixed start may be returned up to a second before
    it: who claims it is to wait for `claim.start.at`.

    Args:
        database: where.
        owner: who holds the leases.
        kinds: what the owner can run; none: nothing is asked.
        queues: where to look; None: everywhere.
        limit: how many at most.
        lease: how long the leases last.
        labels: what the owner has; jobs that need others are left alone.
    """
    if not kinds or limit < 1:
        return []
    claims: list[Claim] = []
    refused = 0
    # A line with somebody in it who was refused is left out from then on, so that those who wait for one limit, be
    # there 100,000 of them, do not keep this call from the other lines.
    left_out: frozenset[int] = frozenset()
    # Retired, quarantined and refused jobs leave room in the batch, so ask again.
    while len(claims) < limit:
        batch = _claim_batch(database, owner, kinds, queues, limit - len(claims), lease, left_out, labels)
        runnable, retired = _sorted_out(batch, owner, labels)
        claims += runnable
        refused += batch.refused
        left_out |= batch.lines_with_refused
        if not retired and not batch.refused:
            if claims or not left_out or refused >= _MOST_REFUSED:
                break
            left_out = frozenset()  # nothing else is there: those behind the refused get their turn
        if not retired:
            continue
        try:
            database.write(lambda conn, retired=retired: settle(database.dialect, conn, retired, database.now(conn)))  # type: ignore[misc]
        except StoreUnavailable:
            if not claims:
                raise
            break  # what was claimed is not lost; the others are retired when their leases have run out
    return claims


class _Batch(NamedTuple):
    now: Micros
    rows: Sequence[Sequence[Any]]
    fencing_tokens: Mapping[str, int]
    refused: int
    """How many lacked something to start, and are blocked or skipped."""
    lines_with_refused: frozenset[int] = frozenset()
    """Where they stood."""


def _claim_batch(
    database: Database,
    owner: str,
    kinds: frozenset[str],
    queues: frozenset[str] | None,
    limit: int,
    lease: Micros,
    left_out: frozenset[int],
    labels: LabelSet,
) -> _Batch:
    """One transaction: the clock, the claimed rows in rank order, and what those need that stand under limits."""
    seen: list[Line] | None = None
    if database.dialect.looks_first:
        seen = database.read(lambda conn: ready_lines(database, conn, kinds, queues, labels, left_out))
        if not seen:
            return _Batch(0, (), {}, 0)
    dues: list[Micros] = []

    def work(conn: Connection) -> _Batch:
        dues.clear()
        now = database.now_and_pin(conn)
        lines = ready_lines(database, conn, kinds, queues, labels, left_out) if seen is None else seen
        rows: list[Sequence[Any]] = []
        origins: list[tuple[int, Sequence[Sequence[Any]]]] = []
        for line, quota in _quotas(conn, lines, limit):
            taken = _take(database, conn, line, quota, owner, now, now + lease)
            origins.append((line.number, taken))
            rows += taken
        rows.sort(key=itemgetter(0, 1))
        admitted = _admitted(database, conn, rows, origins, owner, now, dues)
        return _with_starts_noted(database, conn, admitted, owner)

    batch = database.write(work)
    if dues:
        database.tell_due(min(dues) - batch.now)
    return batch


def _admitted(
    database: Database,
    conn: Connection,
    rows: list[Sequence[Any]],
    origins: Sequence[tuple[int, Sequence[Sequence[Any]]]],
    owner: str,
    now: Micros,
    dues: list[Micros],
) -> _Batch:
    """The batch without those that lack something to start."""
    constrained: list[tuple[int, Claim]] = []
    for row in rows:
        if row[_PERMIT_KEY + 1] is None and row[_LIMITS + 1] is None:
            continue
        try:
            claimed = claim_from_row(row[1:], owner, now)
        except UNREADABLE:
            continue  # quarantined below, with all others that cannot be decoded
        if claimed.deadline is None or claimed.deadline > now:
            constrained.append((row[0], claimed))
    if not constrained:
        return _Batch(now, rows, {}, 0)
    admission = admit(database, conn, constrained, now)
    if admission.due_at is not None:
        dues.append(admission.due_at)
    tokens = admission.fencing_tokens
    refused = {claimed.id for _, claimed in constrained} - admission.admitted
    if not refused:
        return _Batch(now, rows, tokens, 0)
    where = frozenset(line for line, taken in origins if any(row[1] in refused for row in taken))
    return _Batch(now, [row for row in rows if row[1] not in refused], tokens, len(refused), where)


def _with_starts_noted(database: Database, conn: Connection, batch: _Batch, owner: str) -> _Batch:
    """The batch; of jobs with fixed starts, the row tells when they start, or by how much that was missed."""
    rows = list(batch.rows)
    notes: list[tuple[Any, ...]] = []
    for place, row in enumerate(rows):
        if row[_OPTIONS + 1] is None or '"start"' not in row[_OPTIONS + 1]:
            continue
        try:
            claimed = claim_from_row(row[1:], owner, batch.now)
        except UNREADABLE:
            continue  # quarantined with all others that cannot be decoded
        start, history = claimed.start, claimed.history
        if start is None or claimed.reason is not None or outcome_of_miss(claimed, batch.now) is not None:
            continue
        if not is_kept(start, batch.now):
            note = start_note(start, batch.now)
            history = append_history(history, claimed.attempt, batch.now, Reason.MISSED_START, owner, note)
            rows[place] = (*row[: _HISTORY + 1], history, *row[_HISTORY + 2 :])
        elif start.at <= batch.now:
            continue
        notes.append((claimed.id, max(start.at, batch.now), history))
    if notes:
        database.dialect.update_rows(conn, _note_start_rows, _START_NAMES, sorted(notes, key=itemgetter(0)))
    return batch._replace(rows=rows)


def ready_lines(
    database: Database,
    conn: Connection,
    kinds: frozenset[str],
    queues: frozenset[str] | None,
    labels: LabelSet = NO_LABELS,
    left_out: frozenset[int] = frozenset(),
) -> list[Line]:
    """The lines that hold ready jobs of `kinds`, needing no more than `labels`, in `queues` that are not paused.

    Without those that are left out.
    """
    present = _look_for_lines(database, conn)
    if left_out:
        present = [number for number in present if number not in left_out]
    if not present:
        return []
    found = []
    known = {} if queues is None else _known_lines(kinds, queues)
    # Without labels a worker of named queues knows the numbers of all lines that it may serve. With labels, or serving
    # all queues, it asks a number that it has not met yet who stands there: once, for as long as it lives.
    asks = queues is None or bool(labels)
    for number in present:
        line = known.get(number) or (_line_by_number(database, conn, number) if asks else None)
        if line is None or line.kind not in kinds or (queues is not None and line.queue not in queues):
            continue
        if line.needs is not None and line.needs <= labels:
            found.append(line)
    if not found:
        return []
    paused = {row[0] for row in conn.execute(_PAUSED)}
    return [line for line in found if line.queue not in paused]


def all_ready_lines(database: Database, conn: Connection) -> list[Line]:
    """Every line that holds ready jobs, in paused queues too: a step a line, whatever the number of jobs in it."""
    lines = (_line_by_number(database, conn, number) for number in _look_for_lines(database, conn))
    return [line for line in lines if line is not None]


def lines_of(database: Database, conn: Connection, queue: str) -> list[Line]:
    """The lines of a queue that hold ready jobs, of whatever kind, paused or not."""
    return [line for line in all_ready_lines(database, conn) if line.queue == queue]


def _look_for_lines(database: Database, conn: Connection) -> list[int]:
    if database.dialect.probes_in_recursion:
        return [row[0] for row in conn.execute(_PRESENT_LINES)]
    database.present_lines = sorted(lines_onwards(conn, [-1, *database.present_lines]))
    return database.present_lines


@lru_cache(maxsize=64)
def _known_lines(kinds: frozenset[str], queues: frozenset[str]) -> dict[int, Line]:
    return {
        number: Line(number, queue, kind)
        for queue in queues
        for kind in kinds
        for number in line_numbers_of(queue, kind)
    }


def _line_by_number(database: Database, conn: Connection, number: int) -> Line | None:
    line: Line | None = database.lines.get(number)
    if line is None:
        member = conn.execute(_LINE_MEMBER, {"line": number}).first()
        if member is None:  # its last job was claimed since we saw it
            return None
        labels = member.labels
        if line_of_row(member) != number:  # that one stands in the wrong line; a claim sends it to its own
            labels = None
            if number not in line_numbers_of(member.queue, member.kind):
                return None
        line = Line(number, member.queue, member.kind, labels, label_set(labels))
        if len(database.lines) >= _MOST_LINES_KEPT:
            database.lines.clear()
        database.lines[number] = line
    return line


def _quotas(conn: Connection, lines: Sequence[Line], limit: int) -> list[tuple[Line, int]]:
    """How many of the best `limit` jobs stand in each line."""
    if len(lines) <= 1:
        return [(line, limit) for line in lines]
    best: list[tuple[int, int]] = []
    for start in range(0, len(lines), MOST_AT_ONCE):
        part = lines[start : start + MOST_AT_ONCE]
        ranks = conn.execute(_peek(len(part)), {"limit": limit} | {f"line_{i}": x.number for i, x in enumerate(part)})
        best += ((row.rank, row.line) for row in ranks)
    counts = Counter(number for _, number in sorted(best)[:limit])
    return [(line, counts[line.number]) for line in lines if counts[line.number]]


@lru_cache(maxsize=MOST_AT_ONCE)
def _peek(lines: int) -> Select[Any]:
    limit = bindparam("limit", type_=BigInteger)
    heads = []
    for index in range(lines):
        head = select(jobs.c.rank, jobs.c.line).where(
            jobs.c.line == bindparam(f"line_{index}", type_=BigInteger), jobs.c.rank.is_not(None)
        )
        heads.append(select(head.order_by(jobs.c.rank).limit(limit).subquery(f"head_{index}")))
    ranks = union_all(*heads).subquery("ranks")
    return select(ranks.c.rank, ranks.c.line).order_by(ranks.c.rank).limit(limit)


def _take(
    database: Database, conn: Connection, line: Line, quota: int, owner: str, now: Micros, until: Micros
) -> Sequence[Sequence[Any]]:
    """Claim up to `quota` jobs of one line. Rows: the rank, then CLAIM_COLUMNS as they stand after the claim."""
    where = {"line": line.number, "queue": line.queue, "kind": line.kind, "quota": quota}
    values = {"now": now, "owner": owner, "until": until}
    if database.dialect.claims_in_one_statement:
        sql, _ = compiled_sql(_PICK_AND_MARK, conn.dialect)
        return conn.exec_driver_sql(sql, where | values).fetchall()
    picking = _PICK_UNLOCKED if database.dialect.skip_locked else _PICK
    picked = database.dialect.fetch_rows(conn, picking, where)
    if not picked:
        return []
    if database.dialect.writes_alone:
        sql, order = compiled_sql(_MARK_PICKED, conn.dialect)
        (parameters,) = driver_rows(order, (*where, *values), [(*where.values(), *values.values())])
        marked = conn.exec_driver_sql(sql, parameters).rowcount
        assert marked == len(picked), "another wrote in the midst of a write transaction"
        return picked
    marks = [(row[1], row[_TOKEN + 1], now, owner, until) for row in picked]
    held = database.dialect.update_rows(conn, _mark_rows, _MARK_NAMES, marks)
    return [row for row, is_held in zip(picked, held, strict=True) if is_held]


def _sorted_out(batch: _Batch, owner: str, labels: LabelSet) -> tuple[list[Claim], list[tuple[Claim, Outcome]]]:
    """The claims that can run, and the settlements of those that cannot."""
    runnable: list[Claim] = []
    retired: list[tuple[Claim, Outcome]] = []
    now = batch.now
    for row in batch.rows:
        try:
            claimed = claim_from_row(row[1:], owner, now)
        except UNREADABLE as error:
            retired.append(undecodable(row[1:], owner, now, error))
            continue
        missed = None if claimed.start is None else outcome_of_miss(claimed, now)
        if claimed.deadline is not None and claimed.deadline <= now:
            retired.append((claimed, Outcome(Verb.SKIP, reason=Reason.EXPIRED)))
        elif missed is not None:
            retired.append((claimed, missed))
        elif claimed.labels is not None and not _has(labels, claimed.labels):
            # A version that knows nothing of labels made it ready, in the line of those without. Back to its own.
            retired.append((claimed, Outcome(Verb.RELEASE)))
        else:
            claimed.fencing_token = batch.fencing_tokens.get(claimed.id)
            runnable.append(claimed)
    return runnable, retired


def _has(labels: LabelSet, stored: str) -> bool:
    needs = label_set(stored)
    return needs is not None and needs <= labels
