"""Figures of fixed starts, for people: how many were kept of those that ended lately. Nothing here writes."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.engine import Connection

from fencepost.job import Micros, Reason, State
from fencepost.planning.fixed_start import StartFigures, is_kept
from fencepost.store.rows import UNREADABLE, fixed_start
from fencepost.store.tables import jobs

__all__ = ["start_figures"]

_MOST_READ = 10_000

# Served by the `finished` index.
_ENDED = (
    select(jobs.c.state, jobs.c.reason, jobs.c.started_at, jobs.c.options, jobs.c.history)
    .where(jobs.c.finished_at >= bindparam("since"), jobs.c.options.contains('"start"'))
    .order_by(jobs.c.finished_at.desc())
    .limit(_MOST_READ)
)


def start_figures(conn: Connection, since: Micros) -> StartFigures:
    """What became of the fixed starts of the jobs that ended since an instant; of the newest 10,000 of them."""
    counts = {"kept": 0, "late": 0, "skipped": 0, "failed": 0}
    for row in conn.execute(_ENDED, {"since": since}):
        try:
            word = _what_became(row)
        except UNREADABLE:
            continue
        if word is not None:
            counts[word] += 1
    return StartFigures(**counts)


def _what_became(row: Any) -> str | None:
    start = fixed_start(json.loads(row.options))
    if start is None or row.started_at is None:
        return None  # cancelled before it came to that
    if row.reason == Reason.MISSED_START:
        return "skipped" if row.state == State.SKIPPED else "failed"
    history = json.loads(row.history or "[]")
    if any(entry.get("reason") == Reason.MISSED_START for entry in history):
        return "late"
    # A retry overwrites the instant of the first start, whose lateness would stand in the history.
    return "kept" if history or is_kept(start, row.started_at) else "late"
