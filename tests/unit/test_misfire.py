"""What one pass plans: which instants run, which are summarised, where the cursor goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.job import Micros
from fencepost.planning import misfire as planning
from fencepost.planning.cron import fires_after
from fencepost.planning.misfire import MOST_AT_ONCE, Missed, Plan, plan_pass
from fencepost.schedule import Cron, Every, Misfire, Once, Timing
from tests.unit.cron_oracle import MINUTE, at

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
FIVE = 5 * MINUTE

EVERY_FIVE = Cron("*/5 * * * *")
NOON = at("2026-06-01T12:00Z")
EVENING = at("2026-06-01T18:00Z")
MISSED = [NOON + n * FIVE for n in range(1, 73)]  # 12:05 to 18:00


def plan(timing: Timing, cursor: Micros, now: Micros, **asked: Any) -> Plan:
    """`plan_pass` with a schedule's defaults."""
    defaults: dict[str, Any] = {"misfire": Misfire.LATEST, "max_catch_up": 100, "grace": MINUTE}
    return plan_pass(timing, cursor, now, **defaults | asked)


def passes(timing: Timing, cursor: Micros, now: Micros, **asked: Any) -> tuple[list[Plan], Micros | None]:
    """Passes at one instant until none is due, as the planner makes them; and the cursor at their end."""
    made: list[Plan] = []
    following: Micros | None = cursor
    left = asked.pop("runs_left", None)
    while following is not None and following <= now:
        made.append(plan(timing, following, now, runs_left=left, **asked))
        following = made[-1].cursor
        left = None if left is None else left - len(made[-1].fires)
    return made, following


# Six hours of downtime, 72 instants


@pytest.mark.parametrize(
    ("policy", "grace", "fires", "missed"),
    [
        ("skip", 0, [], Missed(72, MISSED[0], MISSED[-1])),
        ("skip", MINUTE, MISSED[-1:], Missed(71, MISSED[0], MISSED[-2])),
        ("skip", DAY, MISSED, None),
        ("latest", 0, MISSED[-1:], Missed(71, MISSED[0], MISSED[-2])),
        ("latest", MINUTE, MISSED[-1:], Missed(71, MISSED[0], MISSED[-2])),
        ("latest", 11 * MINUTE, MISSED[-3:], Missed(69, MISSED[0], MISSED[-4])),
        ("latest", DAY, MISSED, None),
        ("catch_up", 0, MISSED, None),
        ("catch_up", MINUTE, MISSED, None),
        ("catch_up", DAY, MISSED, None),
    ],
)
def test_of_72_missed_instants_each_policy_runs_its_own_and_the_next_one_is_the_same(
    policy: str, grace: Micros, fires: list[Micros], missed: Missed | None
) -> None:
    """S5."""
    found = plan(EVERY_FIVE, MISSED[0], EVENING + 30 * SECOND, misfire=Misfire(policy), grace=grace)

    assert found == Plan(tuple(fires), missed, EVENING + FIVE)


def test_catching_up_runs_the_newest_that_it_may_and_summarises_the_older_ones() -> None:
    """S5."""
    found = plan(EVERY_FIVE, MISSED[0], EVENING + 30 * SECOND, misfire=Misfire.CATCH_UP, max_catch_up=10)

    # What is within the grace runs beside them.
    assert found == Plan(tuple(MISSED[-11:]), Missed(61, MISSED[0], MISSED[-12]), EVENING + FIVE)


def test_an_instant_is_late_up_to_the_grace_and_missed_beyond() -> None:
    """S5."""
    for policy in Misfire:
        on_the_edge = plan(EVERY_FIVE, NOON, NOON + MINUTE, misfire=policy)
        assert on_the_edge == Plan((NOON,), None, NOON + FIVE), policy
    assert plan(EVERY_FIVE, NOON, NOON + MINUTE + 1, misfire=Misfire.SKIP) == Plan(
        (), Missed(1, NOON, NOON), NOON + FIVE
    )
    assert plan(EVERY_FIVE, NOON, NOON + MINUTE + 1) == Plan((NOON,), None, NOON + FIVE)


def test_what_is_not_due_is_left_alone() -> None:
    assert plan(EVERY_FIVE, NOON, NOON - 1) == Plan((), None, NOON)
    assert plan(EVERY_FIVE, NOON, NOON) == Plan((NOON,), None, NOON + FIVE)


