"""The commands about schedules and occurrences, on every database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

import fencepost
from fencepost.ids import new_id
from fencepost.job import Concurrency
from fencepost.store import Store
from fencepost.store.diagnosis import Level
from fencepost.store.tables import permits
from fencepost.store.tables import schedules as table
from fencepost.testing import VirtualClock
from tests.cli.conftest import Run
from tests.cli.test_doctor import found, report_worker
from tests.cli.test_output import HOSTILE, assert_harmless
from tests.jobs import SECOND, claim_one, overwrite, put, statements

NEVER_SOON = "0 0 29 2 *"


@pytest.fixture
def hourly(app: fencepost.App) -> fencepost.App:
    """An app with a schedule, `hourly`, of a handler of kind `send`."""

    @app.job(kind="send", queue="mail")
    async def send(user_id: int = 1) -> None: ...

    app.schedules.upsert("hourly", send, every=3600, arguments={"user_id": 7})
    return app


@pytest.fixture
def timed(url: Any, clock: VirtualClock) -> Iterator[fencepost.App]:
    """The same with a clock that is moved by hand."""
    app = fencepost.App(url, clock=clock)

    @app.job(kind="send", queue="mail")
    async def send(user_id: int = 1) -> None: ...

    app.schedules.upsert("hourly", send, every=3600)
    yield app
    app.close()


def spoil(store: Store, which: str, **values: Any) -> None:
    """Write into a schedule's row what no function of the store would write."""
    store.database.write(lambda conn: conn.execute(update(table).where(table.c.name == which).values(values)))


def words(text: str) -> list[list[str]]:
    """The words of each line after the head."""
    return [line.split() for line in text.splitlines()[1:]]


class TestSchedulesList:
    def test_it_shows_when_each_fires_and_how_its_occurrences_stand(
        self, run: Run, at: str, hourly: fencepost.App
    ) -> None:
        hourly.schedules.upsert("leap", "send", NEVER_SOON, timezone="Asia/Kolkata")
        hourly.schedules.trigger("leap")
        ended = run("schedules", "list", "--url", at)
        assert ended.code == 0
        head, *lines = ended.out.splitlines()
        assert head.split() == ["NAME", "WHEN", "ZONE", "NEXT", "LAST", "BACKLOG", "NOTE"]
        assert lines[0].startswith("hourly  every 1h    UTC           in ")
        assert NEVER_SOON in lines[1]
        assert "Asia/Kolkata" in lines[1]
        assert "ready  1 (" in lines[1]

    def test_the_paused_the_undecodable_and_those_that_are_over_are_marked(
        self, run: Run, at: str, hourly: fencepost.App
    ) -> None:
        for name in ("broken", "over", "vanished"):
            hourly.schedules.upsert(name, "send", every=3600)
        hourly.schedules.pause("hourly")
        spoil(hourly.store, "broken", misfire="tomorrow's word")
        spoil(hourly.store, "over", next_fire_at=None)
        spoil(hourly.store, "vanished", paused_at=1, paused_reason="undeclared")
        notes = [line.split("0", 1)[1].strip() for line in run("schedules", "list", "--url", at).out.splitlines()[1:]]
        assert [note.split("  ")[-1] for note in notes] == ["undecodable", "paused", "over", "paused: undeclared"]

    def test_its_json_has_the_definition_and_the_figures(self, run: Run, at: str, hourly: fencepost.App) -> None:
        made = hourly.schedules.trigger("hourly")
        (one,) = run("schedules", "list", "--url", at, "--json").json
        assert (one["name"], one["kind"], one["every"], one["cron"]) == ("hourly", "send", 3600, None)
        assert (one["arguments"], one["paused_at"], one["next_fire_at"][-1]) == ({"user_id": 7}, None, "Z")
        assert (one["newest"]["id"], one["newest"]["trigger"], one["pending"], one["running"]) == (
            *(made.id, "manual"),
            *(1, 0),
        )

    def test_nothing_found_is_said_on_stderr_alone(self, run: Run, at: str) -> None:
        for group in ("schedules", "occurrences"):
            ended = run(group, "list", "--url", at)
            assert (ended.code, ended.out, ended.err) == (0, "", f"No {group}.\n")
            assert run(group, "list", "--url", at, "--json").json == []


