"""Durations and instants as people give them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigurationError
from fencepost.store.rows import instant
from fencepost.timing import instant_micros, micros, parse_duration, seconds


@pytest.mark.parametrize(
    ("given_duration", "expected"),
    [(0, 0), (1, 1_000_000), (0.000001, 1), (1.5, 1_500_000), (timedelta(days=1, microseconds=1), 86_400_000_001)],
)
def test_a_duration_is_seconds_or_a_timedelta(given_duration: float | timedelta, expected: int) -> None:
    assert micros(given_duration, "delay") == expected
    assert seconds(given_duration, "delay") == pytest.approx(expected / 1_000_000)


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        float("nan"),
        float("inf"),
        timedelta(seconds=-1),
        10**12,
        True,
        None,
        "5",
        [],
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_what_is_no_duration_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^delay is"):
        micros(wrong, "delay")


FIRST, LAST = datetime(1970, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001 - Hypothesis wants them naive


@given(st.datetimes(FIRST, LAST), st.integers(-840, 840))
def test_an_instant_survives_to_the_microsecond(naive: datetime, minutes: int) -> None:
    aware = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    back = instant(instant_micros(aware, "run_at"))
    assert back == aware
    assert back is not None
    assert back.tzinfo is UTC


@pytest.mark.parametrize(
    "beyond",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
    ids=str,
)
def test_an_instant_that_leaves_the_years_1_to_9999_in_utc_is_refused(beyond: datetime) -> None:
    with pytest.raises(ConfigurationError, match=r"^until=.*years 1 to 9999"):
        instant_micros(beyond, "until")


@pytest.mark.parametrize(
    ("text", "expected"), [("1h30m", 5400), ("1h 30m", 5400), ("250ms", 0.25), ("1.5", 1.5), ("2W", 1_209_600)]
)
def test_a_duration_is_read_from_a_text(text: str, expected: float) -> None:
    assert parse_duration(text, "every") == expected


@pytest.mark.parametrize("text", ["", "soon", "1h30", "h", "-5s", "1 2s", "\N{ARABIC-INDIC DIGIT ONE}s"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^every is a duration such as"):
        parse_duration(text, "every")


def test_a_repeated_wall_time_stands_for_two_instants() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert instant_micros(second, "run_at") - instant_micros(first, "run_at") == 3_600_000_000


def test_a_naive_datetime_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)run_at=.*no time zone.*datetime\.now\(UTC\)"):
        instant_micros(datetime(2026, 1, 1), "run_at")  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("wrong", [None, 5, "2026-01-01", date(2026, 1, 1)])
def test_what_is_no_datetime_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="run_at is an aware datetime"):
        instant_micros(wrong, "run_at")
