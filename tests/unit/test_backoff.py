"""How long a failed job waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.job import Backoff
from fencepost.planning.backoff import backoff_seconds

DRAWS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 2), (2, 4), (3, 8), (10, 1024), (15, 21_600), (100_000, 21_600)])
def test_the_delay_doubles_up_to_its_cap(attempt: int, seconds: float) -> None:
    assert backoff_seconds(attempt, Backoff(jitter=0), 0.5) == pytest.approx(seconds)


@given(st.integers(1, 10_000), DRAWS)
def test_full_jitter_draws_from_the_whole_delay(attempt: int, draw: float) -> None:
    bound = backoff_seconds(attempt, Backoff(jitter=0), draw)
    assert backoff_seconds(attempt, Backoff(), draw) == pytest.approx(bound * draw)


@given(st.integers(1, 100), DRAWS)
def test_a_share_of_jitter_leaves_the_rest_fixed(attempt: int, draw: float) -> None:
    bound = backoff_seconds(attempt, Backoff(jitter=0), draw)
    assert 0.75 * bound <= backoff_seconds(attempt, Backoff(jitter=0.25), draw) <= bound * 1.000001


@given(st.integers(1, 10_000), DRAWS)
def test_a_constant_is_the_same_after_every_attempt(attempt: int, draw: float) -> None:
    assert backoff_seconds(attempt, 7, draw) == 7.0
    assert backoff_seconds(attempt, 0.25, draw) == 0.25


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 5), (3, 30), (4, 30), (999, 30)])
def test_of_a_list_the_last_repeats(attempt: int, seconds: float) -> None:
    assert backoff_seconds(attempt, [1, 5, 30], 0.9) == seconds


def test_a_base_of_nothing_is_no_delay() -> None:
    assert backoff_seconds(5, Backoff(base=0), 0.9) == 0


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_count_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        backoff_seconds(attempt, 1, 0)


@pytest.mark.parametrize(
    "wrong", [{"base": -1}, {"base": 5, "cap": 4}, {"factor": 0.5}, {"jitter": 1.5}, {"jitter": -0.1}]
)
def test_a_backoff_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        Backoff(**wrong)
