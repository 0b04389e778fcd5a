"""The rank: one integer by which ready jobs are ordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.job import Priority
from fencepost.planning.rank import LOW_PRIORITY_AGING, URGENCY_WINDOW, rank, urgent_at, urgent_rank

INSTANTS = st.integers(0, 2**59)  # to the year 20237
SPANS = st.integers(0, 2**50)


@given(st.sampled_from(Priority), INSTANTS, INSTANTS)
def test_jobs_of_one_priority_go_in_the_order_of_their_arrival(priority: Priority, one: int, two: int) -> None:
    assert (rank(priority, one) < rank(priority, two)) == (one < two)


@given(INSTANTS, INSTANTS)
def test_critical_goes_before_high_and_high_before_all_below_whenever_they_came(one: int, two: int) -> None:
    assert rank(Priority.CRITICAL, one) < rank(Priority.HIGH, two)
    for lower in (Priority.NORMAL, Priority.LOW):
        assert rank(Priority.HIGH, one) < rank(lower, two)
        assert rank(Priority.HIGH, one) < urgent_rank(two, 0) < rank(lower, one)


@given(INSTANTS, st.integers(-2 * LOW_PRIORITY_AGING, 2 * LOW_PRIORITY_AGING))
def test_a_low_job_overtakes_exactly_the_normal_ones_that_came_later_by_more_than_the_aging(low: int, by: int) -> None:
    normal = max(0, low + by)
    overtakes = rank(Priority.LOW, low) < rank(Priority.NORMAL, normal)
    assert overtakes == (normal > low + LOW_PRIORITY_AGING)


@given(st.sampled_from(Priority), INSTANTS, st.integers(0, 1000))
def test_a_batch_may_be_ranked_by_adding_a_microsecond_a_row(priority: Priority, arrival: int, place: int) -> None:
    assert rank(priority, arrival) + place == rank(priority, arrival + place)


@given(st.sampled_from(Priority), INSTANTS)
def test_every_rank_fits_a_signed_64_bit_integer(priority: Priority, arrival: int) -> None:
    assert 0 <= rank(priority, arrival) < 2**63
    assert 0 <= urgent_rank(arrival, 0) < 2**63


@given(INSTANTS, SPANS)
def test_a_job_becomes_urgent_one_window_before_its_latest_start_and_never_before_time_began(
    deadline: int, hint: int
) -> None:
    for priority in (Priority.NORMAL, Priority.LOW):
        assert urgent_at(priority, deadline, hint) == max(0, deadline - hint - URGENCY_WINDOW)


def test_what_has_no_deadline_or_stands_above_the_urgent_tier_never_becomes_urgent() -> None:
    assert urgent_at(Priority.NORMAL, None, 0) is None
    assert urgent_at(Priority.CRITICAL, 5, 0) is None
    assert urgent_at(Priority.HIGH, 5, 0) is None


@given(INSTANTS, SPANS, INSTANTS, SPANS)
def test_among_urgent_jobs_the_earliest_latest_start_goes_first(d1: int, h1: int, d2: int, h2: int) -> None:
    assert (urgent_rank(d1, h1) < urgent_rank(d2, h2)) == (max(0, d1 - h1) < max(0, d2 - h2))
