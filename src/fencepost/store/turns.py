"""Turns: the jobs of a fair queue become ready in the order of their virtual starts, a window at a time.

    enqueue, promotion                a pass of the planner                claim
    ──────────────────▶ blocked ────────────────────────────▶ ready ─────────────▶ running
                        line: of the tenant (negative)         line: (queue, kind)
                        rank: arrival                          rank: virtual start

An enqueue knows nothing of others: its row goes into a line of its tenant's own, where no claim looks. A pass of the
planner, in a short transaction that holds the queue's row, looks at each waiting tenant once, however many jobs it has,
and gives the next turns by `planning.fairness`. So a flood costs the others nothing, and the claim stays one range
scan.

About `AHEAD` jobs of a kind have had their turn and wait to be claimed: that is how soon a new weight shows. The first
jobs of a tenant that has none among them get their turn beyond that, and overtake what begins after them.

Every step is guarded by the row's place in its line, so a pass that is repeated, or runs beside another, gives no job
two turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Update,
    bindparam,
    func,
    insert,
    literal,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Connection

from fencepost.job import Micros, Priority, State
from fencepost.planning.fairness import (
    DEFAULT_WEIGHT,
    Period,
    Tenant,
    allot,
    cost_of,
    excess_lead,
    period_at,
    rank_of,
)
from fencepost.planning.rank import rank
from fencepost.store.claim import lines_of
from fencepost.store.database import Database
from fencepost.store.lines import MOST_AT_ONCE, lines_from, lines_onwards
from fencepost.store.queues import forget_idle, lock_queue
from fencepost.store.rows import instant
from fencepost.store.tables import LEAST_PERMIT_LINE, jobs, line_of_row, queues, tenants, turn_line_of, word
from fencepost.store.workers import list_workers

__all__ = ["AHEAD", "TurnLine", "give_turns", "has_waiting", "waiting_lines"]

AHEAD = 1000
"""How many jobs of one kind may have had their turn and be ready: some tenths of a second of the fastest worker's
work, so that it never waits for the planner."""

_EXTRA = 100
"""How many jobs of tenants that have none among those may be ready beyond them in a pass, at least one of each: they
begin before most of them, and must not wait until workers have made room."""

_MOST_KNOWN = 100_000
_FORGET_BATCH = 1000
_BASE = rank(Priority.NORMAL, 0)

_TOP = literal_column(str(LEAST_PERMIT_LINE), BigInteger)
_ANY = select(func.min(jobs.c.line)).where(jobs.c.line < _TOP)
_PRESENT_LINES = lines_from(_ANY, jobs.c.line < _TOP)
_LEFT = select(jobs.c.line).where(jobs.c.line.in_(bindparam("lines", expanding=True))).limit(1)
_MEMBER = (
    select(jobs.c.queue, jobs.c.kind, jobs.c.tenant)
    .where(jobs.c.line == bindparam("line"), jobs.c.state == word(State.BLOCKED))
    .limit(1)
)
_CLOCKS = select(tenants).where(
    tenants.c.queue == bindparam("queue"), tenants.c.tenant.in_(bindparam("names", expanding=True))
)
_SET_CLOCK = (
    update(tenants)
    .where(tenants.c.queue == bindparam("_queue"), tenants.c.tenant == bindparam("_tenant"))
    .values(fair_period=bindparam("_period"), virtual_finish=bindparam("_finish"))
)


class TurnLine(NamedTuple):
    """Jobs of one kind that wait in a queue for one tenant's turn; `tenant` is "" for jobs without one."""

    number: int
    queue: str
    kind: str
    tenant: str


def has_waiting(conn: Connection) -> bool:
    """Whether any job waits for its turn. One probe of the `ready` index."""
    return conn.execute(_ANY).scalar() is not None


def _has_waiting(conn: Connection, lines: Sequence[int]) -> bool:
    """Whether any job is left in these lines."""
    for start in range(0, len(lines), MOST_AT_ONCE):
        if conn.execute(_LEFT, {"lines": lines[start : start + MOST_AT_ONCE]}).first() is not None:
            return True
    return False


