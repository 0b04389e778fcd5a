"""What an enqueue may ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.errors import ConfigurationError
from fencepost.job import Backoff, Dependency, Hold, OnConflict, Options, Priority, When
from fencepost.options import Asked, build_options, check_name

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MICROS = 1_767_268_800_000_000
JOB = "01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {}),
        ({"queue": "mail"}, {"queue": "mail"}),
        ({"priority": "high"}, {"priority": Priority.HIGH}),
        ({"priority": Priority.LOW}, {"priority": Priority.LOW}),
        ({"delay": 1.5}, {"delay": 1_500_000}),
        ({"delay": timedelta(hours=1)}, {"delay": 3_600_000_000}),
        ({"run_at": NOON}, {"run_at": NOON_MICROS}),
        ({"deadline": NOON}, {"deadline": NOON_MICROS}),
        ({"duration_hint": 2}, {"duration_hint": 2_000_000}),
        ({"timeout": timedelta(minutes=1)}, {"timeout_seconds": 60.0}),
        ({"timeout": None}, {"timeout_seconds": None}),
        ({"max_attempts": 1}, {"max_attempts": 1}),
        ({"backoff": 5}, {"backoff": 5.0}),
        ({"backoff": [1, timedelta(seconds=2)]}, {"backoff": (1.0, 2.0)}),
        ({"backoff": Backoff(base=1)}, {"backoff": Backoff(base=1)}),
        ({"key": "user 7 "}, {"key": "user 7 "}),
        ({"hold": "queued"}, {"hold": Hold.QUEUED}),
        ({"on_conflict": "replace"}, {"on_conflict": OnConflict.REPLACE}),
        ({"keep_result": False}, {"keep_result": False}),
        ({"tags": ["a", "b"]}, {"tags": ("a", "b")}),
        ({"tenant": "acme"}, {"tenant": "acme"}),
        ({"labels": {"zone": "eu", "gpu": "ä=1"}}, {"labels": '{"gpu":"ä=1","zone":"eu"}'}),
        ({"labels": {}}, {"labels": None}),
        ({"labels": None}, {"labels": None}),
    ],
    ids=str,
)
def test_what_is_asked_for_is_kept_in_the_stores_units(asked: Any, expected: dict[str, Any]) -> None:
    assert build_options(Options(), **asked) == Options(**expected)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"labels": ["gpu"]}, "labels is a dict of names and values"),
        ({"labels": {"gpu": 1}}, "gpu has a non-empty string"),
        ({"labels": {"gpu": ""}}, "gpu has a non-empty string"),
        ({"labels": {7: "a"}}, "a label's name"),
        ({"labels": {"": "a"}}, "a label's name"),
        ({"labels": {"a=b": "a"}}, "a label's name"),
        ({"labels": {'a"': "a"}}, "a label's name"),
        ({"labels": {"-a": "a"}}, "a label's name"),
        ({"labels": {"n" * 64: "a"}}, "a label's name"),
        ({"labels": {"n": "v" * 101}}, "at most 100 characters; that of n has 101"),
        ({"labels": {"n": "v\n"}}, "no control characters"),
        ({"labels": {"n": " v"}}, "no spaces at its ends"),
        ({"labels": {f"n{n}": "v" for n in range(21)}}, "at most 20 labels, not 21"),
        ({"queue": ""}, "queue is a non-empty string"),
        ({"queue": 7}, "queue is a non-empty string"),
        ({"queue": "q" * 101}, "queue has at most 100"),
        ({"queue": " q"}, "no spaces at its ends"),
        ({"queue": "a\nb"}, "no control characters"),
        ({"priority": "urgent"}, "priority is one of critical, high, normal, low"),
        ({"delay": -1}, "delay is between"),
        ({"delay": "soon"}, "delay is a number"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at=.*no time zone"),  # noqa: DTZ001 - that is the point
        ({"deadline": 5}, "deadline is an aware datetime"),
        ({"delay": 1, "run_at": NOON}, "both say when"),
        ({"timeout": 0}, "timeout is more than 0"),
        ({"max_attempts": 0}, "max_attempts is a whole number"),
        ({"max_attempts": True}, "max_attempts is a whole number"),
        ({"max_attempts": 1.5}, "max_attempts is a whole number"),
        ({"max_attempts": 10**7}, "max_attempts is a whole number"),
        ({"backoff": []}, "backoff is seconds"),
        ({"backoff": "slow"}, "backoff is seconds"),
        ({"backoff": [-1]}, "backoff is between"),
        ({"key": ""}, "key is a non-empty string"),
        ({"key": 7}, "key is a non-empty string"),
        ({"key": "k" * 513}, "key has at most 512"),
        ({"key": "a\0"}, "key has no NUL"),
        ({"key": "\udcff"}, "key has no NUL and no lone surrogates"),
        ({"hold": "forever"}, "hold is one of live, queued"),
        ({"on_conflict": "merge"}, "on_conflict is one of keep, replace"),
        ({"tags": "a"}, "tags is a list"),
        ({"tags": ["x"] * 51}, "at most 50 tags"),
        ({"tags": [""]}, "a tag is a non-empty string"),
        ({"tenant": "t" * 201}, "tenant has at most 200"),
        ({"prioritty": "high"}, "no option 'prioritty'.*priority"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_words(asked: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        build_options(Options(), **asked)


def test_what_is_not_asked_for_stays_and_what_is_asked_for_replaces() -> None:
    base = build_options(Options(), queue="mail", delay=5, tags=["a"])
    changed = build_options(base, priority="high", run_at=NOON)
    assert (changed.queue, changed.tags, changed.priority) == ("mail", ("a",), Priority.HIGH)
    assert (changed.delay, changed.run_at) == (None, NOON_MICROS)
    assert build_options(changed, delay=1).run_at is None
    assert build_options(base, delay=None).delay is None


def test_every_option_that_can_be_asked_for_is_understood() -> None:
    """None is missed by the match, and none that is not declared slips through."""
    values: dict[str, Any] = {
        "queue": "q",
        "priority": "low",
        "delay": 1,
        "run_at": NOON,
        "deadline": NOON,
        "duration_hint": 1,
        "timeout": 1,
        "max_attempts": 1,
        "backoff": 1,
        "key": "k",
        "hold": "live",
        "on_conflict": "keep",
        "keep_result": True,
        "tags": ["t"],
        "labels": {"n": "v"},
        "concurrency": ("key", 2),
        "rate": ("key", 5, 10),
        "resources": {"api": 1},
        "start_at": NOON,
        "tolerance": 1,
        "on_miss": "skip",
        "tenant": "t",
        "after": JOB,
        "when": "failure",
    }
    assert set(values) == set(Asked.__annotations__)
    for name, value in values.items():
        asked: Any = {name: value} | ({"start_at": NOON} if name in ("tolerance", "on_miss") else {})
        asked |= {"after": JOB} if name == "when" else {}
        build_options(Options(), **asked)


def test_a_job_waits_for_whatever_names_another() -> None:
    by_id, by_key = Dependency(JOB, When.FAILURE), Dependency(None, When.FAILURE, "kind", "key")
    assert build_options(Options(), after=JOB, when="failure").after == (by_id,)
    assert build_options(Options(), after=[JOB, ("kind", "key"), JOB], when="failure").after == (by_id, by_key)
    assert build_options(build_options(Options(), after=JOB), when="failure").after == (by_id,)
    assert build_options(build_options(Options(), after=JOB), after=None).after == ()


@pytest.mark.parametrize(
    "asked",
    [{"after": "nobody"}, {"after": 7}, {"after": (JOB, 7)}, {"when": "success"}, {"after": JOB, "when": "never"}],
)
def test_what_names_no_job_to_wait_for_is_refused(asked: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"after|when"):
        build_options(Options(), **asked)


@pytest.mark.parametrize("name", ["module.function", "😀", "a b", "A" * 300])
def test_a_name_may_be_any_text_that_every_database_compares_alike(name: str) -> None:
    assert check_name(name, "kind") == name
