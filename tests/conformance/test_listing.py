"""Pages of jobs: filters and keyset pages, on every database."""

from __future__ import annotations

import pytest

from fencepost.store import Store
from fencepost.testing import VirtualClock
from tests.jobs import put


@pytest.mark.parametrize("tag", ["mail", "50 %", "a_b", 'say "hi"', "back\\slash", "naïve 😀", "[bold]"])
def test_jobs_are_found_by_a_whole_tag(store: Store, tag: str) -> None:
    """Neither by a part of one, nor by what a pattern would match."""
    wanted = put(store, tags=("other", tag)).id
    put(store, tags=(f"{tag}s", "axb", "50 x"))
    put(store)
    assert [job.id for job in store.list_jobs(tag=tag)] == [wanted]


def test_pages_follow_one_another_without_gap_or_repetition(store: Store, clock: VirtualClock) -> None:
    """Newest first, also when jobs are added between two pages."""
    ids = [put(store).id for _ in range(7)]
    seen: list[str] = []
    before = None
    while page := store.list_jobs(limit=3, before=before):
        seen += [job.id for job in page]
        before = page[-1].id
        put(store)
    assert seen == ids[::-1]


def test_filters_narrow_together(store: Store) -> None:
    """Each is an AND."""
    wanted = put(store, queue="q", tenant="t", key="a").id
    put(store, queue="q", tenant="u")
    put(store, "other", queue="q", tenant="t")
    found = store.list_jobs(states=["ready"], kind="k", queue="q", key="a", tenant="t")
    assert [job.id for job in found] == [wanted]
