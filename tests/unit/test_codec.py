"""Arguments and results as JSON text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from fencepost.codec import ArgumentsCodec, ResultCodec, clean_text
from fencepost.errors import ArgumentsError, ConfigurationError, DecodingError, EncodingError
from fencepost.job import Claim

# Any type may stand for the context; the codec is told which.
Context = Claim

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Mixed(Enum):
    ONE = "one"


@dataclass
class Point:
    x: int
    y: Decimal = Decimal(0)
    more: list[int] = field(default_factory=list)


class Order(BaseModel):
    number: int
    lines: dict[str, Point] = Field(default_factory=dict)
    placed: datetime | None = None


class Later(BaseModel):
    following: Following | None = None


class Following(BaseModel):
    number: int


Later.model_rebuild()


def codec(function: Any) -> ArgumentsCodec:
    return ArgumentsCodec(function, Context)


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    made = codec(function)
    return made.decode(made.encode(args, kwargs))


def anything(value: Any) -> None: ...
def untyped(value): ...  # type: ignore[no-untyped-def]


@settings(deadline=None)
@given(JSON)
def test_any_json_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    """J11: whether the signature says Any or nothing."""

    def same(one: Any, two: Any) -> bool:
        if isinstance(one, list):
            return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
        if isinstance(one, dict):
            return isinstance(two, dict) and one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
        return type(one) is type(two) and one == two

    for function in (anything, untyped):
        assert same(there_and_back(function, value)["value"], value)
    results = ResultCodec(Any, "f")
    assert same(results.decode(results.encode(value)), value)


@settings(deadline=None)
@given(
    st.binary(max_size=50),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(UTC)),
    st.uuids(),
    st.frozensets(st.integers()),
    st.timedeltas(timedelta(-(10**6)), timedelta(10**6)),
    st.builds(Point, st.integers(), st.decimals(allow_nan=False, allow_infinity=False), st.lists(st.integers())),
)
def test_annotated_values_come_back_as_what_they_are(
    raw: bytes, price: Decimal, at: datetime, name: UUID, parts: frozenset[int], span: timedelta, point: Point
) -> None:
    """J11."""

    def handler(
        raw: bytes, price: Decimal, at: datetime, name: UUID, parts: frozenset[int], span: timedelta, point: Point
    ) -> None: ...

    wanted = {"raw": raw, "price": price, "at": at, "name": name, "parts": parts, "span": span, "point": point}
    back = there_and_back(handler, **wanted)
    assert back == wanted
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in wanted.items()}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Colour, Colour.RED),
        (Size, Size.LARGE),
        (Mixed, Mixed.ONE),
        (date, date(2026, 1, 1)),
        (time, time(1, 2, 3, 4)),
        (Order, Order(number=1, lines={"a": Point(1, Decimal("1.10"))}, placed=datetime(2026, 1, 1, tzinfo=UTC))),
        (Later, Later(following=Following(number=1))),
        (list[Point], [Point(1), Point(2)]),
        (dict[UUID, tuple[int, str]], {UUID(int=1): (1, "a")}),
        (dict[int, str], {1: "a"}),
        (int | None, None),
        (Literal["a", "b"], "b"),
        (Annotated[int, Field(gt=0)], 5),
        (datetime | None, datetime(2026, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_a_type_that_the_signature_names_comes_back(annotation: Any, value: Any) -> None:
    """J11: as argument and as result."""

    def handler(value: Any) -> Any: ...

    handler.__annotations__ = {"value": annotation, "return": annotation}
    back = there_and_back(handler, value)["value"]
    assert back == value
    assert type(back) is type(value)
    results = ResultCodec.of(handler)
    returned = results.decode(results.encode(value))
    assert returned == value
    assert type(returned) is type(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [0, {"b": math.nan}]}, r"value\['a'\]\[1\]\['b'\] is NaN"),
        ([0, "\ud800"], r"value\[1\] holds a lone surrogate"),
        ({"\ud800": 0}, r"value \(a key\) holds a lone surrogate"),
        ({"a": (1, {2})}, r"value\['a'\]\[1\] is a set"),
        ({"a": Decimal(1)}, r"value\['a'\] is a Decimal.*Annotate"),
        ([Mixed.ONE], r"value\[0\] is a Mixed"),
        ({"a": {b"x": 1}}, r"value\['a'\] has the key b'x'"),
        (object(), "value cannot be encoded"),
    ],
)
def test_a_refusal_names_the_handler_the_path_and_the_reason(value: Any, says: str) -> None:
    """J11."""
    with pytest.raises(EncodingError, match=rf"(?s)^anything: .*{says}"):
        codec(anything).encode((value,), {})


def test_a_union_that_json_would_blur_is_refused() -> None:
    """J11: a text that would come back as the other member of its union."""

    def handler(value: str | bytes) -> None: ...

    with pytest.raises(EncodingError, match="value"):
        codec(handler).encode((b"abc",), {})


def several(a: int, b: str = "b", *, c: float = 1.0) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "a is missing"),
        (("x",), {}, "a: .*integer.*got 'x'"),
        ((1,), {"d": 1}, "d is not a parameter"),
        ((1,), {"a": 2}, "a given twice"),
        ((1, "b", 1.0, 4), {}, "takes 3 arguments .a, b, c., but 4 were given"),
        ((), {"b": 5, "c": "x"}, "a is missing; b: .*; c: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused_each_by_name(args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(ArgumentsError, match=rf"several.*{says}"):
        codec(several).encode(args, kwargs)


def test_arguments_may_be_given_by_place_or_by_name_and_defaults_are_the_handlers_own() -> None:
    """A default that changes later applies to jobs that did not name the argument."""
    assert there_and_back(several, 1, c=2.5) == {"a": 1, "c": 2.5}
    assert there_and_back(several, b="x", a=1) == {"a": 1, "b": "x"}


def test_parameters_may_have_names_that_mean_something_elsewhere() -> None:
    def handler(
        schema: int, copy: str, json: Any, model_config: int, model_fields: int, validate: int, f0: int, construct: int
    ) -> None: ...

    wanted = {
        "schema": 1,
        "copy": "x",
        "json": [1],
        "model_config": 2,
        "model_fields": 3,
        "validate": 4,
        "f0": 5,
        "construct": 6,
    }
    assert there_and_back(handler, **wanted) == wanted

    class Odd:
        @staticmethod
        def handler(self: int, cls: int, args: int, kwargs: int) -> None: ...

    assert there_and_back(Odd.handler, 1, 2, args=3, kwargs=4) == {"self": 1, "cls": 2, "args": 3, "kwargs": 4}


def test_keywords_of_any_name_are_kept_where_the_handler_takes_them() -> None:
    def handler(a: int, **rest: Any) -> None: ...

    assert there_and_back(handler, 1, schema="s", f0=[1], b=None) == {"a": 1, "schema": "s", "f0": [1], "b": None}
    with pytest.raises(EncodingError, match="b is a set"):
        codec(handler).encode((1,), {"b": {1}})


def test_positional_parameters_that_have_no_name_are_refused_at_registration() -> None:
    def var(*values: int) -> None: ...
    def only(value: int, /) -> None: ...

    for function in (var, only):
        with pytest.raises(ConfigurationError, match="stored by name"):
            codec(function)


def test_the_context_is_no_argument_wherever_it_stands() -> None:
    def first(ctx: Context, a: int) -> None: ...
    def last(a: int, context: Context) -> None: ...
    def keyword(a: int, *, c: Context) -> None: ...
    def optional(a: int, c: Context | None = None) -> None: ...
    def none(a: int) -> None: ...

    for function, name in ((first, "ctx"), (last, "context"), (keyword, "c"), (optional, "c"), (none, None)):
        made = codec(function)
        assert made.context_parameter == name
        assert made.decode(made.encode((7,), {})) == {"a": 7}
        if name is not None:
            with pytest.raises(ArgumentsError, match="is not a parameter"):
                made.encode((7,), {name: None})


def later(order: Order, following: NamedLater) -> None: ...


class NamedLater(BaseModel):
    number: int


def test_annotations_may_name_what_is_defined_later_in_the_module() -> None:
    back = there_and_back(later, Order(number=1), NamedLater(number=2))
    assert back == {"order": Order(number=1), "following": NamedLater(number=2)}


def test_an_annotation_that_cannot_be_resolved_is_refused_in_words() -> None:
    def handler(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"handler cannot be resolved: .*Nowhere"):
        codec(handler)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a":"x"}', "{}", '{"a":1,"z":2}', "null", '{"a":1}}'])
def test_a_text_that_does_not_fit_the_signature_any_more_says_so(text: str) -> None:
    with pytest.raises(DecodingError, match="do not fit"):
        codec(several).decode(text)


def test_a_result_of_nothing_is_nothing() -> None:
    results = ResultCodec(Any, "f")
    assert results.encode(None) is None
    assert results.decode(None) is None


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (Any, {1, 2}, "the result is a set"),
        (Any, object(), "f returned a object that cannot be stored"),
        (Any, [math.inf], r"result\[0\] is Infinity"),
        (Any, "\ud800", "cannot be stored"),
        (int, "text", "f returned a str that cannot be stored"),
        (Any, "x" * 101, "f: the result are 103 bytes encoded; the limit is 100"),
    ],
)
def test_a_result_that_would_not_come_back_equal_is_refused(annotation: Any, value: Any, says: str) -> None:
    """J11."""
    with pytest.raises(EncodingError, match=says):
        ResultCodec(annotation, "f", max_bytes=100).encode(value)


def test_a_stored_result_that_is_not_of_the_declared_type_says_so() -> None:
    with pytest.raises(DecodingError, match="does not fit f"):
        ResultCodec(int, "f").decode('"text"')


@pytest.mark.parametrize("size", [99, 100, 101])
def test_the_limit_is_counted_in_bytes_as_they_are_stored(size: int) -> None:
    made = ArgumentsCodec(anything, Context, max_bytes=100)
    text = "ü" * ((size - len('{"value":""}')) // 2) + "x" * ((size - len('{"value":""}')) % 2)
    if size <= 100:
        assert len(made.encode((text,), {}).encode()) == size
    else:
        with pytest.raises(EncodingError, match="101 bytes encoded; the limit is 100"):
            made.encode((text,), {})


@given(st.text())
def test_clean_text_changes_nothing_but_nul_and_lone_surrogates(text: str) -> None:
    cleaned = clean_text(text + "\0\ud800")
    assert len(cleaned) == len(text) + 2
    cleaned.encode()
    assert "\0" not in cleaned
    assert all(new == old or (new == "\ufffd" and old in "\0\ud800") for new, old in zip(cleaned, text, strict=False))
