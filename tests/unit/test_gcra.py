"""GCRA: what a bucket lets through, by properties over any sequence of questions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencepost.planning.gcra import Bucket, interval_of

SECOND = 1_000_000
NOW = 1_767_225_600 * SECOND

rates = st.floats(0.001, 1_000_000, allow_nan=False)
bursts = st.integers(1, 1_000)
questions = st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 20)), max_size=60)


def let_through(bucket: Bucket, asked: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(instant, amount) of what a bucket gives to who asks after pauses for amounts."""
    now, given_ = NOW, []
    for pause, amount in asked:
        now += pause
        if bucket.take(now, amount):
            given_.append((now, amount))
    return given_


@given(rates, bursts, questions)
def test_no_window_sees_more_than_burst_and_rate_times_its_length(
    per_second: float, burst: int, asked: list[tuple[int, int]]
) -> None:
    starts = let_through(Bucket(per_second, burst, 0), asked)
    for first, (begin, _) in enumerate(starts):
        total = 0
        for end, amount in starts[first:]:
            total += amount
            assert total <= burst + per_second * (end - begin) / SECOND + 1e-6


@given(rates, bursts)
def test_a_bucket_that_rested_gives_its_burst_and_not_one_more(per_second: float, burst: int) -> None:
    bucket = Bucket(per_second, burst, 0)
    assert bucket.tokens(NOW) == burst
    assert bucket.take(NOW, burst)
    assert bucket.tokens(NOW) == 0
    assert not bucket.take(NOW, 1)


@given(rates, bursts, questions, st.data())
def test_tokens_are_there_from_the_instant_that_is_named_and_not_before(
    per_second: float, burst: int, asked: list[tuple[int, int]], data: Any
) -> None:
    bucket = Bucket(per_second, burst, 0)
    let_through(bucket, asked)
    now = NOW + 200 * SECOND if not asked else NOW + sum(pause for pause, _ in asked)
    amount = data.draw(st.integers(1, burst))
    due = bucket.due_at(now, amount)
    assert due >= now
    assert bucket.tokens(due) >= amount
    if due > now:
        assert bucket.tokens(due - 1) < amount


@given(rates, bursts)
def test_one_who_always_comes_when_the_token_is_there_gets_the_rate(per_second: float, burst: int) -> None:
    bucket = Bucket(per_second, burst, 0)
    bucket.take(NOW, burst)
    now = NOW
    for _ in range(20):
        now = bucket.due_at(now, 1)
        assert bucket.take(now, 1)
    assert (now - NOW) * 1000 <= 20 * (interval_of(per_second) + 1000)  # one comes at whole microseconds


def test_a_clock_that_was_set_back_empties_a_bucket_and_does_not_lock_it() -> None:
    bucket = Bucket(10, 5, 0)
    bucket.take(NOW, 5)
    before = NOW - 3600 * SECOND
    assert bucket.tokens(before) == 0
    assert bucket.due_at(before, 1) == before + SECOND // 10


@given(rates, bursts, rates, bursts, st.integers(0, 1_000))
def test_a_change_gives_no_spent_token_back(
    per_second: float, burst: int, other_rate: float, other_burst: int, taken: int
) -> None:
    bucket = Bucket(per_second, burst, 0)
    bucket.take(NOW, min(taken, burst))
    left = bucket.tokens(NOW)
    bucket.change(NOW, other_rate, other_burst)
    assert bucket.tokens(NOW) == max(0, other_burst - (burst - left))


def test_those_who_wait_are_woken_in_groups_only_where_the_bucket_is_large_and_fast() -> None:
    assert Bucket(5, 10, 0).wake_amount(1) == 1
    assert Bucket(1000, 100, 0).wake_amount(1) == 20
    assert Bucket(1000, 10, 0).wake_amount(1) == 5
    assert Bucket(1000, 10, 0).wake_amount(8) == 8
