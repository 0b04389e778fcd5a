"""One slot on one key over workers that are killed and frozen: attempts that count never overlap."""

from __future__ import annotations

import signal

import pytest

import fencepost
from fencepost import State
from tests.chaos import handlers
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos

_LEASE = 1.5
_JOBS = 120


def test_attempts_of_a_key_with_one_slot_never_overlap_whatever_is_killed_or_frozen(
    app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """S6, S7: judged by fencing tokens, as an outside system would that refuses superseded holders."""
    handles = app.enqueue_many(handlers.alone.build(name=f"job {n}") for n in range(_JOBS))
    doomed = crew.worker(lease=_LEASE, concurrency=4)
    frozen, *_ = [crew.worker(lease=_LEASE, concurrency=4) for _ in range(3)]
    until(lambda: len(journal.starts()) >= 20, "they work", seconds=30)
    doomed.kill()
    seen = len(journal.starts())
    until(lambda: len(journal.starts()) >= seen + 20, "others go on after a kill", seconds=30)
    frozen.signal(signal.SIGSTOP)
    seen = len(journal.starts())
    until(lambda: len(journal.starts()) >= seen + 20, "others go on beside one that is frozen", seconds=30)
    frozen.signal(signal.SIGCONT)

    until(
        lambda: all(handle.job().state == State.SUCCEEDED for handle in handles[-5:]), "the last are done", seconds=40
    )
    until(lambda: not app.store.queue_counts(), "all are done", seconds=20)

    counted = {handle.job().result for handle in handles}
    assert len(counted) == _JOBS
    inside: int | None = None
    newest = 0
    for entry in journal.entries():
        if entry.fence not in counted:
            continue  # of an attempt that lost its lease: its settlement was refused
        if entry.event == "start":
            assert inside is None, f"{entry} starts within {inside}"
            assert entry.fence > newest
            inside = newest = entry.fence
        else:
            assert entry.fence == inside
            inside = None
