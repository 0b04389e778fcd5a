"""When schedules fire, against a walker of minutes that shares no code with them, and by named cases."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import ConfigurationError
from fencepost.planning.cron import checked, count_between, fires_after, jitter_of, last_between, next_fire
from fencepost.schedule import Cron, Every, Once, Timing
from tests.unit.cron_oracle import MINUTE, Window, at, instants

SECOND = 1_000_000
DAY = 86_400 * SECOND

WINDOWS = [
    Window("America/New_York", date(2026, 3, 6), 5),
    Window("America/New_York", date(2026, 10, 30), 5),
    Window("Europe/Berlin", date(2026, 3, 27), 5),
    Window("Europe/Berlin", date(2026, 10, 23), 5),
    Window("Australia/Lord_Howe", date(2026, 4, 3), 5),  # a change of half an hour
    Window("Australia/Lord_Howe", date(2026, 10, 2), 5),
    Window("America/Sao_Paulo", date(2017, 10, 13), 5),  # midnight is left out
    Window("America/Sao_Paulo", date(2018, 2, 16), 5),
    Window("Africa/Cairo", date(2024, 4, 24), 5),
    Window("Africa/Cairo", date(2024, 10, 30), 5),
    Window("Pacific/Apia", date(2011, 12, 28), 6),  # the 30th is left out
    Window("Asia/Kolkata", date(2026, 12, 30), 4),
    Window("UTC", date(2028, 2, 27), 5),
]
EXPRESSIONS = [
    "30 2 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "0 0,12 * * *",
    "0,15,30,45 6-22 * * *",
    "15,45 1,2,3 * * *",
    "5-50/15 1-4 * * *",
    "15 * * * *",
    "45 * * * *",
    "*/10 * * * *",
    "0 */2 * * *",
    "* 0 * * *",
    "*/20 5 * * *",
    "*/30 0-3 * * *",
    "*/30 23 * * *",
    "*/10 0 15 10 *",
    "*/10 0 26 4 *",
    "*/30 12 30 12 *",
    "0 12 30 12 *",
    "30 2 * * 7",
    "30 2 * * 0",
    "0 12 * * sun,wed",
    "30 2 * mar-apr,oct sun",
    "15 1 L * *",
    "15 1 * * 0L",
    "30 2 * * sun#1",
    "30 0 * * 7#3",
    "0 0 29 2 *",
    "59 23 31 12 *",
    "0 3 15 * fri",
    "0 3 */2 * 5",
    "0 3 1-31/2 * 5",
]


def listed(timing: Timing, first: int, last: int) -> list[int]:
    """The instants from first to last, both included."""
    return list(takewhile(lambda instant: instant <= last, fires_after(timing, first - 1)))


def shown(moments: list[int]) -> list[str]:
    """Instants as 2026-03-08T07:00Z."""
    return [datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%MZ") for moment in moments]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_cron_expression_fires_exactly_when_debian_cron_would(expression: str, window: Window) -> None:
    """S12."""
    timing = Cron(expression, window.zone)
    expected = instants(expression, window)

    assert shown(listed(timing, window.start, window.end - 1)) == shown(expected)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_from_every_starting_point_the_next_instant_is_the_same_and_strictly_later(
    expression: str, window: Window
) -> None:
    """S12."""
    timing = Cron(expression, window.zone)
    expected = instants(expression, window)
    starts = set(range(window.start, window.end, 47 * MINUTE))
    starts |= {moment + shift for moment in expected[::7] for shift in (-MINUTE, -1, 0, 1, MINUTE)}

    for start in sorted(starts):
        found = next_fire(timing, start)
        place = bisect_right(expected, start)
        if place < len(expected):
            assert found == expected[place], shown([start])
        else:
            assert found is None or found >= window.end


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_counting_across_a_change_of_the_clocks_is_counting_one_by_one(expression: str, window: Window) -> None:
    """S12, S5."""
    timing = Cron(expression, window.zone)
    expected = instants(expression, window)
    marks = [*range(window.start, window.end, 311 * MINUTE), window.end - 1]
    marks += [moment + shift for moment in expected[:: max(1, len(expected) // 5)] for shift in (0, 1)]

    for first, last in [*pairwise(sorted(marks)), (window.start, window.end - 1)]:
        inside = [moment for moment in expected if first <= moment <= last]
        assert count_between(timing, first, last) == len(inside)
        assert last_between(timing, first, last, 3) == inside[-3:]


def test_a_time_in_the_skipped_hour_fires_once_right_after_it_from_every_starting_point() -> None:
    """S12."""
    timing = Cron("30 2 * * *", "America/New_York")

    def following(after: str) -> list[str]:
        return shown([*islice(fires_after(timing, at(after)), 2)])

    assert following("2026-03-07T07:30Z") == ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]
    assert following("2026-03-08T06:59Z") == ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]
    assert following("2026-03-08T07:00Z") == ["2026-03-09T06:30Z", "2026-03-10T06:30Z"]
    assert following("2026-03-08T07:29Z") == ["2026-03-09T06:30Z", "2026-03-10T06:30Z"]


def test_a_time_in_the_repeated_hour_fires_once_at_the_first_pass() -> None:
    """S12."""
    timing = Cron("30 1 * * *", "America/New_York")

    assert shown(listed(timing, at("2026-11-01T00:00Z"), at("2026-11-03T00:00Z"))) == [
        "2026-11-01T05:30Z",
        "2026-11-02T06:30Z",
    ]
    assert next_fire(timing, at("2026-11-01T06:10Z")) == at("2026-11-02T06:30Z")


def test_an_hourly_schedule_does_not_sleep_through_the_repeated_hour() -> None:
    """S12."""
    timing = Cron("15 * * * *", "Europe/London")

    assert shown(listed(timing, at("2026-10-24T23:00Z"), at("2026-10-25T05:00Z"))) == [
        "2026-10-24T23:15Z",
        *(f"2026-10-25T0{hour}:15Z" for hour in range(5)),
    ]


def test_every_ten_minutes_is_ten_minutes_apart_on_days_of_23_and_25_hours() -> None:
    """S12."""
    timing = Cron("*/10 * * * *", "Europe/London")
    long = listed(timing, at("2026-10-24T23:00Z"), at("2026-10-26T00:00Z") - 1)
    short = listed(timing, at("2026-03-29T00:00Z"), at("2026-03-29T23:00Z") - 1)

    assert (len(long), len(short)) == (150, 138)
    assert {later - earlier for day in (long, short) for earlier, later in pairwise(day)} == {10 * MINUTE}


def test_a_schedule_of_several_hours_neither_stops_nor_doubles_at_a_change() -> None:
    """S12."""
    quarters = Cron("0,15,30,45 6-22 * * *", "Europe/Brussels")
    second_hours = Cron("0 */2 * * *", "America/Toronto")

    assert next_fire(quarters, at("2026-10-24T20:45Z")) == at("2026-10-25T05:00Z")
    assert count_between(quarters, at("2026-10-24T22:00Z"), at("2026-10-25T23:00Z") - 1) == 68
    assert shown(listed(second_hours, at("2026-03-08T03:00Z"), at("2026-03-08T14:00Z"))) == [
        f"2026-03-08T{hour}:00Z" for hour in ("03", "05", "08", "10", "12", "14")
    ]


def test_day_of_month_and_day_of_week_are_or_unless_one_starts_with_a_star() -> None:
    """S12."""
    either = listed(Cron("0 16 1,2,3 * FRI"), at("2026-05-01T00:00Z"), at("2026-06-06T00:00Z"))
    both = listed(Cron("0 16 */2 * SAT"), at("2026-05-01T00:00Z"), at("2026-06-01T00:00Z"))
    range_step = listed(Cron("0 16 1-31/2 * SAT"), at("2026-05-01T00:00Z"), at("2026-06-01T00:00Z"))

    days = ["05-01", "05-02", "05-03", "05-08", "05-15", "05-22", "05-29", "06-01", "06-02", "06-03", "06-05"]
    assert shown(either) == [f"2026-{day}T16:00Z" for day in days]
    assert shown(both) == ["2026-05-09T16:00Z", "2026-05-23T16:00Z"]
    assert len(range_step) == 16 + 3  # every odd day, and the Saturdays 2, 16 and 30


def test_leap_days_come_when_they_come_and_2100_has_none() -> None:
    leap_day = Cron("0 0 29 2 *")

    assert next_fire(leap_day, at("2026-01-01T00:00Z")) == at("2028-02-29T00:00Z")
    assert next_fire(leap_day, at("2096-03-01T00:00Z")) == at("2104-02-29T00:00Z")
    assert next_fire(Cron("0 0 31 4,5 *"), at("2026-01-01T00:00Z")) == at("2026-05-31T00:00Z")
    assert next_fire(Cron("0 12 1 3 *"), at("2100-02-27T00:00Z")) == at("2100-03-01T12:00Z")
    assert shown(listed(Cron("59 23 L * *"), at("2100-02-01T00:00Z"), at("2100-03-01T00:00Z"))) == ["2100-02-28T23:59Z"]


def test_a_day_that_comes_once_in_decades_is_found() -> None:
    # Both must match: a leap day that is a Monday.
    assert shown([*islice(fires_after(Cron("0 0 * 2 MON#5"), at("2026-01-01T00:00Z")), 2)]) == [
        "2044-02-29T00:00Z",
        "2072-02-29T00:00Z",
    ]


def test_nicknames_mean_their_expressions() -> None:
    start = at("2026-01-01T00:00Z")

    for nickname, expression in [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ]:
        named, plain = Cron(nickname, "Europe/Berlin"), Cron(expression, "Europe/Berlin")
        assert checked(named) is named
        assert [*islice(fires_after(named, start), 5)] == [*islice(fires_after(plain, start), 5)]


def test_six_fields_begin_with_seconds_and_follow_real_time() -> None:
    every_second = Cron("* * * * * *", "Europe/Berlin")
    start = at("2026-10-25T00:00Z")

    assert [*islice(fires_after(every_second, start), 3)] == [start + n * SECOND for n in (1, 2, 3)]
    assert count_between(every_second, start, start + 3 * 3600 * SECOND) == 3 * 3600 + 1
    assert shown(listed(Cron("0 30 2 * * *", "Europe/Berlin"), start, start + DAY)) == [
        "2026-10-25T00:30Z",
        "2026-10-25T01:30Z",
    ]


def test_an_instant_before_1970_is_rounded_like_one_after() -> None:
    assert next_fire(Cron("0 0 * * *"), -DAY - 1) == -DAY
    assert next_fire(Cron("0 0 * * *"), -DAY) == 0
    assert next_fire(Cron("0 0 * * *"), -1) == 0


def test_the_end_of_the_calendar_is_an_end_and_no_error() -> None:
    assert next_fire(Cron("0 0 1 1 *"), at("9999-06-01T00:00Z")) is None


# Intervals and single instants


@given(period=st.integers(SECOND, 40 * DAY), anchor=st.integers(-10 * DAY, 10 * DAY), after=st.integers(-DAY, 90 * DAY))
def test_an_interval_fires_at_its_anchor_and_every_period_before_and_after(
    period: int, anchor: int, after: int
) -> None:
    found = [*islice(fires_after(Every(period, anchor), after), 3)]

    assert all((moment - anchor) % period == 0 for moment in found)
    assert found == [found[0] + n * period for n in range(3)]
    assert found[0] - period <= after < found[0]


def test_a_single_instant_fires_once() -> None:
    once = Once(5 * SECOND)

    assert [*fires_after(once, 5 * SECOND - 1)] == [5 * SECOND]
    assert [*fires_after(once, 5 * SECOND)] == []
    assert next_fire(once, 5 * SECOND) is None
    assert [count_between(once, *span) for span in [(0, 4 * SECOND), (5 * SECOND, 5 * SECOND), (6 * SECOND, DAY)]] == [
        0,
        1,
        0,
    ]


# Counting


TIMINGS = st.one_of(
    st.builds(
        Cron,
        st.sampled_from([*EXPRESSIONS, "* * * * *", "0 9 * * 1-5", "*/7 */5 L * *", "0 0 1 1 *"]),
        st.sampled_from(sorted({window.zone for window in WINDOWS})),
    ),
    st.builds(Every, st.integers(600 * SECOND, 3 * DAY), st.integers(0, DAY)),
    st.builds(Once, st.integers(at("2026-01-01T00:00Z"), at("2027-01-01T00:00Z"))),
)
STARTS = st.integers(at("2026-01-01T00:00Z"), at("2026-12-31T00:00Z")) | st.integers(
    at("2011-12-15T00:00Z"), at("2012-01-10T00:00Z")
)


@given(timing=TIMINGS, first=STARTS, span=st.integers(-1, 12 * DAY), most=st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_counting_and_taking_the_last_agree_with_iterating(timing: Timing, first: int, span: int, most: int) -> None:
    """S5."""
    found = listed(timing, first, first + span)

    assert found == sorted(set(found))
    assert count_between(timing, first, first + span) == len(found)
    assert last_between(timing, first, first + span, most) == (found[-most:] if most else [])


@given(
    first=st.integers(at("2026-03-28T20:00Z"), at("2026-03-30T00:00Z")),
    span=st.integers(0, 7200 * SECOND),
    expression=st.sampled_from(["* * * * * *", "*/7 * * * * *", "30 */2 * * * *", "5,6 0 2,3 * * *"]),
)
@settings(max_examples=60, deadline=None)
def test_counting_seconds_agrees_with_iterating(first: int, span: int, expression: str) -> None:
    """S5."""
    timing = Cron(expression, "Europe/Berlin")

    assert count_between(timing, first, first + span) == len(listed(timing, first, first + span))


# What is refused


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 30,31 2 *", "0 0 0 30 2 *"])
def test_a_date_that_never_comes_is_refused_by_that_name(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="never fires"):
        checked(Cron(expression, "Europe/Berlin"))


@pytest.mark.parametrize(
    "expression",
    [
        *("", " ", "* * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "* * * * * * *", "@reboot", "@every 5m"),
        *(
            "0 24 * * *",
            "0 0 32 * *",
            "0 0 0 * *",
            "0 0 * 13 *",
            "0 0 * * 8",
            "0 0 * * mon#6",
            "a b c d e",
            "1,, * * * *",
        ),
        *(
            "-1 * * * *",
            "1- * * * *",
            "/5 * * * *",
            "5/ * * * *",
            "\N{FULLWIDTH DIGIT ONE} * * * *",
            "* * * * *\0",
            "0 0 L,x * *",
            "* * * L *",
        ),
        "*" * 5000,
    ],
)
def test_what_is_no_cron_expression_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is no cron expression: .*Example"):
        checked(Cron(expression))


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("EUROPE/BERLIN", "did you mean 'Europe/Berlin'"),
        ("utc", "did you mean 'UTC'"),
        ("EST", "America/New_York"),
        ("EST5EDT", "America/New_York"),
        ("MST", "America/New_York"),
        ("Berlin", "IANA"),
        ("Europe/Atlantis", "IANA"),
        ("+02:00", "IANA"),
        ("", "IANA"),
        ("../../etc/passwd", "IANA"),
        ("/etc/localtime", "IANA"),
        ("Europe/Berlin\0", "IANA"),
    ],
)
def test_a_zone_that_is_no_place_is_refused_with_one_that_is(zone: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        checked(Cron("0 0 * * *", zone))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Pacific/Apia"])
def test_a_zone_of_a_place_is_taken(zone: str) -> None:
    timing = Cron("0 0 * * *", zone)

    assert checked(timing) is timing
    midnight = next_fire(timing, at("2026-06-01T00:00Z"))
    assert midnight is not None
    assert datetime.fromtimestamp(midnight / SECOND, ZoneInfo(zone)).hour == 0


def test_an_interval_below_a_second_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 second"):
        checked(Every(SECOND - 1))
    assert checked(Every(SECOND)) == Every(SECOND)


# Jitter


@given(name=st.text(st.characters(exclude_categories=["Cs"])), instant=st.integers(0, 2**53), most=st.integers(0, DAY))
def test_jitter_is_bounded_and_the_same_each_time(name: str, instant: int, most: int) -> None:
    delay = jitter_of(name, instant, most)

    assert 0 <= delay <= most
    assert jitter_of(name, instant, most) == delay


def test_jitter_differs_from_schedule_to_schedule_and_from_instant_to_instant() -> None:
    names = {jitter_of(f"schedule {n}", 0, DAY) for n in range(100)}
    moments = {jitter_of("schedule", n * MINUTE, DAY) for n in range(100)}

    assert len(names) == len(moments) == 100
    assert jitter_of("nightly", at("2026-01-01T00:00Z"), DAY) == 69_641_732_075  # for ever: restarts do not redraw it
