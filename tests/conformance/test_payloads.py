"""Payloads, errors and results: J11."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import exc

import fencepost
from fencepost.job import State
from fencepost.planning.outcome import Outcome, Verb
from fencepost.store import Store
from tests.jobs import claim_one, clear, new, promote_all, put, row, rows, statements

EVERY_PLANE = "".join(chr(code) for code in (0x20, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF))
TEXTS = {
    "empty": "",
    "emoji": "\U0001f600\U0001f469\u200d\U0001f467\U0001f3f3\ufe0f\u200d\U0001f308",
    "combining": "e\u0301 \u0628\u064f",
    "right to left": "\u202e\u05e2\u05d1\u05e8\u202c",
    "every plane": EVERY_PLANE,
    "controls": "".join(map(chr, range(1, 32))),
    "quotes": "'\"`\\%s :name ${x} \\u0000 --",
    "line ends": "a\r\nb\rc\n\u2028\u2029",
    "spaces": "  both ends  ",
}


@dataclass
class Point:
    x: int
    y: Decimal


class Colour(Enum):
    RED = "red"


def anything(value: Any) -> None: ...


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def handler_of(app: fencepost.App, function: Callable[..., None]) -> fencepost.JobFunction[..., None]:
    return app.job(kind="payload")(function)


def stored_and_read(app: fencepost.App, job: fencepost.JobFunction[..., None], value: Any) -> Any:
    """What a handler gets of a value that was enqueued."""
    handle = job.enqueue(value=value)
    (claim,) = app.store.claim("me", kinds=["payload"])
    assert claim.id == handle.id
    return job.handler.arguments.decode(claim.arguments)["value"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=name)
        for name, value in {
            **TEXTS,
            "none": None,
            "true": True,
            "2**53 + 1": 2**53 + 1,
            "2**63": 2**63,
            "-2**63": -(2**63),
            "2**64": 2**64,
            "2**200": 2**200,
            "float": 0.1 + 0.2,
            "smallest float": 5e-324,
            "negative zero": -0.0,
            "empty list": [],
            "empty dict": {},
            "mixed": {"a": [1, 2.5, None, {"ü": "😀"}], "": ""},
            "nested 100 deep": nested(100),
        }.items()
    ],
)
def test_a_value_that_json_carries_comes_back_equal(app: fencepost.App, value: Any) -> None:
    """J11: of the same type too, on every database."""
    back = stored_and_read(app, handler_of(app, anything), value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param("\ud800", "value.*surrogate", id="lone surrogate"),
        pytest.param({"a": ["x\udfff"]}, r"value\['a'\]\[0\].*surrogate", id="lone surrogate inside"),
        pytest.param({"\ud800": 1}, r"value.*key.*surrogate", id="lone surrogate in a key"),
        pytest.param(math.nan, "value is NaN", id="NaN"),
        pytest.param([1, math.inf], r"value\[1\] is Infinity", id="infinity"),
        pytest.param({"a": -math.inf}, r"value\['a'\] is -Infinity", id="negative infinity"),
        pytest.param(Decimal("NaN"), "value", id="Decimal NaN"),
        pytest.param(b"\xff\x00", "value", id="bytes that are no text"),
        pytest.param(b"abc", "value is a bytes", id="bytes"),
        pytest.param({1, 2}, "value is a set", id="set"),
        pytest.param(frozenset([1]), "value is a frozenset", id="frozenset"),
        pytest.param(Decimal("1.10"), "value is a Decimal", id="Decimal"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), "value is a datetime", id="datetime"),
        pytest.param(date(2026, 1, 1), "value is a date", id="date"),
        pytest.param(timedelta(seconds=1), "value is a timedelta", id="timedelta"),
        pytest.param(UUID(int=1), "value is a UUID", id="UUID"),
        pytest.param(Point(1, Decimal(2)), "value is a Point", id="dataclass"),
        pytest.param({"a": [Point(1, Decimal(2))]}, r"value\['a'\]\[0\] is a Point", id="dataclass inside"),
        pytest.param(object(), "value cannot be encoded", id="object"),
        pytest.param({(1, 2): 3}, "value.*key", id="tuple key"),
        pytest.param({None: 1}, "value.*key", id="None key"),
        pytest.param({True: 1}, "value.*key", id="bool key"),
        pytest.param({1: "a", "1": "b"}, "value", id="keys that fall together"),
        pytest.param(nested(2000), "nested too deeply", id="nested 2000 deep"),
    ],
)
def test_a_value_that_would_not_come_back_equal_is_refused_at_enqueue_and_nothing_is_stored(
    app: fencepost.App, value: Any, says: str
) -> None:
    """J11: with an error that names the path and the reason, the same on every database."""
    job = handler_of(app, anything)
    with pytest.raises(fencepost.EncodingError, match=rf"(?s)anything.*{says}"):
        job.enqueue(value=value)
    assert rows(app.store) == []
    assert stored_and_read(app, job, "the app goes on") == "the app goes on"


@pytest.mark.parametrize(
    ("value", "back"),
    [
        pytest.param((1, (2, 3)), [1, [2, 3]], id="a tuple comes back as a list"),
        pytest.param({1: "a"}, {"1": "a"}, id="an int key comes back as its text"),
        pytest.param("x\0y", "x\ufffdy", id="NUL becomes U+FFFD"),
        pytest.param({"a\0": ["\0"]}, {"a\ufffd": ["\ufffd"]}, id="NUL in a key and inside"),
        pytest.param("\\u0000\0\\\0", "\\u0000\ufffd\\\ufffd", id="the six letters are no NUL"),
    ],
)
def test_the_documented_changes_are_the_same_everywhere(app: fencepost.App, value: Any, back: Any) -> None:
    """J11."""
    assert stored_and_read(app, handler_of(app, anything), value) == back


def takes_bytes(value: bytes) -> None: ...
def takes_set(value: set[int]) -> None: ...
def takes_decimal(value: Decimal) -> None: ...
def takes_datetime(value: datetime) -> None: ...
def takes_uuid(value: UUID) -> None: ...
def takes_point(value: Point) -> None: ...
def takes_points(value: dict[str, list[Point]]) -> None: ...
def takes_tuple(value: tuple[int, ...]) -> None: ...
def takes_enum(value: Colour) -> None: ...
def takes_int_keys(value: dict[int, str]) -> None: ...
def takes_timedelta(value: timedelta) -> None: ...
def takes_big(value: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (takes_bytes, bytes(range(256))),
        (takes_set, {1, 2, 2**64}),
        (takes_decimal, Decimal("1.100000000000000000000000000001")),
        (takes_datetime, datetime(2100, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)),
        (takes_uuid, UUID(int=2**127)),
        (takes_point, Point(2**63, Decimal("0.10"))),
        (takes_points, {"ü": [Point(1, Decimal(2))]}),
        (takes_tuple, (1, 2, 3)),
        (takes_enum, Colour.RED),
        (takes_int_keys, {1: "a", -2: "b"}),
        (takes_timedelta, timedelta(days=400, microseconds=1)),
        (takes_big, 2**64 + 1),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_the_signature_names_comes_back_as_that(
    app: fencepost.App, function: Callable[..., None], value: Any
) -> None:
    """J11: annotated, each type comes back as what it is."""
    back = stored_and_read(app, handler_of(app, function), value)
    assert back == value
    assert type(back) is type(value)


def nothing() -> None: ...


def test_an_empty_payload_is_a_payload(app: fencepost.App) -> None:
    """J11."""
    job = app.job(kind="payload")(nothing)
    job.enqueue()
    claim = claim_one(app.store, "payload")
    assert claim.arguments == "{}"
    assert job.handler.arguments.decode(claim.arguments) == {}


@pytest.mark.parametrize("size", [7_900, 8_100, 65_535, 65_536, 65_537, 1_048_576])
@pytest.mark.parametrize("character", ["x", "ü", "😀"])
def test_arguments_results_and_errors_of_any_size_survive_byte_for_byte(
    store: Store, size: int, character: str
) -> None:
    """J11: at the limits of other queues' columns and messages, alone and in bulk."""
    width = len(character.encode())
    text = character * (size // width) + "y" * (size % width)
    assert len(text.encode()) == size
    arguments = f'{{"a":"{text[10:]}"}}'
    store.enqueue([new(arguments=arguments)])
    claim = claim_one(store)
    assert claim.arguments == arguments
    assert store.settle([(claim, Outcome(Verb.COMPLETE, result=f'"{text}"'))]) == [True]
    assert store.result_text(claim.id) == f'"{text}"'
    store.enqueue([new(arguments=arguments) for _ in range(3)])
    claims = store.claim("me", kinds=["k"], limit=3)
    assert [claimed.arguments for claimed in claims] == [arguments] * 3
    assert store.settle([(claimed, Outcome(Verb.COMPLETE, result=f'"{text}"')) for claimed in claims]) == [True] * 3
    assert {store.result_text(claimed.id) for claimed in claims} == {f'"{text}"'}


def test_the_largest_payload_that_is_allowed_is_stored_and_one_byte_more_is_refused(app: fencepost.App) -> None:
    """J11: refused at enqueue in words, before any database could cut or reject it."""
    job = handler_of(app, anything)
    room = fencepost.codec.MAX_PAYLOAD_BYTES - len('{"value":""}')
    escaped = 500_000  # twice the size as JSON, and twice that again on its way to some databases
    largest = "\\" * escaped + "x" * (room - 2 * escaped)
    assert stored_and_read(app, job, largest) == largest
    with pytest.raises(fencepost.EncodingError, match="limit is 6,291,456"):
        job.enqueue(value=largest + "x")
    assert len(rows(app.store)) == 1


def test_a_bulk_of_large_payloads_is_stored_whole(app: fencepost.App) -> None:
    """J11: more than one statement takes."""
    job = handler_of(app, anything)
    handles = app.enqueue_many(job.build(value=f"{n}" * 1_000_000) for n in range(10))
    claims = app.store.claim("me", kinds=["payload"], limit=10)
    assert [claim.id for claim in claims] == [handle.id for handle in handles]
    assert [job.handler.arguments.decode(claim.arguments)["value"] for claim in claims] == [
        f"{n}" * 1_000_000 for n in range(10)
    ]


def test_a_listing_and_the_passes_do_not_read_payloads(app: fencepost.App) -> None:
    """J11: they name their columns, and the large ones are not among them."""
    job = handler_of(app, anything)
    handle = job.using(delay=0.001).enqueue(value="x" * 100_000)
    with statements(app.store) as sent:
        (listed,) = app.jobs.list()
        while not promote_all(app.store):
            pass
    app.store.claim("me", kinds=["payload"], lease=0)
    with statements(app.store) as later:
        while not app.store.reclaim_expired():
            pass
        app.store.prune(0)
    assert (listed.id, listed.arguments) == (handle.id, None)
    reads = [each for each in sent + later if each.startswith("SELECT") and "fencepost_jobs.state" in each]
    assert reads
    assert not any("fencepost_jobs.arguments" in statement for statement in reads)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_errors_tags_tenants_and_notes_survive_byte_for_byte(store: Store, text: str) -> None:
    """J11: in single and in group settlements."""
    job_id = put(store, tags=(text, "t"), tenant=text or None).id
    claim = claim_one(store)
    assert (claim.tags, claim.tenant) == ((text, "t"), text or None)
    store.report_progress([(claim.lease, 0.25, text)])
    assert store.retry(claim, f"<{text}>", after=0)
    put(store)
    claims = store.claim("me", kinds=["k"], limit=2)
    job = store.get(job_id)
    assert job is not None
    assert (job.last_error, job.progress_note, job.tags) == (f"<{text}>", text, (text, "t"))
    outcomes = [(claim, Outcome(Verb.ABANDON, error=f"[{text}]")) for claim in claims]
    assert store.settle(outcomes) == [True, True]
    assert {row(store, claim.id)["last_error"] for claim in claims} == {f"[{text}]"}


def test_a_nul_or_a_lone_surrogate_in_an_error_becomes_a_replacement_character(store: Store) -> None:
    """J11: everywhere alike; an error cannot be refused, for the attempt has ended."""
    ids = [put(store).id for _ in range(2)]
    claims = store.claim("me", kinds=["k"], limit=2)
    assert store.settle([(claim, Outcome(Verb.ABANDON, error="a\0b\ud800c")) for claim in claims]) == [True, True]
    alone = put(store).id
    assert store.abandon(claim_one(store), "a\0b\ud800c")
    for job_id in (*ids, alone):
        job = store.get(job_id)
        assert job is not None
        assert job.last_error == "a\ufffdb\ufffdc"
        assert job.history[-1].error == "a\ufffdb\ufffdc"


def test_an_error_that_is_empty_is_no_error(store: Store) -> None:
    """J11: an exception without a text, on a database where the empty string is special."""
    job_id = put(store).id
    assert store.retry(claim_one(store), "", after=0)
    job = store.get(job_id)
    assert job is not None
    assert job.last_error in (None, "")
    assert job.state is State.READY


def test_a_result_that_cannot_be_stored_fails_its_job_and_says_why(app: fencepost.App) -> None:
    """J11: through the worker: the handler did its work, so it is not run again."""

    @app.job(kind="payload", max_attempts=3)
    def returns(what: str) -> Any:
        return {"nan": math.nan, "surrogate": "\ud800", "object": object(), "large": "x" * 7_000_000}[what]

    handles = {what: returns.enqueue(what=what) for what in ("nan", "surrogate", "object", "large")}
    app.run_worker(burst=True)
    for what, handle in handles.items():
        job = handle.job()
        assert (job.state, job.reason, job.attempts) == (State.FAILED, "unencodable_result", 1), what
        assert "returns" in (job.last_error or "")


@pytest.mark.parametrize("key", ["k\0", "\ud800", "", "x" * 513])
def test_a_key_that_cannot_be_stored_is_refused_in_words(app: fencepost.App, key: str) -> None:
    """J11: before anything is asked of the database."""
    job = handler_of(app, anything)
    with pytest.raises(fencepost.ConfigurationError, match="key"):
        job.using(key=key).enqueue(value=1)
    assert rows(app.store) == []


def test_a_kind_of_300_characters_is_stored_and_one_of_301_is_refused(app: fencepost.App) -> None:
    """J11: of four bytes each."""
    job = app.job(kind="😀" * 300)(nothing)
    assert job.enqueue().job().kind == "😀" * 300
    assert claim_one(app.store, "😀" * 300).kind == "😀" * 300
    with pytest.raises(fencepost.ConfigurationError, match="kind has at most 300 characters"):
        app.job(kind="k" * 301)(nothing)


def test_a_text_beyond_its_column_is_an_error_and_not_cut(store: Store) -> None:
    """J11: should a check of ours be passed by, the servers refuse; SQLite keeps it whole."""
    if store.database.dialect.name == "sqlite":
        assert row(store, put(store, queue="q" * 101).id)["queue"] == "q" * 101
        return
    with pytest.raises(exc.DataError):
        put(store, queue="q" * 101)
    assert rows(store) == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300),
    others=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=4),
)
def test_any_text_survives_as_argument_result_and_error(store: Store, text: str, others: list[str]) -> None:
    """J11: single and in bulk."""
    clear(store)
    texts = [text, *others]
    store.enqueue([new(arguments=given_text) for given_text in texts])
    claims = store.claim("me", kinds=["k"], limit=10)
    assert [claim.arguments for claim in claims] == texts
    completions = [(claim, Outcome(Verb.COMPLETE, result=claim.arguments)) for claim in claims]
    assert all(store.settle(completions))
    assert [store.result_text(claim.id) for claim in claims] == texts
