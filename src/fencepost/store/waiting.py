"""Those who wait at a gate: how they are woken.

A job that was refused stands `blocked` in the negative line of the gate that lacked room, with the rank that it had,
where no claim looks. Whoever frees room, or finds that there is some, wakes the best-ranked; a woken job asks for
everything that it needs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Update, bindparam, func, literal_column, select, update
from sqlalchemy.engine import Connection

from fencepost.job import State
from fencepost.store.dialects import Dialect
from fencepost.store.tables import LEAST_PERMIT_LINE, jobs, line_of_row, word

__all__ = ["best_waiting_rank", "first_waiting", "put_aside", "waiting_lines", "waiting_member", "wake"]

_WAITING_COLUMNS = ("id", "queue", "kind", "labels", "permit_key", "permit_slots", "limits", "line")

# Served by the `ready` index: those who wait at a gate stand in its own line, in rank order.
_WAITING = select(*(jobs.c[name] for name in _WAITING_COLUMNS))
_FIRST_WAITING = (
    _WAITING.where(
        jobs.c.line == bindparam("line", type_=BigInteger),
        jobs.c.rank.is_not(None),
        jobs.c.state == word(State.BLOCKED),
    )
    .order_by(jobs.c.rank)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_BEST_RANK = select(func.min(jobs.c.rank)).where(jobs.c.line == bindparam("line", type_=BigInteger))
_NEXT_LINE = select(func.max(jobs.c.line)).where(
    jobs.c.line < bindparam("above", type_=BigInteger),
    jobs.c.line >= literal_column(str(LEAST_PERMIT_LINE), BigInteger),  # below wait those whose turn has not come
)
_MEMBER = _WAITING.where(jobs.c.line == bindparam("line", type_=BigInteger)).limit(1)

_WAKE_NAMES = ("_id", "_line")


def _wake_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Served by the primary key. The count is the jobs that still waited."""
    return (
        update(jobs)
        .where(match, jobs.c.state == word(State.BLOCKED))
        .values(state=word(State.READY), line=value("_line"))
    )


def _put_aside_rows(match: ColumnElement[bool], value: Callable[[str], ColumnElement[Any]]) -> Update:
    """Served by the primary key."""
    return update(jobs).where(match, jobs.c.state == word(State.BLOCKED)).values(line=value("_line"))


def first_waiting(conn: Connection, line: int, most: int) -> list[Any]:
    """The best-ranked of those who wait in a line, locked; those whom somebody else is waking are passed over."""
    return list(conn.execute(_FIRST_WAITING, {"line": line, "most": most}))


def wake(dialect: Dialect, conn: Connection, rows: list[Any]) -> int:
    """Make jobs that wait ready, in their old places. Returns how many."""
    if not rows:
        return 0
    moves = sorted((str(row.id), line_of_row(row)) for row in rows)
    return sum(dialect.update_rows(conn, _wake_rows, _WAKE_NAMES, moves))


def put_aside(dialect: Dialect, conn: Connection, rows: list[Any], line: int) -> None:
    """Let jobs that wait go on waiting in another line."""
    dialect.update_rows(conn, _put_aside_rows, _WAKE_NAMES, sorted((str(row.id), line) for row in rows))


def best_waiting_rank(conn: Connection, line: int) -> int | None:
    """The best rank of those who wait in a line."""
    found = conn.execute(_BEST_RANK, {"line": line}).scalar()
    return None if found is None else int(found)


def waiting_lines(conn: Connection, above: int, most: int) -> list[int]:
    """The lines in which jobs wait, downwards from `above`: a loose scan, a step a line."""
    lines: list[int] = []
    while len(lines) < most:
        line = conn.execute(_NEXT_LINE, {"above": above}).scalar()
        if line is None:
            break
        lines.append(int(line))
        above = int(line)
    return lines


def waiting_member(conn: Connection, line: int) -> Any:
    """One of those who wait in a line, or None."""
    return conn.execute(_MEMBER, {"line": line}).first()