class TestSchedulesShow:
    def test_it_shows_a_schedule_whole(self, run: Run, at: str, hourly: fencepost.App) -> None:
        hourly.schedules.upsert("hourly", "send", every=3600, overlap="skip", key="k", slots=2, max_runs=9, jitter=2)
        ended = run("schedules", "show", "hourly", "--url", at)
        for expected in ("every 1h", "latest, grace 60 s, at most 100 caught up", "skip", "k, 2", "0 of 9", "2 s"):
            assert expected in ended.out
        assert run("schedules", "show", "hourly", "--url", at, "--json").json["slots"] == 2

    def test_an_unknown_one_is_told_in_one_line_by_every_command(self, run: Run, at: str) -> None:
        window = ["--from", "2026-01-01T00:00:00Z", "--to", "2026-01-02T00:00:00Z"]
        for command, options in (
            *(("show", []), ("next", []), ("pause", []), ("resume", []), ("trigger", [])),
            *(("delete", ["--yes"]), ("backfill", window)),
        ):
            ended = run("schedules", command, "nightly", *options, "--url", at)
            assert (ended.code, ended.out) == (1, "")
            assert (
                ended.err
                == "fencepost: No schedule 'nightly'. `fencepost schedules list` shows those that there are.\n"
            )


class TestSchedulesNext:
    def test_instants_are_shown_in_the_zone_and_in_utc(self, run: Run) -> None:
        ended = run(
            *("schedules", "next", "--cron", "15 2 * * *", "--timezone", "Asia/Kolkata", "--count", "2"),
            *("--after", "2026-01-01T00:00:00Z"),
        )
        assert ended.code == 0
        head, first, _ = ended.out.splitlines()
        assert head.split() == ["Asia/Kolkata", "UTC", "WHEN"]
        assert "Fri 2026-01-02 02:15:00+05:30  2026-01-01 20:45:00Z" in first

    def test_a_gap_and_a_repeated_hour_show(self, run: Run) -> None:
        asked = ["schedules", "next", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--json", "--count", "1"]
        gap = run(*asked, "--after", "2026-03-28T12:00:00Z").json
        assert gap == [{"local": "2026-03-29T03:00:00+02:00", "utc": "2026-03-29T01:00:00.000000Z"}]
        twice = run(*asked, "--after", "2026-10-24T12:00:00Z").json
        assert twice == [{"local": "2026-10-25T02:30:00+02:00", "utc": "2026-10-25T00:30:00.000000Z"}]

    def test_a_stored_one_keeps_its_anchor_and_its_end(self, run: Run, at: str, hourly: fencepost.App) -> None:
        anchor = datetime(2099, 1, 1, 0, 0, 7, tzinfo=UTC)
        hourly.schedules.upsert("odd", "send", every="1h", anchor=anchor, until=anchor + timedelta(hours=1))
        asked = ["schedules", "next", "odd", "--url", at, "--json", "--after", "2098-12-31T23:30:00Z"]
        assert [one["utc"][11:19] for one in run(*asked).json] == ["00:00:07", "01:00:07"]

    def test_of_a_paused_one_it_says_so(self, run: Run, at: str, hourly: fencepost.App) -> None:
        hourly.schedules.pause("hourly")
        ended = run("schedules", "next", "hourly", "--url", at)
        assert len(ended.out.splitlines()) == 11
        assert "It is paused since " in ended.err

    @pytest.mark.parametrize(
        ("asked", "code", "said"),
        [
            ([], 2, "Give the NAME"),
            (["--cron", "* * * * *", "--every", "90s"], 2, "one of --cron"),
            (["nightly", "--every", "90s"], 2, "not both"),
            (["--every", "soon"], 2, "no duration"),
            (["--every", "500ms"], 1, "at least 1 second"),
            (["--cron", "61 * * * *"], 1, "no cron expression"),
            (["--cron", "0 0 30 2 *"], 1, "never fires"),
            (["--cron", "0 0 * * *", "--timezone", "Mars/Base"], 1, "no time zone"),
            (["--every", "90s", "--after", "2026-01-01T00:00:00"], 2, "has no time zone"),
            (["--every", "90s", "--count", "0"], 2, "--count"),
        ],
    )
    def test_what_cannot_be_is_refused_with_what_would_be_right(
        self, run: Run, asked: list[str], code: int, said: str
    ) -> None:
        ended = run("schedules", "next", *asked)
        assert (ended.code, ended.out) == (code, "")
        assert said in ended.err


class TestSchedulesSet:
    def test_it_makes_a_schedule_with_all_that_was_asked(self, run: Run, tasks: str, app: fencepost.App) -> None:
        ended = run(
            *("schedules", "set", "daily", "send", "--app", tasks, "--cron", "15 2 * * *"),
            *("--timezone", "Asia/Kolkata", "--args", '{"user_id": 7}', "--misfire", "catch_up", "--max-catch-up", "5"),
            *("--grace", "2m", "--jitter", "10s", "--overlap", "queue", "--key", "k", "--slots", "2"),
            *("--until", "2099-01-01T00:00:00Z", "--max-runs", "9", "--version", "3"),
            *("--queue", "other", "--priority", "high"),
        )
        assert ended.code == 0
        assert ended.out.startswith("daily fires 15 2 * * * (Asia/Kolkata); next ")
        made = app.schedules.get("daily")
        assert (made.kind, made.queue, made.cron, made.timezone) == ("send", "other", "15 2 * * *", "Asia/Kolkata")
        assert (made.arguments, made.misfire, made.max_catch_up, made.grace) == ({"user_id": 7}, "catch_up", 5, 120)
        assert (made.overlap, made.permit_key, made.slots, made.jitter) == ("queue", "k", 2, 10)
        assert (made.max_runs, made.version, made.declared_in) == (9, 3, None)

    def test_a_lower_version_is_refused_and_changes_nothing(self, run: Run, tasks: str, app: fencepost.App) -> None:
        asked = ["schedules", "set", "s", "send", "--app", tasks, "--args", '{"user_id": 7}']
        assert run(*asked, "--every", "1h", "--version", "2").code == 0
        ended = run(*asked, "--every", "2h", "--version", "1")
        assert ended.code == 1
        assert "stands in version 2, higher than 1" in ended.err
        assert app.schedules.get("s").every == 3600

    @pytest.mark.parametrize(
        ("kind", "asked", "code", "said"),
        [
            ("send", ["--every", "1h"], 1, "user_id is missing"),
            ("send", ["--every", "1h", "--args", "[7]"], 2, "--args is a JSON object"),
            ("send", ["--every", "1h", "--args", "{"], 2, "--args is no JSON"),
            ("send", ["--args", '{"user_id": 7}'], 1, "fires by one of"),
            ("send", ["--at", "2099-01-01T00:00:00", "--args", '{"user_id": 7}'], 2, "has no time zone"),
            ("send", ["--at", "2001-01-01T00:00:00Z", "--args", '{"user_id": 7}'], 1, "would never fire"),
            ("sned", ["--every", "1h"], 1, "No handler of kind 'sned'"),
        ],
    )
    def test_what_cannot_be_is_refused_and_nothing_is_stored(
        self, run: Run, tasks: str, app: fencepost.App, kind: str, asked: list[str], code: int, said: str
    ) -> None:
        ended = run("schedules", "set", "s", kind, "--app", tasks, *asked)
        assert ended.code == code
        assert said in ended.err
        assert app.schedules.list() == []

    def test_without_an_app_nobody_could_check_the_arguments(self, run: Run) -> None:
        ended = run("schedules", "set", "s", "send", "--every", "1h")
        assert ended.code == 2
        assert "--app tasks:app" in ended.err


class TestActing:
    def test_pausing_and_resuming_say_whether_they_changed_anything(
        self, run: Run, at: str, hourly: fencepost.App
    ) -> None:
        assert run("schedules", "pause", "hourly", "--url", at).out == "hourly is paused.\n"
        assert run("schedules", "pause", "hourly", "--url", at).out == "hourly was paused already.\n"
        assert hourly.schedules.get("hourly").next_fire_at is None
        resumed = run("schedules", "resume", "hourly", "--url", at, "--json").json
        assert (resumed["paused"], resumed["changed"], resumed["next_fire_at"][-1]) == (False, True, "Z")
        assert run("schedules", "resume", "hourly", "--url", at).out.startswith("hourly was not paused; next ")

    def test_a_trigger_needs_an_app_for_arguments_alone(
        self, run: Run, at: str, tasks: str, hourly: fencepost.App
    ) -> None:
        plain = run("schedules", "trigger", "hourly", "--url", at).out.strip()
        own = run("schedules", "trigger", "hourly", "--app", tasks, "--args", '{"user_id": 9}', "--json").json["id"]
        jobs = [hourly.jobs.get(job_id) for job_id in (plain, own)]
        assert [(job.arguments, job.trigger, job.schedule) for job in jobs] == [
            ({"user_id": 7}, "manual", "hourly"),
            ({"user_id": 9}, "manual", "hourly"),
        ]
        for wrong in (["--url", at], ["--url", at, "--app", tasks], []):
            refused = run("schedules", "trigger", "hourly", "--args", '{"user_id": 9}', *wrong)
            assert refused.code == 2
            assert "--app" in refused.err
        unfit = run("schedules", "trigger", "hourly", "--app", tasks, "--args", '{"user": 9}')
        assert (unfit.code, unfit.out) == (1, "")

    def test_a_backfill_makes_each_instant_of_the_range_once(self, run: Run, at: str, hourly: fencepost.App) -> None:
        asked = ["schedules", "backfill", "hourly", "--url", at, "--from", "2026-01-01T00:00:00Z"]
        ended = run(*asked, "--to", "2026-01-01T04:00:00+02:00")
        made = ended.out.split()
        assert [hourly.jobs.get(job_id).scheduled_for for job_id in made] == [
            datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)
        ]
        assert ended.err == "3 occurrences made.\n"
        assert run(*asked, "--to", "2026-01-01T02:00:00Z", "--json").json == {"schedule": "hourly", "ids": []}

    @pytest.mark.parametrize(
        ("first", "last", "code", "said"),
        [
            ("2026-01-01T00:00:00", "2026-01-02T00:00:00Z", 2, "--from: '2026-01-01T00:00:00' has no time zone"),
            ("2026-01-01T00:00:00Z", "2026-01-02", 2, "--to: '2026-01-02' has no time zone"),
            ("yesterday", "2026-01-02T00:00:00Z", 2, "no instant"),
            ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", 2, "later than --to"),
            ("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z", 1, "the future"),
            ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 1, "more than 1,000 instants"),
        ],
    )
    def test_a_range_that_cannot_be_is_refused_with_the_reason(
        self, run: Run, at: str, hourly: fencepost.App, first: str, last: str, code: int, said: str
    ) -> None:
        ended = run("schedules", "backfill", "hourly", "--url", at, "--from", first, "--to", last)
        assert (ended.code, ended.out) == (code, "")
        assert said in ended.err
        assert hourly.schedules.occurrences() == []

    def test_a_schedule_is_deleted_only_when_that_is_meant(self, run: Run, at: str, hourly: fencepost.App) -> None:
        made = hourly.schedules.trigger("hourly")
        refused = run("schedules", "delete", "hourly", "--url", at)
        assert refused.code == 1
        assert "--yes" in refused.err
        assert [one.name for one in hourly.schedules.list()] == ["hourly"]
        assert run("schedules", "delete", "hourly", "--url", at, "--yes").out == "hourly is deleted.\n"
        assert hourly.schedules.list() == []
        listed = run("occurrences", "list", "--url", at, "--schedule", "hourly").out
        assert words(listed)[0][0] == made.id


