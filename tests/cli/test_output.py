"""Output is safe for hostile text, keeps ids whole, and fits whatever it is printed on."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fencepost.cli import output
from fencepost.cli.logs import LogFormat, LogLevel, configure
from fencepost.cli.options import age, duration
from fencepost.cli.output import Column, fields, since, table, write_json
from fencepost.cli.printable import one_line, printable
from fencepost.ids import new_id
from fencepost.store import Store
from tests.cli.conftest import Run
from tests.jobs import claim_one, put

HOSTILE = "[bold red]x[/] [/] :boom: \x1b]0;title\x07 \x1b[2J \x9b31m \u202egnp\u2066 \x7f\b\r\nsecond\u2028third"
HARMFUL = "\x1b\x07\x08\x9b\x7f\r\u202e\u2066\u2028"


def assert_harmless(text: str) -> None:
    assert not set(text) & set(HARMFUL)


class TestHostileText:
    @given(st.text())
    def test_no_control_character_passes(self, text: str) -> None:
        assert_harmless(printable(text))
        assert "\n" not in one_line(text)
        assert all(
            character == "\n" or character.isprintable() or ord(character) > 0x9F
            for character in printable(text, keeps_lines=True)
        )

    @given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"))))
    def test_ordinary_text_stays_as_it_is(self, text: str) -> None:
        assert printable(text) == text

    def test_markup_is_shown_and_not_obeyed_in_every_listing(self, run: Run, at: str, kept: Store) -> None:
        arguments = json.dumps({"[red]a[/]": HOSTILE})
        made = put(
            kept, kind=f"k{HOSTILE}", queue=f"q{HOSTILE}"[:90], arguments=arguments, tags=(HOSTILE,), key=HOSTILE
        )
        (claim,) = kept.claim(f"w{HOSTILE}", kinds=[f"k{HOSTILE}"])
        kept.abandon(claim, f"Traceback\n{HOSTILE}")
        kept.set_paused(f"q{HOSTILE}"[:90], paused=True)
        described = {
            "owner": f"w{HOSTILE}",
            "host": "h",
            "pid": 1,
            "concurrency": 1,
            "running": 0,
            "lease": 1,
            "started_at": 0,
        }
        kept.record_worker(described | {"kinds": json.dumps([HOSTILE]), "queues": json.dumps([HOSTILE])})
        for command in (
            ["jobs", "list"],
            ["jobs", "show", made.id],
            ["queues", "list"],
            ["workers", "list"],
            ["queues", "pause", f"q{HOSTILE}"[:90]],
            ["jobs", "retry", HOSTILE],
            ["doctor"],
        ):
            shown = run(*command, "--url", at)
            assert_harmless(shown.out + shown.err)
            as_json = run(*command, "--url", at, "--json")
            assert_harmless(as_json.out)
            assert as_json.out.isascii()
        assert "[bold red]x[/]" in run("jobs", "show", made.id, "--url", at).out
        assert run("jobs", "show", made.id, "--url", at, "--json").json["arguments"] == {"[red]a[/]": HOSTILE}

    def test_a_lone_surrogate_is_printed_as_its_escape(self, run: Run, at: str, kept: Store) -> None:
        made = put(kept, arguments='{"a": "\\ud800"}').id
        assert "\\ud800" in run("jobs", "show", made, "--url", at).out
        assert run("jobs", "show", made, "--url", at, "--json").json["arguments"] == {"a": "\ud800"}

    def test_numbers_that_json_has_no_word_for_are_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_json([float("inf"), float("nan"), 1.5])
        assert json.loads(capsys.readouterr().out) == ["inf", "nan", 1.5]


def printed(width: int, columns: list[Column], rows: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a table on a terminal of this width."""
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None, highlight=False, markup=False)
    monkeypatch.setattr(output, "console", lambda **_: terminal)
    table(columns, rows, empty="")
    return out.getvalue().splitlines()


COLUMNS = [
    Column("ID"),
    Column("KIND", least=8, keeps_end=True),
    Column("QUEUE", least=6, yields=1),
    Column("NOTE", least=8, yields=2),
]
ROW = [new_id(), "package.module.send_welcome", "a queue with a name", "a longer note about it " * 3]