def waiting_lines(database: Database, conn: Connection) -> dict[str, list[TurnLine]]:
    """The lines in which jobs wait for their turn, by queue."""
    by_queue: dict[str, list[TurnLine]] = defaultdict(list)
    for number in _look_for_lines(database, conn):
        line = _line_by_number(database, conn, number)
        if line is not None:
            by_queue[line.queue].append(line)
    return by_queue


def _look_for_lines(database: Database, conn: Connection) -> list[int]:
    first = conn.execute(_ANY).scalar()
    if first is None:
        return []
    if database.dialect.probes_in_recursion:
        return [row[0] for row in conn.execute(_PRESENT_LINES)]
    return sorted({first} | lines_onwards(conn, {first, *database.turn_lines}, below=LEAST_PERMIT_LINE))


def _line_by_number(database: Database, conn: Connection, number: int) -> TurnLine | None:
    line: TurnLine | None = database.turn_lines.get(number)
    if line is None:
        member = conn.execute(_MEMBER, {"line": number}).first()
        if member is None:  # its last job was cancelled since we saw it
            return None
        line = TurnLine(number, member.queue, member.kind, member.tenant or "")
        if turn_line_of(line.queue, line.kind, line.tenant) != number:
            return None  # written by something else; not ours to touch
        if len(database.turn_lines) >= _MOST_KNOWN:
            database.turn_lines = {}
        database.turn_lines[number] = line
    return line


def give_turns(
    database: Database, conn: Connection, queue: str, lines: Sequence[TurnLine], *, batch: int
) -> tuple[int, bool]:
    """Give the next turns in one queue, in a transaction of our own.

    Args:
        database: where.
        conn: in a transaction that can write.
        queue: which.
        lines: its lines in which jobs wait, as `waiting_lines` saw them.
        batch: how many turns at most.

    Returns:
        How many jobs became ready, and whether a further pass should come soon.
    """
    row = lock_queue(database, conn, queue)
    if row.paused_at is not None:
        return 0, False
    now = database.now_and_pin(conn)
    head, rooms, ready = _window(database, conn, queue, {line.kind for line in lines}, now)
    known = Period(row.fair_period, row.fair_anchor, row.virtual_time, row.last_start)
    period = period_at(known, head, now, is_backlogged=bool(row.backlogged))
    period = _moved_back(conn, ready, period, now)
    if period.number != known.number:
        forget_idle(conn, queue, period.number, batch=_FORGET_BATCH)
    clocks, stored = _clocks(conn, queue, lines, period)
    fresh = {name for name, clock in clocks.items() if clock.finish <= period.virtual_time}
    quotas: dict[str, int] = defaultdict(int)
    for line in lines:
        quotas[line.tenant] += rooms[line.kind]
    extra = max(0, max(len(fresh), _EXTRA) - min(rooms.values())) if fresh else 0
    quotas = {name: quota + (extra if name in fresh else 0) for name, quota in quotas.items()}
    most = min(batch, sum(rooms.values()) + extra)
    share = Counter(turn.tenant for turn in allot(period.virtual_time, clocks, quotas, most))
    asked = {line: min(share[line.tenant], rooms[line.kind] + extra) for line in lines if line.tenant in share}
    plan = _assign(period, clocks, _first_of(conn, asked), rooms, fresh, extra, most)
    given = sum(database.dialect.update_rows(conn, _turn_rows, _TURN_NAMES, sorted(plan.moves))) if plan.moves else 0
    _save_clocks(conn, queue, period.number, plan.finishes, stored)
    is_backlogged = _has_waiting(conn, [line.number for line in lines])
    conn.execute(
        update(queues)
        .where(queues.c.name == queue)
        .values(
            fair_period=period.number,
            fair_anchor=period.anchor,
            virtual_time=period.virtual_time,
            last_start=max(period.last_start, plan.last_start),
            backlogged=int(is_backlogged),
        )
    )
    return given, is_backlogged