class TestOccurrences:
    @pytest.fixture
    def three(self, hourly: fencepost.App) -> list[str]:
        """Three occurrences of January, the earliest first."""
        first = datetime(2026, 1, 1, tzinfo=UTC)
        return [handle.id for handle in hourly.schedules.backfill("hourly", first, first + timedelta(hours=2))]

    def test_they_are_listed_latest_instant_first_a_page_at_a_time(self, run: Run, at: str, three: list[str]) -> None:
        ended = run("occurrences", "list", "--url", at, "--limit", "2")
        assert [line[0] for line in words(ended.out)] == [three[2], three[1]]
        assert words(ended.out)[0][1:5] == ["hourly", "2026-01-01T02:00:00.000000Z", "ready", "backfill"]
        assert f"--before {three[1]}" in ended.err
        assert [line[0] for line in words(run("occurrences", "list", "--url", at, "--before", three[1]).out)] == [
            three[0]
        ]

    def test_its_filters_choose(self, run: Run, at: str, three: list[str], hourly: fencepost.App) -> None:
        put(hourly.store)
        own = hourly.schedules.trigger("hourly").id
        hourly.jobs.cancel(three[1])
        for options, expected in (
            (["--trigger", "manual"], [own]),
            (["--state", "cancelled"], [three[1]]),
            (["--state", "cancelled", "--state", "ready", "--until", "2026-01-01T01:00:00Z"], [three[1], three[0]]),
            (["--since", "2026-01-01T02:00:00Z", "--until", "2026-01-02T00:00:00Z"], [three[2]]),
            (["--schedule", "hourly"], [own, *three[::-1]]),
            (["--schedule", "other"], []),
        ):
            listed = run("occurrences", "list", "--url", at, *options, "--json").json
            assert [one["id"] for one in listed] == expected
        assert run("occurrences", "list", "--url", at, "--since", "2026-01-01T00:00:00").code == 2

    def test_a_failed_one_is_retried_with_its_id_and_instant_and_a_succeeded_one_refused(
        self, run: Run, at: str, three: list[str], hourly: fencepost.App
    ) -> None:
        for claim in hourly.store.claim("me", kinds=["send"], limit=2):
            outcome = hourly.store.abandon(claim, "no") if claim.id == three[0] else hourly.store.complete(claim)
            assert outcome
        listed = {one["id"]: one for one in run("occurrences", "list", "--url", at, "--json").json}
        assert (listed[three[0]]["reason"], listed[three[2]]["lag_seconds"]) == ("abandoned", None)
        assert 0 <= listed[three[0]]["lag_seconds"] < 3600  # a backfilled one is due when it is made
        ended = run("occurrences", "retry", *three[:2], "--url", at)
        assert ended.code == 1
        assert ended.out == f"{three[0]} is ready again.\n"
        assert "has succeeded" in ended.err
        again = run("occurrences", "show", three[0], "--url", at, "--json").json
        assert (again["state"], again["scheduled_for"]) == ("ready", "2026-01-01T00:00:00.000000Z")

    def test_they_are_cancelled(self, run: Run, at: str, three: list[str]) -> None:
        assert run("occurrences", "cancel", three[0], "--url", at).out == f"{three[0]} is cancelled.\n"
        assert "scheduled for" in run("occurrences", "show", three[0], "--url", at).out

    def test_a_job_without_a_schedule_is_none(self, run: Run, at: str, kept: Store) -> None:
        job_id = put(kept).id
        for command in ("show", "retry", "cancel"):
            ended = run("occurrences", command, job_id, "--url", at)
            assert ended.code == 1
            assert "is no occurrence of a schedule" in ended.err
        assert run("occurrences", "list", "--before", job_id, "--url", at).code == 1
        assert run("occurrences", "show", new_id(), "--url", at).code == 1
        assert kept.states_of([job_id]) == {job_id: "ready"}