def test_the_same_cursor_and_clock_plan_the_same_and_the_new_cursor_plans_nothing_more() -> None:
    """S5, S1."""
    for policy in Misfire:
        now = EVENING + 30 * SECOND
        first = plan(EVERY_FIVE, MISSED[0], now, misfire=policy)
        assert plan(EVERY_FIVE, MISSED[0], now, misfire=policy) == first
        assert first.cursor is not None
        assert plan(EVERY_FIVE, first.cursor, now, misfire=policy) == Plan((), None, first.cursor)


# In parts


def test_a_long_catch_up_is_made_in_parts_and_in_all_no_more_than_it_may_be() -> None:
    """S5."""
    start, missed = NOON, 2 * MOST_AT_ONCE + 700
    now = start + (missed - 1) * SECOND + 1
    most = 2 * MOST_AT_ONCE + 200
    made, cursor = passes(Every(SECOND), start, now, misfire=Misfire.CATCH_UP, max_catch_up=most, grace=0)

    assert [len(part.fires) for part in made] == [MOST_AT_ONCE, MOST_AT_ONCE, 200]
    assert [instant for part in made for instant in part.fires] == [start + n * SECOND for n in range(500, missed)]
    assert [part.missed for part in made] == [Missed(500, start, start + 499 * SECOND), None, None]
    assert cursor == start + missed * SECOND


def test_what_is_late_is_made_in_parts_too_without_looking_at_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5."""
    looked = 0

    def counted(timing: Timing, after: Micros) -> Iterator[Micros]:
        nonlocal looked
        for instant in fires_after(timing, after):
            looked += 1
            yield instant

    monkeypatch.setattr(planning, "fires_after", counted)
    found = plan(Every(SECOND), NOON, NOON + DAY, grace=2 * DAY)

    assert found == Plan(tuple(NOON + n * SECOND for n in range(MOST_AT_ONCE)), None, NOON + MOST_AT_ONCE * SECOND)
    assert looked <= MOST_AT_ONCE + 1


@pytest.mark.parametrize("timing", [Every(SECOND), Cron("* * * * * *", "Europe/Berlin")], ids=["every", "cron"])
@pytest.mark.parametrize("policy", [Misfire.SKIP, Misfire.LATEST])
def test_a_day_of_seconds_costs_one_summary_and_few_steps(
    timing: Timing, policy: Misfire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5."""
    looked = 0

    def counted(timing: Timing, after: Micros) -> Iterator[Micros]:
        nonlocal looked
        for instant in fires_after(timing, after):
            looked += 1
            yield instant

    monkeypatch.setattr("fencepost.planning.misfire.fires_after", counted)
    monkeypatch.setattr("fencepost.planning.cron.fires_after", counted)
    now = NOON + DAY
    found = plan(timing, NOON, now, misfire=policy, grace=10 * SECOND)

    assert found.fires == tuple(now - n * SECOND for n in range(10, -1, -1))
    assert found.missed == Missed(86_400 - 10, NOON, now - 11 * SECOND)
    assert found.cursor == now + SECOND
    assert looked < 500


# Ends


def test_nothing_fires_after_until_and_the_cursor_ends() -> None:
    until = NOON + 2 * FIVE

    assert plan(EVERY_FIVE, NOON, NOON, until=until) == Plan((NOON,), None, NOON + FIVE)
    assert plan(EVERY_FIVE, until, until, until=until) == Plan((until,), None, None)
    assert plan(EVERY_FIVE, until + FIVE, until + FIVE, until=until) == Plan((), None, None)
    assert plan(EVERY_FIVE, NOON, EVENING, until=until, misfire=Misfire.CATCH_UP) == Plan(
        (NOON, NOON + FIVE, until), None, None
    )
    assert plan(EVERY_FIVE, NOON, EVENING, until=until) == Plan((until,), Missed(2, NOON, NOON + FIVE), None)
    assert plan(EVERY_FIVE, NOON, NOON, until=NOON + 1) == Plan((NOON,), None, None)


