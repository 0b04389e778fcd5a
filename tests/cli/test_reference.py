"""Every command is documented: in its help, with an example, and on the page that is made from it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.reference import commands, reference
from tests.cli.conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
ALL = dict(commands())
LEAVES = [words for words, command in ALL.items() if not hasattr(command, "commands")]


def test_the_tree_is_the_one_that_was_promised() -> None:
    assert {words.removeprefix("fencepost ") for words in LEAVES} >= {
        *("worker", "demo", "migrate", "prune", "doctor"),
        *("jobs list", "jobs show", "jobs retry", "jobs cancel", "jobs enqueue"),
        *("queues list", "queues pause", "queues resume", "workers list"),
        *("schedules list", "schedules show", "schedules next", "schedules set", "schedules pause", "schedules resume"),
        *("schedules trigger", "schedules backfill", "schedules delete"),
        *("occurrences list", "occurrences show", "occurrences retry", "occurrences cancel"),
    }


@pytest.mark.parametrize("words", LEAVES)
def test_a_commands_help_has_one_example_of_itself(run: Run, words: str) -> None:
    ended = run(*words.split()[1:], "--help")
    assert ended.code == 0
    assert ended.out.count("Example:") == 1
    (example,) = [line for line in ended.out.splitlines() if line.startswith(f"    {words}")]
    assert ALL[words].help.splitlines()[0].endswith(".")
    given = [word for word in shlex.split(example) if word.startswith("--")]
    known = {name for parameter in ALL[words].params for name in parameter.opts}
    assert set(given) <= known


@pytest.mark.parametrize("words", LEAVES)
def test_every_option_has_a_help_text(words: str) -> None:
    def is_told(parameter: Any) -> bool:
        return bool(parameter.help)

    assert all(is_told(parameter) for parameter in ALL[words].params)


@pytest.mark.parametrize("words", [words for words in LEAVES if words.split()[-1] in ("list", "show", "doctor")])
def test_what_is_read_can_be_had_as_json(words: str) -> None:
    assert any("--json" in parameter.opts for parameter in ALL[words].params)


@pytest.mark.parametrize("words", list(ALL))
def test_the_short_flag_gives_the_same_help(run: Run, words: str) -> None:
    assert run(*words.split()[1:], "-h").out == run(*words.split()[1:], "--help").out


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "stale: python -m fencepost.cli.reference > docs/cli.md"