def _window(
    database: Database, conn: Connection, queue: str, kinds: Iterable[str], now: Micros
) -> tuple[int | None, dict[str, int], list[int]]:
    """The least rank that is ready, the room of each kind in `kinds`, and the numbers of the queue's ready lines."""
    rooms = dict.fromkeys(kinds, AHEAD)
    heads: dict[str, int] = {}
    lines = lines_of(database, conn, queue)
    for line in lines:
        head, ready = conn.execute(_HEAD, {"line": line.number, "ahead": AHEAD}).one()
        if head is not None:
            heads[line.kind] = min(head, heads.get(line.kind, head))  # those under limits stand in lines beside it
            if line.kind in rooms:
                rooms[line.kind] = max(0, rooms[line.kind] - ready)
    # A kind that no living worker knows is not being served: its jobs must not hold the virtual time back, or whoever
    # was idle meanwhile would have a credit.
    seen = instant(now)
    assert seen is not None
    serving = [
        worker
        for worker in list_workers(conn)
        if worker.is_alive(seen) and (worker.queues is None or queue in worker.queues)
    ]
    served = {kind for worker in serving for kind in worker.kinds}
    counted = {kind: head for kind, head in heads.items() if kind in served} if serving else heads
    return min(counted.values(), default=None), rooms, [line.number for line in lines]


_READY_RANKS = (
    select(jobs.c.rank)
    .where(jobs.c.line == bindparam("line"), jobs.c.rank >= literal_column(str(_BASE), BigInteger))
    .order_by(jobs.c.rank)
    .limit(bindparam("ahead", type_=BigInteger))
    .subquery("ready")
)
_HEAD = select(func.min(_READY_RANKS.c.rank), func.count()).select_from(_READY_RANKS)


def _moved_back(conn: Connection, ready: Iterable[int], period: Period, now: Micros) -> Period:
    """The period with its ranks moved back, where they lead the clock too far; at most a window of rows a kind."""
    lead = excess_lead(period, now)
    if not lead:
        return period
    ahead = (jobs.c.line == bindparam("_line")) & (jobs.c.rank > literal(_BASE + now, BigInteger))
    move = update(jobs).where(ahead, jobs.c.state == word(State.READY)).values(rank=jobs.c.rank - lead)
    for number in sorted(ready):
        conn.execute(move, {"_line": number})
    return replace(period, anchor=period.anchor - lead)


def _clocks(
    conn: Connection, queue: str, lines: Sequence[TurnLine], period: Period
) -> tuple[dict[str, Tenant], set[str]]:
    """The clocks of the tenants that wait, by name, and which of them have a row."""
    names = list(dict.fromkeys(line.tenant for line in lines))
    rows: dict[str, Any] = {}
    for start in range(0, len(names), MOST_AT_ONCE):
        part = names[start : start + MOST_AT_ONCE]
        rows |= {row.tenant: row for row in conn.execute(_CLOCKS, {"queue": queue, "names": part})}
    clocks = {}
    for name in names:
        row = rows.get(name)
        finish = row.virtual_finish if row is not None and row.fair_period == period.number else 0
        weight = DEFAULT_WEIGHT if row is None or row.weight is None else row.weight
        clocks[name] = Tenant(finish, weight)
    return clocks, set(rows)


class _Waiting(NamedTuple):
    rank: int
    id: str
    line: TurnLine
    ready_line: int
    """Where it stands when its turn has come."""


def _first_of(conn: Connection, asked: dict[TurnLine, int]) -> dict[str, list[_Waiting]]:
    """The first jobs of lines, as many as are asked of each, by tenant in order of arrival."""
    by_number = {line.number: line for line in asked}
    waiting: dict[str, list[_Waiting]] = defaultdict(list)
    entries = list(asked.items())
    for start in range(0, len(entries), MOST_AT_ONCE):
        part = entries[start : start + MOST_AT_ONCE]
        values = {f"line_{i}": line.number for i, (line, _) in enumerate(part)}
        values |= {f"most_{i}": most for i, (_, most) in enumerate(part)}
        for row in conn.execute(_heads(len(part)), values):
            line = by_number[row.line]
            waiting[line.tenant].append(_Waiting(row.rank, str(row.id), line, line_of_row(row)))
    for found in waiting.values():
        found.sort(key=itemgetter(0, 1))
    return waiting


