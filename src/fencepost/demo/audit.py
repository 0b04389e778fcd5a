"""The audit: what was promised, compared with what is in the database when all is settled."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from sqlalchemy import select

from fencepost.app import App
from fencepost.demo.jobs import QUEUE, Figures, figures_of, files
from fencepost.job import Job, Priority, Reason, State

__all__ = ["Check", "Enqueued", "audit", "median_waits"]

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What the demo asked for and was told.

    Attributes:
        asked: how many enqueues were asked for.
        files: the files to be counted, by the ids of their jobs.
        failing: ids of jobs that fail at first.
        delayed: ids of jobs that start later.
        digest: the id of the job that runs in a process.
    """

    asked: int
    files: dict[str, str]
    failing: frozenset[str]
    delayed: frozenset[str]
    digest: str

    @property
    def acknowledged(self) -> frozenset[str]:
        """The ids that were returned after a commit."""
        return frozenset(self.files) | {self.digest}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was promised."""

    is_kept: bool
    said: str


def audit(app: App, enqueued: Enqueued, died: Collection[str], killed: str) -> list[Check]:
    """Compare.

    Args:
        app: the demo's.
        enqueued: what was asked for.
        died: the ids of the jobs that ran on the killed worker when it was killed.
        killed: that worker's name in the database.
    """
    jobs = _jobs(app)
    return [
        _acknowledged(enqueued, jobs),
        _settled(enqueued, jobs),
        _run_again(app, died, killed),
        _failed_first(app, enqueued),
        _delayed(enqueued, jobs),
        *_rows(app, enqueued),
        _digest(app, enqueued),
    ]


def median_waits(app: App, start: datetime) -> dict[str, float]:
    """Seconds from `start` until half the jobs of a priority had started."""
    waits: dict[str, list[float]] = {}
    for job in _jobs(app).values():
        if job.started_at is not None:
            waits.setdefault(str(job.priority), []).append((job.started_at - start).total_seconds())
    return {priority: median(waits[priority]) for priority in Priority if priority in waits}


def _jobs(app: App) -> dict[str, Job]:
    found: dict[str, Job] = {}
    before: str | None = None
    while page := app.jobs.list(queue=QUEUE, limit=_PAGE, before=before):
        found |= {job.id: job for job in page}
        before = page[-1].id
    return found


def _acknowledged(enqueued: Enqueued, jobs: dict[str, Job]) -> Check:
    acknowledged = enqueued.acknowledged
    there = acknowledged & jobs.keys()
    return Check(
        enqueued.asked == len(acknowledged) == len(there) == len(jobs),
        f"{enqueued.asked} jobs enqueued, {len(acknowledged)} acknowledged, {len(there)} of these in the database"
        + (f", and {len(jobs) - len(there)} more" if len(jobs) > len(there) else ""),
    )


def _settled(enqueued: Enqueued, jobs: dict[str, Job]) -> Check:
    states = Counter(job.state for job in jobs.values())
    succeeded, failed = states[State.SUCCEEDED], states[State.FAILED]
    return Check(
        succeeded == len(enqueued.acknowledged) and len(states) == 1,
        f"{succeeded} succeeded, {failed} failed, {len(jobs) - succeeded - failed} otherwise",
    )


def _run_again(app: App, died: Collection[str], killed: str) -> Check:
    again = 0
    for job_id in died:
        job = app.store.get(job_id)
        if job is None:
            continue
        lost = any(attempt.reason == Reason.LEASE_EXPIRED and attempt.worker == killed for attempt in job.history)
        again += lost and job.attempts > 1 and job.state == State.SUCCEEDED
    return Check(
        0 < again == len(died),
        f"{len(died)} attempts died with the killed worker; {again} of these jobs were run again and succeeded",
    )


def _failed_first(app: App, enqueued: Enqueued) -> Check:
    failing = [app.store.get(job_id) for job_id in enqueued.failing]
    tried_again = sum(job is not None and job.attempts > 1 for job in failing)
    return Check(
        tried_again == len(enqueued.failing),
        f"{len(enqueued.failing)} jobs were to fail at first, {tried_again} were tried again after their backoff",
    )


def _delayed(enqueued: Enqueued, jobs: dict[str, Job]) -> Check:
    late = [jobs[job_id] for job_id in enqueued.delayed if job_id in jobs]
    early = sum(job.started_at is None or job.started_at < job.run_at for job in late)
    return Check(
        not early and len(late) == len(enqueued.delayed), f"{len(late)} jobs were delayed, {early} of them came early"
    )


def _rows(app: App, enqueued: Enqueued) -> list[Check]:
    with app.store.transaction() as conn:
        stored = conn.execute(select(files)).all()
    times = Counter(row.job_id for row in stored)
    once = sum(times[job_id] == 1 for job_id in enqueued.files)
    direct = {job_id: figures_of(path) for job_id, path in enqueued.files.items()}
    mine = {row.job_id: Figures(row.lines, row.bytes, row.sha256) for row in stored}
    agreeing = sum(mine[job_id].sha256 == direct[job_id].sha256 for job_id in mine.keys() & direct.keys())
    return [
        Check(
            once == len(stored) == len(enqueued.files),
            f"{len(stored)} rows in the application's own table for {len(enqueued.files)} jobs, {once} exactly once",
        ),
        Check(
            mine == direct,
            f"in the table {_totals(list(mine.values()))}; counted directly {_totals(list(direct.values()))}; "
            f"{agreeing} SHA-256 agree",
        ),
    ]


def _totals(figures: Sequence[Figures]) -> str:
    return f"{sum(one.lines for one in figures):,} lines, {sum(one.bytes for one in figures):,} bytes"


def _digest(app: App, enqueued: Enqueued) -> Check:
    whole = hashlib.sha256()
    for path in enqueued.files.values():
        whole.update(figures_of(path).sha256.encode())
    job = app.store.get(enqueued.digest)
    result = None if job is None else job.result
    return Check(
        result == whole.hexdigest(),
        f"the job that ran in a process returned {str(result)[:12]}..., directly it is {whole.hexdigest()[:12]}...",
    )