class TestWidths:
    @pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 50])
    def test_a_table_fits_the_terminal_and_its_ids_are_whole(self, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        head, line = printed(width, COLUMNS, [ROW], monkeypatch)
        assert len(head) <= width
        assert len(line) <= width
        assert line.startswith(ROW[0])
        assert "send_welcome"[-6:] in line

    def test_columns_yield_in_their_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert printed(70, COLUMNS, [ROW], monkeypatch)[0].split() == ["ID", "KIND", "QUEUE", "NOTE"]
        assert printed(58, COLUMNS, [ROW], monkeypatch)[0].split() == ["ID", "KIND", "QUEUE"]
        assert printed(48, COLUMNS, [ROW], monkeypatch)[0].split() == ["ID", "KIND"]

    def test_where_nothing_fits_each_row_is_a_block_with_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = printed(30, COLUMNS, [ROW, ROW], monkeypatch)
        assert lines[0] == f"id {ROW[0]}"
        assert lines[1] == f"kind {ROW[1]}"
        assert lines.count("") == 1

    def test_wide_characters_are_counted_by_their_width(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, line = printed(60, [Column("ID"), Column("NOTE", least=8)], [[new_id(), "日本語" * 10]], monkeypatch)
        assert Console(width=200).measure(line).maximum <= 60

    def test_a_pipe_gets_everything(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        table(COLUMNS, [ROW], empty="")
        _, line = capsys.readouterr().out.splitlines()
        for value in ROW:
            assert value.strip() in line

    def test_fields_of_several_lines_stand_below_their_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        fields([("a", "1"), ("longer", "2"), ("text", "x\n\ty\n")])
        assert capsys.readouterr().out == "a       1\nlonger  2\ntext\n    x\n        y\n"


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "said"),
        [(-5, "5s ago"), (5, "in 5s"), (-119, "119s ago"), (-150, "2m ago"), (7200, "in 2h"), (-200_000, "2d ago")],
    )
    def test_instants_are_told_against_now(self, seconds: int, said: str) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        assert since(now + timedelta(seconds=seconds), now) == said

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90s", 90),
            ("15m", 900),
            ("12h", 43_200),
            ("7d", 604_800),
            ("1h30m", 5400),
            ("2w", 1_209_600),
            ("500ms", 0.5),
        ],
    )
    def test_durations_are_read(self, text: str, seconds: float) -> None:
        assert age(text) == duration(text) == seconds

    def test_a_plain_number_is_seconds_where_that_is_plain(self) -> None:
        assert duration("30") == 30
        assert duration("0.2") == 0.2


class TestLogs:
    @pytest.fixture(autouse=True)
    def as_before(self) -> object:
        root = logging.getLogger()
        before = (root.level, list(root.handlers))
        yield
        logging.captureWarnings(False)
        root.level, root.handlers = before

    def logged(self, form: LogFormat) -> list[str]:
        out = io.StringIO()
        configure(form, LogLevel.INFO, Console(file=out, width=40, highlight=False, markup=False, emoji=False))
        logger = logging.getLogger("fencepost.test")
        logger.debug("not this")
        logger.info("hello %s", HOSTILE, extra={"job_id": "7", "odd": {1}})
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("it failed")
        return out.getvalue().splitlines()

    def test_json_is_one_object_a_line_with_the_extra_fields(self) -> None:
        first, second = (json.loads(line) for line in self.logged(LogFormat.JSON))
        assert first["message"] == f"hello {HOSTILE}"
        assert (first["level"], first["logger"], first["job_id"], first["odd"]) == (
            "info",
            "fencepost.test",
            "7",
            "{1}",
        )
        assert datetime.fromisoformat(first["ts"]).utcoffset() == timedelta(0)
        assert second["exception"].startswith("Traceback")

    def test_text_is_for_people_and_harmless(self) -> None:
        lines = self.logged(LogFormat.TEXT)
        assert_harmless("".join(lines))
        assert "INFO     hello [bold red]x[/]" in lines[0]
        assert any(line.startswith("Traceback") for line in lines)


def test_a_claimed_job_is_shown_with_its_lease(run: Run, at: str, kept: Store) -> None:
    made = put(kept).id
    claim = claim_one(kept, owner="host:1:aa")
    kept.report_progress([(claim.lease, 0.5, "half-way")])
    assert "50% half-way" in run("jobs", "list", "--url", at).out
    shown = run("jobs", "show", made, "--url", at).out
    assert "host:1:aa, until " in shown
    assert "50% half-way" in shown
