"""Which lines hold jobs: a loose scan of the `ready` index, a step a line, whatever the number of jobs in it.

https://wiki.postgresql.org/wiki/Loose_indexscan
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, CompoundSelect, Select, bindparam, func, select, true, union_all
from sqlalchemy.engine import Connection

from fencepost.store.tables import jobs

__all__ = ["MOST_AT_ONCE", "lines_from", "lines_onwards"]

MOST_AT_ONCE = 100
"""Lines asked about in one statement: SQLite takes at most 500 terms in a compound SELECT."""


def lines_from(first: Select[Any], within: ColumnElement[bool] | None = None) -> Select[Any]:
    """The lines from the first one on, in one statement: each step asks for the next line after the last.

    Args:
        first: selects the least of them.
        within: what all of them fulfil, where there are others above.
    """
    bound = true() if within is None else within
    present = first.with_only_columns(func.min(jobs.c.line).label("line")).cte("present", recursive=True)
    after = select(func.min(jobs.c.line)).where(jobs.c.line > present.c.line, bound).scalar_subquery()
    present = present.union_all(select(after).where(present.c.line.is_not(None)))
    return select(present.c.line).where(present.c.line.is_not(None))


def lines_onwards(conn: Connection, known: Iterable[int], *, below: int | None = None) -> set[int]:
    """The lines that follow on `known` ones, where a probe inside a recursion would be a scan.

    Each line is asked for the one after it: those that are known at once, then those that have come since. A line is
    found because the one before it, if any, was found or was asked; so none is missed.

    Args:
        conn: any connection.
        known: where to begin; lines that are gone do no harm.
        below: the end of them, not included; None: there are none above.
    """
    found: set[int] = set()
    asked: set[int] = set()
    asking = sorted(set(known))
    while asking:
        asked.update(asking)
        for start in range(0, len(asking), MOST_AT_ONCE):
            part = asking[start : start + MOST_AT_ONCE]
            after = conn.execute(_lines_after(len(part)), {f"line_{i}": number for i, number in enumerate(part)})
            found.update(row[0] for row in after if row[0] is not None and (below is None or row[0] < below))
        asking = sorted(found - asked)
    return found


@lru_cache(maxsize=MOST_AT_ONCE)
def _lines_after(lines: int) -> CompoundSelect[Any]:
    after = select(func.min(jobs.c.line))
    return union_all(*(after.where(jobs.c.line > bindparam(f"line_{i}", type_=BigInteger)) for i in range(lines)))