_WAITING_COLUMNS = ("line", "rank", "id", "queue", "kind", "labels", "permit_key", "limits")


@lru_cache(maxsize=MOST_AT_ONCE)
def _heads(lines: int) -> CompoundSelect[Any]:
    heads = []
    for i in range(lines):
        first = (
            select(*(jobs.c[name] for name in _WAITING_COLUMNS))
            .where(
                jobs.c.line == bindparam(f"line_{i}", type_=BigInteger),
                jobs.c.rank.is_not(None),
                jobs.c.state == word(State.BLOCKED),
            )
            .order_by(jobs.c.rank)
            .limit(bindparam(f"most_{i}", type_=BigInteger))
        )
        heads.append(select(first.subquery(f"head_{i}")))
    return union_all(*heads)


class _Plan(NamedTuple):
    moves: list[tuple[Any, ...]]
    """The values of `_TURN_NAMES`, a job each."""
    finishes: dict[str, int]
    """The clocks that move with them."""
    last_start: int


def _assign(
    period: Period,
    clocks: dict[str, Tenant],
    waiting: dict[str, list[_Waiting]],
    rooms: dict[str, int],
    fresh: Collection[str],
    extra: int,
    most: int,
) -> _Plan:
    """Whose turn comes, and with which ranks; `extra` jobs of the tenants in `fresh` need no room."""
    earliest = sorted((found[0].rank, name) for name, found in waiting.items())
    in_order = {name: clocks[name] for _, name in earliest}  # equals go by arrival
    queued = {name: deque(waiting[name]) for name in in_order}
    left = dict(rooms)
    plan = _Plan([], {}, 0)
    last_rank = 0
    for turn in allot(period.virtual_time, in_order, {name: len(queued[name]) for name in in_order}, most):
        job = queued[turn.tenant].popleft()
        if left[job.line.kind] > 0:
            left[job.line.kind] -= 1
        elif extra > 0 and turn.tenant in fresh:
            extra -= 1
        else:
            continue  # a kind without room lets the tenant's others pass, and costs it nothing
        start = max(period.virtual_time, plan.finishes.get(turn.tenant, clocks[turn.tenant].finish))
        plan.finishes[turn.tenant] = start + cost_of(clocks[turn.tenant].weight)
        last_rank = max(rank_of(period, start), last_rank + 1)  # equals keep their order
        plan.moves.append((job.id, job.rank, job.ready_line, last_rank))
        plan = plan._replace(last_start=max(plan.last_start, start))
    return plan


_TURN_NAMES = ("_id", "_scheduled_for", "_line", "_rank")


def _turn_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Guarded by the place in which it was seen (its rank, under a borrowed name): what was cancelled or became urgent
    is left alone. The place differs from row to row, or PostgreSQL would look for rows that fit and then for their ids.
    """
    return (
        update(jobs)
        .where(match, jobs.c.line < _TOP, jobs.c.rank == value("_scheduled_for"))
        .values(state=word(State.READY), line=value("_line"), rank=value("_rank"))
    )


def _save_clocks(conn: Connection, queue: str, period: int, finishes: dict[str, int], stored: set[str]) -> None:
    old = [
        {"_queue": queue, "_tenant": name, "_period": period, "_finish": finish}
        for name, finish in finishes.items()
        if name in stored
    ]
    new = [
        {"queue": queue, "tenant": name, "fair_period": period, "virtual_finish": finish}
        for name, finish in finishes.items()
        if name not in stored
    ]
    if old:
        conn.execute(_SET_CLOCK, old)
    if new:
        conn.execute(insert(tenants), new)
