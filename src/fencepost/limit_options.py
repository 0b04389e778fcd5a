"""What `using(...)` says of limits, checked: values as they stand, and functions of a job's arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from fencepost.errors import ConfigurationError
from fencepost.job import Concurrency, Options, Rate
from fencepost.planning.gcra import MOST_BURST, MOST_PER_SECOND
from fencepost.schedule import OWN_KEY_PREFIX
from fencepost.store.tables import KEY_CHARS

__all__ = [
    "MOST_AMOUNT",
    "AskedConcurrency",
    "AskedRate",
    "check_burst",
    "check_computed",
    "check_rate",
    "check_text",
    "check_whole",
    "limit_changes",
    "resolve",
]

MOST_AMOUNT = 1_000_000_000
_MOST_SLOTS = 10_000  # a row each
_MOST_RESOURCES = 20
_LONGEST_REFILL = 10 * 366 * 86_400

AskedConcurrency: TypeAlias = "str | tuple[str, int] | Concurrency"
"""A key with one slot, a key and its slots, or a `Concurrency`."""

AskedRate: TypeAlias = "tuple[str, float] | tuple[str, float, int] | Rate"
"""A key, its rate a second and its burst (default 1), or a `Rate`."""


def limit_changes(base: Options, name: str, value: Any) -> dict[str, Any]:
    """The fields of `Options` that change when `concurrency`, `rate` or `resources` is asked for.

    Raises:
        ConfigurationError: a value that cannot be, with what would be right.
    """
    if name == "resources":
        return {"resources": _resources(value)}
    computed = tuple(entry for entry in base.computed if entry[0] != name)
    if callable(value):
        return {name: None, "computed": (*computed, (name, value))}
    return {name: _constant(name, value), "computed": computed}


def resolve(options: Options, handler: Callable[..., Any], kind: str, arguments: Mapping[str, Any]) -> Options:
    """The options of one job: what is a function of its arguments is worked out.

    Args:
        options: with `computed`.
        handler: whose defaults stand for arguments that were not given.
        kind: of the job, for messages.
        arguments: checked, by name.

    Raises:
        ConfigurationError: a function that asks for what the handler does not take, or returns what cannot be.
    """
    changes: dict[str, Any] = {"computed": ()}
    for name, function in options.computed:
        value = function(**_chosen(name, function, handler, kind, arguments))
        try:
            changes[name] = _constant(name, value)
        except ConfigurationError as error:
            raise ConfigurationError(f"The {name} function of {kind} returned {value!r}: {error}") from None
    return replace(options, **changes)


def check_computed(options: Options, handler: Callable[..., Any], kind: str) -> None:
    """Find at registration what would fail at the first job.

    Raises:
        ConfigurationError: a function with a parameter that the handler does not take.
    """
    for name, function in options.computed:
        known = _parameters(handler)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            continue
        for parameter in _parameters(function).values():
            is_needed = parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty
            if is_needed and parameter.name not in known:
                raise _unknown(name, kind, parameter.name)


def _chosen(
    name: str, function: Callable[..., Any], handler: Callable[..., Any], kind: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    taken = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return dict(arguments)
    known = _parameters(handler)
    chosen = {}
    for parameter in taken.values():
        default = known[parameter.name].default if parameter.name in known else parameter.empty
        if parameter.name in arguments:
            chosen[parameter.name] = arguments[parameter.name]
        elif default is not parameter.empty:
            chosen[parameter.name] = default
        elif parameter.default is parameter.empty:
            raise _unknown(name, kind, parameter.name)
    return chosen


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _unknown(name: str, kind: str, parameter: str) -> ConfigurationError:
    return ConfigurationError(
        f"The {name} function of {kind} takes {parameter!r}, but its job has no such argument. Name its parameters "
        "like the handler's arguments."
    )


def _constant(name: str, value: Any) -> Concurrency | Rate | None:
    if value is None:
        return None
    return _concurrency(value) if name == "concurrency" else _rate(value)


def _concurrency(value: Any) -> Concurrency:
    match value:
        case str():
            found = Concurrency(value)
        case (key, slots):
            found = Concurrency(key, slots)
        case Concurrency():
            found = value
        case _:
            raise ConfigurationError(
                "concurrency is a key, (key, slots), a fencepost.Concurrency, or a function that returns one; "
                f"not {value!r}"
            )
    check_text(found.key, "a concurrency key", KEY_CHARS)
    if found.key.startswith(OWN_KEY_PREFIX):
        raise ConfigurationError(
            f"The concurrency key {found.key!r} would be a schedule's own: give the job, and the schedule (key=), one "
            f"that does not begin with {OWN_KEY_PREFIX!r}"
        )
    check_whole(found.slots, "slots", 1, _MOST_SLOTS)
    return found


def _rate(value: Any) -> Rate:
    match value:
        case (key, per_second):
            found = Rate(key, per_second)
        case (key, per_second, burst):
            found = Rate(key, per_second, burst)
        case Rate():
            found = value
        case _:
            raise ConfigurationError(
                f"rate is (key, per_second, burst), a fencepost.Rate, or a function that returns one; not {value!r}"
            )
    check_text(found.key, "a rate's key", KEY_CHARS)
    per_second = check_rate(found.per_second)
    return Rate(found.key, per_second, check_burst(found.burst, per_second))


def _resources(value: Any) -> tuple[tuple[str, int], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"resources is a dict of names and amounts, {{'gpu': 1}}; not {value!r}")
    if len(value) > _MOST_RESOURCES:
        raise ConfigurationError(f"a job needs at most {_MOST_RESOURCES} resources, not {len(value)}")
    for name, amount in value.items():
        check_text(name, "a resource's name", KEY_CHARS)
        check_whole(amount, f"the amount of {name!r}", 1, MOST_AMOUNT)
    return tuple(sorted(value.items()))


def check_text(value: object, what: str, most: int) -> str:
    """A text (of a key, a name) that every database stores unchanged.

    Raises:
        ConfigurationError: empty, too long, or with what cannot be stored.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} is a non-empty string, not {value!r}")
    if len(value) > most:
        raise ConfigurationError(f"{what} has at most {most} characters, this one has {len(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigurationError(f"{what} has no NUL and no lone surrogates: {value!r} has")
    return value


def check_whole(value: object, what: str, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        ConfigurationError: anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(f"{what} is a whole number from {least} to {most:,}, not {value!r}")
    return value


def check_rate(value: object) -> float:
    """Tokens a second.

    Raises:
        ConfigurationError: not above 0, or beyond 1,000,000.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 < value <= MOST_PER_SECOND:  # type: ignore[operator]
        raise ConfigurationError(
            f"a rate is a number of tokens a second, above 0, at most {MOST_PER_SECOND:,}; not {value!r}"
        )
    return float(value)  # type: ignore[arg-type]


def check_burst(value: object, per_second: float) -> int:
    """How many tokens a bucket holds.

    Raises:
        ConfigurationError: less than 1, or so many that it would take over 10 years to fill.
    """
    burst = check_whole(value, "burst", 1, MOST_BURST)
    if burst / per_second > _LONGEST_REFILL:
        raise ConfigurationError(f"a burst of {burst:,} at {per_second:g} a second would take over 10 years to fill")
    return burst