def test_it_makes_max_runs_occurrences_and_no_more() -> None:
    now = EVENING + 30 * SECOND

    assert plan(EVERY_FIVE, NOON, NOON, runs_left=2) == Plan((NOON,), None, NOON + FIVE)
    assert plan(EVERY_FIVE, NOON, NOON, runs_left=1) == Plan((NOON,), None, None)
    assert plan(EVERY_FIVE, NOON, NOON, runs_left=0) == Plan((), None, None)
    assert plan(EVERY_FIVE, MISSED[0], now, runs_left=3, misfire=Misfire.CATCH_UP) == Plan(
        tuple(MISSED[:3]), None, None
    )
    assert plan(EVERY_FIVE, MISSED[0], now, runs_left=1, grace=0) == Plan(
        (MISSED[-1],), Missed(71, MISSED[0], MISSED[-2]), None
    )
    assert plan(EVERY_FIVE, MISSED[0], now, runs_left=5, misfire=Misfire.SKIP, grace=0) == Plan(
        (), Missed(72, MISSED[0], MISSED[-1]), EVENING + FIVE
    )


def test_instants_that_have_an_occurrence_already_hide_none_behind_them() -> None:
    """However many they are: the cursor goes to the first that is left, and never past one."""
    cursor, now = NOON, NOON + 2000 * SECOND
    taken = frozenset(range(cursor, cursor + MOST_AT_ONCE * SECOND, SECOND))
    made: list[Micros] = []
    following: Micros | None = cursor
    while following is not None and following <= now:
        one = plan(Every(SECOND), following, now, grace=DAY, taken=taken, runs_left=100_000)
        made += one.fires
        following = one.cursor
    assert made == list(range(cursor + MOST_AT_ONCE * SECOND, now + 1, SECOND))


def test_a_single_instant_that_was_missed_runs_late_or_is_summarised() -> None:
    """S5."""
    once = Once(NOON)

    assert plan(once, NOON, NOON + DAY) == Plan((NOON,), None, None)
    assert plan(once, NOON, NOON + DAY, misfire=Misfire.CATCH_UP) == Plan((NOON,), None, None)
    assert plan(once, NOON, NOON + DAY, misfire=Misfire.SKIP) == Plan((), Missed(1, NOON, NOON), None)


def test_a_cursor_that_is_no_instant_any_more_goes_on_with_those_that_are() -> None:
    # The zone's rules changed since it was set.
    assert plan(EVERY_FIVE, NOON + 7 * SECOND, NOON + FIVE) == Plan((NOON + FIVE,), None, NOON + 2 * FIVE)


TIMINGS = st.one_of(
    st.builds(Every, st.integers(SECOND, HOUR), st.integers(0, DAY)),
    st.sampled_from([EVERY_FIVE, Cron("30 2 * * *", "America/New_York"), Cron("* * * * *"), Cron("0 9,17 * * 1-5")]),
)


@given(
    timing=TIMINGS,
    policy=st.sampled_from(Misfire),
    max_catch_up=st.integers(1, 1200),
    grace=st.integers(0, 2 * HOUR),
    down=st.integers(0, 2 * DAY),
    until=st.none() | st.integers(-HOUR, 2 * DAY),
    runs_left=st.none() | st.integers(0, 1300),
)
@settings(max_examples=200, deadline=None)
def test_every_instant_runs_once_or_is_counted_once(
    timing: Timing,
    policy: Misfire,
    max_catch_up: int,
    grace: Micros,
    down: Micros,
    until: Micros | None,
    runs_left: int | None,
) -> None:
    """S1, S5."""
    start = next(fires_after(timing, NOON))
    now = start + down
    last = now if until is None else min(now, start + until)
    everything = []
    for instant in fires_after(timing, start - 1):
        if instant > last:
            break
        everything.append(instant)
    late = [instant for instant in everything if instant >= now - grace]
    beyond = everything[: len(everything) - len(late)]
    keeps = {Misfire.SKIP: 0, Misfire.LATEST: 0 if late else 1, Misfire.CATCH_UP: max_catch_up}[policy]
    chosen = beyond[len(beyond) - keeps :] if keeps < len(beyond) else beyond
    dropped = beyond[: len(beyond) - len(chosen)]
    wanted = [*chosen, *late]

    made, cursor = passes(
        timing,
        start,
        now,
        misfire=policy,
        max_catch_up=max_catch_up,
        grace=grace,
        until=None if until is None else start + until,
        runs_left=runs_left,
    )

    assert [instant for part in made for instant in part.fires] == wanted[:runs_left]
    assert all(len(part.fires) <= MOST_AT_ONCE for part in made)
    missed = [part.missed for part in made if part.missed is not None]
    if runs_left != 0:
        assert missed == ([Missed(len(dropped), dropped[0], dropped[-1])] if dropped else [])
    assert cursor is None or cursor > now
