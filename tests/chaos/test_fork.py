"""Programs that fork after they have used their app, as servers with a preloaded application do."""

from __future__ import annotations

import sqlite3
from collections import Counter

import pytest
from sqlalchemy import URL

import fencepost
from tests.chaos.fork_main import CHILDREN, THREAD_JOBS
from tests.chaos.journal import Journal
from tests.chaos.processes import Crew
from tests.waiting import until

pytestmark = pytest.mark.chaos

_JOBS = 200


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_children_forked_from_a_busy_program_enqueue_and_work_while_the_parent_ends_first(
    how: str, url: URL, app: fencepost.App, crew: Crew, journal: Journal
) -> None:
    """L1: no connection, lock or id is shared across a fork; what was acknowledged runs, once."""
    parent = crew.run("fork_main", how, _JOBS)
    assert parent.exit_code(within=30) == 0
    until(lambda: parent.answered.count("done child") == CHILDREN, "the children end", seconds=40, look=0.1)

    said = [line.split() for line in parent.answered.splitlines()]
    ids = [words[1] for words in said if words[0] == "id"]
    owners = [words[1] for words in said if words[0] == "owner"]
    assert len(set(ids)) == len(ids) == 25 + 2 * THREAD_JOBS + CHILDREN * _JOBS
    assert len(set(owners)) == CHILDREN
    assert parent.trouble() == []
    starts = Counter(entry.name for entry in journal.starts())
    left = app.jobs.count_live("quick_thread")
    assert left == 0
    assert len(starts) == len(ids)
    assert set(starts.values()) == {1}
    if url.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(url.database))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


@pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
def test_a_child_forked_in_the_middle_of_a_transaction_is_refused_the_file(app: fencepost.App, crew: Crew) -> None:
    """L1: it could only corrupt it; the parent goes on."""
    parent = crew.run("fork_main", "within", 1)
    assert parent.exit_code(within=15) == 0
    until(lambda: "ConfigurationError" in parent.said, "the child is refused")
    assert "was forked in the middle of a transaction" in parent.said
    assert sum(line.startswith("id ") for line in parent.answered.splitlines()) == 10
    assert app.jobs.count_live("quick_thread") == 10
