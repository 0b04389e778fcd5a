"""Start-time fair queueing as pure functions, simulated over random workloads."""

from __future__ import annotations

from collections import Counter, deque
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.job import Priority
from fencepost.planning.fairness import (
    MOST_LEAD,
    Period,
    Tenant,
    allot,
    cost_of,
    excess_lead,
    period_at,
    rank_of,
)
from fencepost.planning.rank import rank

WEIGHTS = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 7.0])
TENANTS = st.dictionaries(st.sampled_from("abcdefgh"), WEIGHTS, min_size=2)
NOW = 1_800_000_000_000_000
BASE = rank(Priority.NORMAL, 0)


class World:
    """One server that starts jobs in the order of their starts, and tenants whose jobs get turns as they come."""

    def __init__(self, weights: dict[str, float], ahead: int) -> None:
        self.weights = weights
        self.ahead = ahead
        self.waiting: dict[str, deque[int]] = {}
        self.finishes: dict[str, int] = dict.fromkeys(weights, 0)
        self.ready: list[tuple[int, int, str, int]] = []
        self.virtual_time = 0
        self.started: list[tuple[str, int]] = []
        self._number = 0

    def come(self, tenant: str, jobs: int) -> None:
        for _ in range(jobs):
            self._number += 1
            self.waiting.setdefault(tenant, deque()).append(self._number)

    def give_turns(self) -> None:
        if self.ready:
            self.virtual_time = max(self.virtual_time, min(self.ready)[0])
        names = [name for name, own in self.waiting.items() if own]
        clocks = {name: Tenant(self.finishes[name], self.weights[name]) for name in names}
        room = self.ahead - len(self.ready)
        for turn in allot(self.virtual_time, clocks, {name: len(self.waiting[name]) for name in names}, room):
            self.finishes[turn.tenant] = turn.start + cost_of(self.weights[turn.tenant])
            number = self.waiting[turn.tenant].popleft()
            self.ready.append((turn.start, len(self.started) + len(self.ready), turn.tenant, number))

    def start(self) -> str:
        first = min(self.ready)
        self.ready.remove(first)
        self.virtual_time = max(self.virtual_time, first[0])
        self.started.append((first[2], first[3]))
        return first[2]


@given(TENANTS)
@settings(max_examples=60, deadline=None)
def test_shares_follow_the_weights_within_five_percent_while_all_are_backlogged(weights: dict[str, float]) -> None:
    turns = allot(0, {name: Tenant(0, weight) for name, weight in weights.items()}, dict.fromkeys(weights, 5000), 5000)
    counts = Counter(turn.tenant for turn in turns)
    for name, weight in weights.items():
        due = 5000 * weight / sum(weights.values())
        assert abs(counts[name] - due) <= max(0.05 * due, 1 + weight / min(weights.values()))


@given(TENANTS, st.lists(st.integers(1, 400), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_two_backlogged_tenants_never_differ_by_more_than_a_job_of_each(
    weights: dict[str, float], batches: list[int]
) -> None:
    """Theorem 1 of the paper, after every start, with rounding of at most a nanosecond a job."""
    world = World(weights, ahead=50)
    for name in weights:
        world.come(name, 5000)
    served: Counter[str] = Counter()
    for batch in batches:
        world.give_turns()
        for _ in range(min(batch, len(world.ready))):
            served[world.start()] += 1
        shares = {name: Fraction(served[name]) / Fraction(weight) for name, weight in weights.items()}
        slowest, fastest = min(weights, key=lambda name: shares[name]), max(weights, key=lambda name: shares[name])
        bound = 1 / Fraction(weights[slowest]) + 1 / Fraction(weights[fastest])
        assert shares[fastest] - shares[slowest] <= bound + Fraction(1, 100)


@given(TENANTS, st.integers(1, 500), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_fresh_job_of_an_idle_tenant_starts_after_at_most_one_job_of_every_other(
    weights: dict[str, float], already: int, ahead: int
) -> None:
    """Within one round, whatever waits, and whatever the weights."""
    idle, *others = weights
    world = World(weights, ahead)
    for name in others:
        world.come(name, 1000)
    for _ in range(already):
        world.give_turns()
        world.start()
    world.come(idle, 1)
    world.give_turns()
    before = []
    while (tenant := world.start()) != idle:
        before.append(tenant)
        world.give_turns()
    assert all(count <= 1 for count in Counter(before).values())


@given(TENANTS, st.integers(100, 1000))
@settings(max_examples=40, deadline=None)
def test_an_idle_tenant_gains_no_credit(weights: dict[str, float], idle_for: int) -> None:
    """From its return on it has its share, as if it had never been away."""
    idle, other = list(weights)[:2]
    world = World(weights, ahead=20)
    world.come(other, 3000)
    for _ in range(idle_for):
        world.give_turns()
        world.start()
    world.come(idle, 3000)
    served: Counter[str] = Counter()
    for _ in range(400):
        world.give_turns()
        served[world.start()] += 1
    due = 400 * weights[idle] / (weights[idle] + weights[other])
    assert served[idle] <= due + 2 + weights[idle] / weights[other]


@given(
    TENANTS,
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 6), st.integers(0, 6)), max_size=60),
    st.integers(1, 30),
)
@settings(max_examples=60, deadline=None)
def test_every_job_starts_once_and_those_of_a_tenant_in_the_order_in_which_they_came(
    weights: dict[str, float], steps: list[tuple[str, int, int]], ahead: int
) -> None:
    """No starvation, and first come, first served between equals."""
    world = World(weights, ahead)
    for tenant, coming, starting in steps:
        if tenant in weights:
            world.come(tenant, coming)
        world.give_turns()
        for _ in range(min(starting, len(world.ready))):
            world.start()
    while world.ready or any(world.waiting.values()):
        world.give_turns()
        world.start()
    for name in weights:
        own = [number for tenant, number in world.started if tenant == name]
        assert own == sorted(own)
    assert sorted(number for _, number in world.started) == list(range(1, world._number + 1))


def test_a_period_ends_when_nobody_waited() -> None:
    """Then nobody owes anything, and ranks are those of arrival again."""
    period = Period(7, NOW - 5_000_000, 3_000_000_000, 4_000_000_000)
    assert period_at(period, None, NOW, is_backlogged=False) == Period(8, NOW, 0, 0)
    assert period_at(period, None, NOW, is_backlogged=True).virtual_time == 4_000_000_000
    assert period_at(period, rank_of(period, 3_500_000_000), NOW, is_backlogged=True).virtual_time == 3_500_000_000
    assert period_at(period, BASE, NOW, is_backlogged=True).virtual_time == 3_000_000_000  # it never goes back


def test_a_virtual_time_that_leads_the_clock_too_far_is_moved_back() -> None:
    """Or a fair queue that drains quickly would stand behind all others."""
    assert excess_lead(Period(1, NOW, 10**9, 0), NOW) == 0
    assert excess_lead(Period(1, NOW, (MOST_LEAD + 1) * 1000, 0), NOW) == MOST_LEAD + 1
