"""Random graphs of jobs that wait for each other against a small model of when each may run.

The model looks at states alone: a job waits until every job before it is final, and then runs, or is skipped. How the
store finds out (marks, signals, counts) is not in it. Planners that die between two of their transactions, retries and
cancellations come at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fencepost.job import Claim, Dependency, When
from fencepost.store import Store
from fencepost.store.dependencies import attach, pass_on
from fencepost.store.promote import promote_due
from fencepost.testing import VirtualClock
from tests.jobs import clear, new, rows

FINAL = ("succeeded", "failed", "cancelled", "skipped")
WANTED = {When.SUCCESS: ("succeeded",), When.FAILURE: ("failed",), When.COMPLETION: FINAL}
PLACE = st.integers(0, 200)
LINKS = st.lists(st.tuples(PLACE, st.sampled_from(When)), max_size=4)


@dataclass
class Node:
    """One job as the promises have it."""

    after: dict[str, When]
    state: str = "ready"
    below: list[str] = field(default_factory=list)


class Graph(RuleBasedStateMachine):
    """Drives a store and the model side by side."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        super().__init__()
        clear(store)
        self.store = store
        self.clock = clock
        self.nodes: dict[str, Node] = {}
        self.claims: dict[str, Claim] = {}
        self.is_half_way = False

    def chosen(self, place: int, *states: str) -> str | None:
        found = [job_id for job_id, node in self.nodes.items() if node.state in states]
        return found[place % len(found)] if found else None

    def settle_down(self) -> None:
        """What the states of all others make of those that wait: until nothing changes."""
        changed = True
        while changed:
            changed = False
            for node in self.nodes.values():
                if node.state != "blocked":
                    continue
                ended = {one: self.nodes[one].state for one in node.after if self.nodes[one].state in FINAL}
                if any(state not in WANTED[node.after[one]] for one, state in ended.items()):
                    node.state, changed = "skipped", True
                elif len(ended) == len(node.after):
                    node.state, changed = "ready", True

    @rule(graph=st.lists(LINKS, min_size=1, max_size=5))
    def enqueue(self, graph: list[list[tuple[int, When]]]) -> None:
        """A graph whose jobs wait for earlier ones of it, and for any that are there already."""
        built = []
        for links in graph:
            ids = list(self.nodes)
            after = {ids[-1 - place % len(ids)]: when for place, when in links} if ids else {}
            job = new(after=tuple(Dependency(job_id, when) for job_id, when in after.items()))
            built.append(job)
            self.nodes[job.id] = Node(after, "blocked" if after else "ready")
            for one in after:
                self.nodes[one].below.append(job.id)
        assert all(result.created for result in self.store.enqueue_together(built))

    @rule(number=st.integers(1, 4))
    def claim(self, number: int) -> None:
        self.look()
        for claim in self.store.claim("me", kinds=["k"], limit=number):
            node = self.nodes[claim.id]
            assert node.state == "ready"
            node.state = "running"
            self.claims[claim.id] = claim

    @rule(place=PLACE, end=st.sampled_from(["succeeded", "succeeded", "succeeded", "failed", "cancelled"]))
    def end(self, place: int, end: str) -> None:
        job_id = self.chosen(place, "running")
        if job_id is None:
            return
        claim = self.claims.pop(job_id)
        if end == "succeeded":
            assert self.store.complete(claim, job_id)
        elif end == "failed":
            assert self.store.abandon(claim, "no")
        else:
            assert self.store.cancel(claim)
        self.nodes[job_id].state = end

    @rule(place=PLACE)
    def cancel(self, place: int) -> None:
        self.look()
        job_id = self.chosen(place, "blocked", "ready")
        if job_id is not None:
            assert self.store.cancel_job(job_id)
            self.nodes[job_id].state = "cancelled"

    @rule(place=PLACE)
    def retry(self, place: int) -> None:
        if self.is_half_way:  # what was done counts, and the model does not know what that is
            self.look()
        job_id = self.chosen(place, "failed", "cancelled", "skipped")
        if job_id is None:
            return
        assert self.store.retry_job(job_id).created
        self.nodes[job_id].state = "ready"
        revived = [job_id]
        while revived:
            for below in self.nodes[revived.pop()].below:
                if self.nodes[below].state == "skipped":
                    self.nodes[below].state = "blocked"
                    revived.append(below)

    @rule(batch=st.integers(1, 4))
    def die_half_way(self, batch: int) -> None:
        """A planner that sees what is due, passes on a part of it, and is gone."""
        database = self.store.database
        due = database.write(lambda conn: promote_due(database, conn, batch=batch))
        database.write(lambda conn: attach(database, conn, due.waiting[:1]))
        database.write(lambda conn: pass_on(database, conn, due.ended, batch=1))
        self.is_half_way = True

    @rule()
    def look(self) -> None:
        """Planners look until nothing is due; then every state is the model's."""
        while self.store.promote_due(batch=3) >= 3 or self.store.next_wake() == self.clock.now():
            pass
        self.is_half_way = False
        self.settle_down()
        found = {row["id"]: row["state"] for row in rows(self.store)}
        assert found == {job_id: node.state for job_id, node in self.nodes.items()}

    def teardown(self) -> None:
        """In the end nobody waits in vain: what can run has run."""
        self.look()
        while claims := self.store.claim("me", kinds=["k"], limit=50):
            for claim in claims:
                assert self.nodes[claim.id].state == "ready"
                assert self.store.complete(claim)
                self.nodes[claim.id].state = "succeeded"
            for job_id, claim in self.claims.items():
                assert self.store.complete(claim)
                self.nodes[job_id].state = "succeeded"
            self.claims.clear()
            self.look()


@pytest.mark.parametrize("database_name", ["sqlite", "postgresql"], indirect=True)
def test_random_graphs_run_as_their_conditions_say(store: Store, clock: VirtualClock) -> None:
    """Released once, skipped all the way down, revived by a retry, whatever comes between."""
    is_cheap = store.database.dialect.name == "sqlite"
    bounded = settings(
        max_examples=15 if is_cheap else 6,
        stateful_step_count=20,
        deadline=None,
        phases=[phase for phase in Phase if is_cheap or phase not in (Phase.shrink, Phase.explain)],
        suppress_health_check=list(HealthCheck),
    )
    machine: Any = lambda: Graph(store, clock)  # noqa: E731 - Hypothesis asks for a class or a function like one
    run_state_machine_as_test(machine, settings=bounded)
