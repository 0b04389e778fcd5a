"""What the demo's schedules have done, compared with what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import select

from fencepost.app import App
from fencepost.demo.audit import Check
from fencepost.demo.jobs import BEAT, PERIOD_SECONDS, PUNCTUAL, SLOW, runs
from fencepost.job import Job, Reason, State

__all__ = ["audit_schedules", "has_missed", "has_overlapped"]

_PAGE = 1000


def has_overlapped(app: App) -> bool:
    """Whether an instant of the slow schedule came while the one before still ran."""
    return any(job.reason == Reason.SINGLETON for job in _occurrences(app, SLOW))


def has_missed(app: App) -> bool:
    """Whether instants of the punctual schedule passed while no worker was there, and a later one ran."""
    states = [job.reason == Reason.MISFIRE for job in _occurrences(app, PUNCTUAL)]
    return any(states) and not states[0]


def audit_schedules(app: App) -> list[Check]:
    """Compare. Everything has to be final."""
    with app.store.transaction() as conn:
        rows = conn.execute(select(runs)).all()
    return [_beat(app, rows), _slow(app, rows), _punctual(app, rows)]


def _beat(app: App, rows: Sequence[Any]) -> Check:
    """Every instant, from the first to the last, ran once, through the kill and the standstill."""
    made = _occurrences(app, BEAT)
    instants = {_second(job.scheduled_for) for job in made}
    expected = _every_second(instants)
    times = Counter(row.scheduled_for for row in rows if row.schedule == BEAT)
    once = sum(times[at] == 1 for at in expected)
    return Check(
        len(expected) > 0
        and once == len(expected) == len(instants) == len(made) == len(times)
        and all(job.state == State.SUCCEEDED for job in made),
        f"schedule '{BEAT}': {len(expected)} seconds from its first to its last, {len(made)} occurrences, "
        f"{once} of them ran exactly once",
    )


def _slow(app: App, rows: Sequence[Any]) -> Check:
    """By their own clocks no two runs overlap, and each holds a higher fencing token than the one before."""
    made = _occurrences(app, SLOW)
    skipped = sum(job.state == State.SKIPPED and job.reason == Reason.SINGLETON for job in made)
    ran = sorted((row for row in rows if row.schedule == SLOW), key=lambda row: row.started)
    overlapping = sum(later.started < earlier.ended for earlier, later in pairwise(ran))
    growing = sum(later.fencing_token > earlier.fencing_token for earlier, later in pairwise(ran))
    return Check(
        not overlapping and growing == len(ran) - 1 and skipped > 0 and len(ran) + skipped == len(made),
        f"schedule '{SLOW}': of {len(made)} occurrences {len(ran)} ran and {skipped} were skipped because one ran; "
        f"{overlapping} ran at the same time; the fencing token grew {growing} of {len(ran) - 1} times",
    )


def _punctual(app: App, rows: Sequence[Any]) -> Check:
    """Every second ran or is counted in a summary of what was missed, and none is both."""
    made = _occurrences(app, PUNCTUAL)
    accounted: Counter[int] = Counter(row.scheduled_for for row in rows if row.schedule == PUNCTUAL)
    ran = len(accounted)
    summaries = [app.jobs.get(job.id).result for job in made if job.reason == Reason.MISFIRE]
    for summary in summaries:
        first, last = (_second(datetime.fromisoformat(summary[end])) for end in ("first", "last"))
        accounted.update(range(first, last + 1, PERIOD_SECONDS))
    expected = _every_second(set(accounted))
    missed = sum(summary["missed"] for summary in summaries)
    return Check(
        ran > 0
        and missed > 0
        and ran + missed == len(expected)
        and all(accounted[at] == 1 for at in expected)
        and ran + len(summaries) == len(made),
        f"schedule '{PUNCTUAL}': of {len(expected)} seconds {ran} ran and {missed} were missed while no worker was "
        f"there, in {len(summaries)} skipped row{'' if len(summaries) == 1 else 's'}",
    )


def _occurrences(app: App, schedule: str) -> list[Job]:
    """All of them, the latest instant first."""
    found: list[Job] = []
    while page := app.schedules.occurrences(schedule, before=found[-1] if found else None, limit=_PAGE):
        found += page
    return found


def _second(at: datetime | None) -> int:
    assert at is not None
    return round(at.timestamp())


def _every_second(instants: set[int]) -> range:
    return range(min(instants), max(instants) + 1, PERIOD_SECONDS) if instants else range(0)