class TestFigures:
    def test_they_follow_the_occurrences_of_a_schedule(self, timed: fencepost.App, clock: VirtualClock) -> None:
        (nothing,) = timed.schedules.figures()
        assert (nothing.newest, nothing.pending, nothing.running, nothing.oldest_pending_seconds) == (None, 0, 0, None)
        due = timed.schedules.get("hourly").next_fire_at
        assert due is not None
        for hour in range(2):
            clock.advance(3600 - (clock.now() // SECOND) % 3600 + 5)
            timed.store.materialise_due()
            assert timed.schedules.figures()[0].pending == hour + 1
        clock.advance(10)
        (waiting,) = timed.schedules.figures()
        assert (waiting.oldest_pending, waiting.oldest_pending_seconds) == (due, 3615)
        assert waiting.newest is not None
        assert (waiting.newest.scheduled_for, waiting.lag_seconds) == (due + timedelta(hours=1), None)
        for claim in timed.store.claim("me", kinds=["send"], limit=2):
            assert timed.store.complete(claim)
        (done,) = timed.schedules.figures()
        assert (done.pending, done.running, done.lag_seconds) == (0, 0, 15)

    def test_the_start_of_a_later_attempt_says_nothing_of_the_lag(
        self, timed: fencepost.App, clock: VirtualClock
    ) -> None:
        handle = timed.schedules.trigger("hourly")
        clock.advance(4)
        claim = claim_one(timed.store, "send")
        assert timed.schedules.figures()[0].lag_seconds == 4
        assert timed.store.retry(claim, "no", after=60)
        (put_off,) = timed.schedules.figures()
        assert (put_off.pending, put_off.lag_seconds) == (1, None)
        clock.advance(63)
        timed.store.promote_due()
        assert claim_one(timed.store, "send").id == handle.id
        (again,) = timed.schedules.figures()
        assert (again.running, again.lag_seconds) == (1, None)

    def test_they_are_read_at_once_however_many_schedules_there_are(self, timed: fencepost.App) -> None:
        with statements(timed.store) as few:
            timed.schedules.figures()
        for number in range(20):
            timed.schedules.upsert(f"s{number}", "send", every=60)
            timed.schedules.trigger(f"s{number}")
        with statements(timed.store) as many:
            assert len(timed.schedules.figures()) == 21
        assert len(few) == len(many)

    def test_those_of_a_deleted_schedule_are_left_out(self, timed: fencepost.App) -> None:
        timed.schedules.trigger("hourly")
        timed.schedules.delete("hourly")
        assert timed.schedules.figures() == []


class TestHostileText:
    def test_it_is_shown_and_not_obeyed(self, run: Run, at: str, kept: Store, hourly: fencepost.App) -> None:
        hourly.schedules.upsert("x", "send", every=60)
        hourly.schedules.trigger("x")
        name = f"s{HOSTILE}"[:150]
        spoil(kept, "x", name=name, kind=f"k{HOSTILE}", timing="{", error=HOSTILE, declared_in=HOSTILE)
        job_id = put(kept, kind=f"k{HOSTILE}").id
        overwrite(kept, job_id, schedule=name, scheduled_for=1, trigger="hostile\x1b")
        for command in (
            *(["schedules", "list"], ["schedules", "show", name], ["schedules", "next", name]),
            *(["schedules", "pause", name], ["schedules", "resume", name], ["schedules", "trigger", name]),
            *(["occurrences", "list"], ["occurrences", "show", job_id], ["doctor"], ["schedules", "delete", name]),
        ):
            shown = run(*command, "--url", at)
            assert_harmless(shown.out + shown.err)
            as_json = run(*command, "--url", at, "--json")
            assert_harmless(as_json.out + as_json.err)
            assert as_json.out.isascii()


class TestTheDoctor:
    def test_a_schedule_that_nothing_will_fire_is_a_problem(self, timed: fencepost.App) -> None:
        finding = found(timed.store, "planner")
        assert finding.level is Level.PROBLEM
        assert "1 schedule is active, and no worker is alive" in finding.what
        report_worker(timed.store, kinds='["send"]')
        assert found(timed.store, "planner").level is Level.OK

    def test_a_paused_one_needs_no_worker(self, timed: fencepost.App) -> None:
        timed.schedules.pause("hourly")
        assert found(timed.store, "planner").level is Level.OK

    def test_a_kind_that_no_living_worker_knows_is_a_warning(self, timed: fencepost.App) -> None:
        report_worker(timed.store, kinds='["other"]')
        finding = found(timed.store, "schedule-kinds")
        assert finding.level is Level.WARNING
        assert "'hourly' (kind 'send' in queue 'mail')" in finding.what
        report_worker(timed.store, kinds='["send"]', queues='["elsewhere"]')
        assert found(timed.store, "schedule-kinds").level is Level.WARNING
        report_worker(timed.store, kinds='["send"]', queues='["mail"]')
        assert found(timed.store, "schedule-kinds").level is Level.OK

    def test_a_cursor_that_is_overdue_by_more_than_the_grace_is_a_problem(
        self, timed: fencepost.App, clock: VirtualClock
    ) -> None:
        due = timed.schedules.get("hourly").next_fire_at
        assert due is not None
        clock.advance(int(due.timestamp()) - clock.now() // SECOND + 59)
        assert found(timed.store, "cursors").level is Level.OK
        clock.advance(5)
        finding = found(timed.store, "cursors")
        assert finding.level is Level.PROBLEM
        assert "'hourly' (6" in finding.what
        timed.store.materialise_due()
        assert found(timed.store, "cursors").level is Level.OK

    def test_one_that_cannot_be_decoded_is_a_problem_before_a_planner_meets_it(self, timed: fencepost.App) -> None:
        assert found(timed.store, "schedules").level is Level.OK
        spoil(timed.store, "hourly", options='{"new option": 1}')
        finding = found(timed.store, "schedules")
        assert finding.level is Level.PROBLEM
        assert "'hourly' (The schedule 'hourly' cannot be decoded" in finding.what

    def test_jobs_that_wait_for_a_free_permit_are_a_problem(self, store: Store, clock: VirtualClock) -> None:
        for _ in range(2):
            put(store, concurrency=Concurrency("key"))
        claim_one(store, lease=3600)
        assert store.claim("other", kinds=["k"]) == []
        clock.advance(30)
        assert found(store, "permits").level is Level.OK  # it is held
        store.database.write(lambda conn: conn.execute(update(permits).values(job_id=None, lease_token=None)))
        finding = found(store, "permits")
        assert finding.level is Level.PROBLEM
        assert "1 job for 'key' (1 free)" in finding.what
        assert store.wake_freed() == 1
        assert found(store, "permits").level is Level.OK


def test_the_json_of_a_listing_is_one_value(run: Run, at: str, hourly: fencepost.App) -> None:
    hourly.schedules.trigger("hourly")
    for group in ("schedules", "occurrences"):
        ended = run(group, "list", "--url", at, "--json")
        assert len(json.loads(ended.out)) == 1
        assert not ended.err


def test_the_environment_names_the_database(
    run: Run, at: str, hourly: fencepost.App, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_URL", at)
    assert run("schedules", "list").out.splitlines()[1].startswith("hourly")


def test_a_schedule_that_has_made_its_runs_says_so_when_it_is_resumed(
    run: Run, at: str, timed: fencepost.App, clock: VirtualClock
) -> None:
    timed.schedules.upsert("hourly", "send", every=3600, max_runs=1)
    clock.advance(3600)
    timed.store.materialise_due()
    timed.schedules.pause("hourly")
    ended = run("schedules", "resume", "hourly", "--url", at)
    assert "next never" in ended.out
    assert "has made its 1 runs" in ended.err
