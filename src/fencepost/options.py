"""`using(...)`: what an enqueue may ask for, checked once and turned into the store's units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

from fencepost.errors import ConfigurationError
from fencepost.ids import parse_id
from fencepost.job import Backoff, BackoffSpec, Dependency, Hold, OnConflict, OnMiss, Options, Priority, When
from fencepost.labels import check_labels, encode_labels
from fencepost.limit_options import AskedConcurrency, AskedRate, check_text, limit_changes
from fencepost.store.tables import KEY_CHARS, KIND_CHARS, NAME_CHARS, QUEUE_CHARS
from fencepost.timing import instant_micros, micros, seconds

__all__ = ["AfterOne", "Asked", "AskedAfter", "AskedWhen", "build_options", "check_name", "dependency_on"]

_MOST_ATTEMPTS = 1_000_000
_MOST_TAGS = 50
_MOST_AFTER = 10_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

Word = TypeVar("Word", bound=StrEnum)


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class _HasKind(Protocol):
    @property
    def kind(self) -> str: ...


AfterOne: TypeAlias = "str | _HasId | tuple[str | _HasKind, str]"
"""A job that another waits for: an id, a handle or a built job, or (kind or job function, key)."""

AskedAfter: TypeAlias = "AfterOne | Iterable[AfterOne]"
AskedWhen: TypeAlias = When | Literal["success", "failure", "completion"]


class Asked(TypedDict, total=False):
    """The keywords of `using(...)` and, as defaults, of `@app.job(...)`."""

    queue: str
    priority: Priority | Literal["critical", "high", "normal", "low"]
    delay: float | timedelta | None
    run_at: datetime | None
    start_at: datetime | None
    tolerance: float | timedelta
    on_miss: OnMiss | Literal["run_late", "skip", "fail"]
    deadline: datetime | None
    duration_hint: float | timedelta
    timeout: float | timedelta | None
    max_attempts: int
    backoff: BackoffSpec
    key: str | None
    hold: Hold | Literal["live", "queued"]
    on_conflict: OnConflict | Literal["keep", "replace"]
    keep_result: bool
    tags: Sequence[str]
    tenant: str | None
    concurrency: AskedConcurrency | Callable[..., AskedConcurrency | None] | None
    rate: AskedRate | Callable[..., AskedRate | None] | None
    resources: Mapping[str, int] | None
    labels: Mapping[str, str] | None
    after: AskedAfter | None
    when: AskedWhen


def build_options(base: Options, **asked: Unpack[Asked]) -> Options:
    """`base` with what was asked for.

    Raises:
        ConfigurationError: a value that cannot be, with what would be right.
    """
    changes: dict[str, Any] = {}
    for name, value in asked.items():
        match name:
            case "queue":
                changes["queue"] = check_name(value, "queue", QUEUE_CHARS)
            case "priority":
                changes["priority"] = _word(Priority, value, name)
            case "hold":
                changes["hold"] = _word(Hold, value, name)
            case "on_conflict":
                changes["on_conflict"] = _word(OnConflict, value, name)
            case "delay":
                changes |= {"delay": None if value is None else micros(value, name), "run_at": None}  # type: ignore[arg-type]
            case "run_at":
                changes |= {"run_at": None if value is None else instant_micros(value, name), "delay": None}  # type: ignore[arg-type]
            case "start_at":
                changes["start_at"] = None if value is None else instant_micros(value, name)  # type: ignore[arg-type]
            case "tolerance":
                changes["tolerance"] = micros(value, name)  # type: ignore[arg-type]
            case "on_miss":
                changes["on_miss"] = _word(OnMiss, value, name)
            case "deadline":
                changes["deadline"] = None if value is None else instant_micros(value, name)  # type: ignore[arg-type]
            case "duration_hint":
                changes["duration_hint"] = micros(value, name)  # type: ignore[arg-type]
            case "timeout":
                changes["timeout_seconds"] = None if value is None else _timeout(value)
            case "max_attempts":
                changes["max_attempts"] = _max_attempts(value)
            case "backoff":
                changes["backoff"] = _backoff(value)
            case "key":
                changes["key"] = None if value is None else check_text(value, name, KEY_CHARS)
            case "tenant":
                changes["tenant"] = None if value is None else check_name(value, name, NAME_CHARS)
            case "tags":
                changes["tags"] = _tags(value)
            case "concurrency" | "rate" | "resources":
                changes |= limit_changes(replace(base, computed=changes.get("computed", base.computed)), name, value)
            case "labels":
                changes["labels"] = None if value is None else encode_labels(check_labels(value))
            case "after":
                changes["after"] = _after(value, _word(When, asked.get("when", When.SUCCESS), "when"))
            case "when":
                if "after" not in asked:
                    changes["after"] = _after_when(base, _word(When, value, name))
            case "keep_result":
                changes["keep_result"] = bool(value)
            case _:
                known = ", ".join(sorted(Asked.__annotations__))
                raise ConfigurationError(f"There is no option {name!r}. There are: {known}")
    if asked.get("delay") is not None and asked.get("run_at") is not None:
        raise ConfigurationError("delay and run_at both say when: give one of them")
    built = replace(base, **changes)
    if built.start_at is not None and (built.delay is not None or built.run_at is not None):
        raise ConfigurationError("start_at says when, exactly: it goes with neither delay nor run_at")
    if built.start_at is None and ("tolerance" in asked or "on_miss" in asked):
        raise ConfigurationError("tolerance and on_miss say what a late start means: give them with start_at")
    if built.after and built.on_conflict is OnConflict.REPLACE:
        raise ConfigurationError(
            "after goes with on_conflict='keep' alone: a job that is there already waits for what it was enqueued with"
        )
    return built


def dependency_on(value: object, when: When, name: str | None = None) -> Dependency:
    """One job that another waits for, from any way of naming it.

    Raises:
        ConfigurationError: a value that names none.
    """
    if isinstance(value, tuple) and len(value) == 2:
        kind = getattr(value[0], "kind", value[0])
        if isinstance(kind, str) and isinstance(value[1], str):
            return Dependency(None, when, check_name(kind, "kind"), check_text(value[1], "key", KEY_CHARS), name)
    job_id = parse_id(value if isinstance(value, str) else getattr(value, "id", None))
    if job_id is None:
        raise ConfigurationError(
            f"after takes a handle, a built job, an id, (kind, key), or a list of these; not {value!r}"
        )
    return Dependency(job_id, when, name=name)


def check_name(value: object, what: str, most: int = KIND_CHARS) -> str:
    """A name (of a kind, a queue, a tenant) that every database stores and compares alike.

    Raises:
        ConfigurationError: empty, too long, with control characters, or with spaces at its ends.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} is a non-empty string, not {value!r}")
    if len(value) > most:
        raise ConfigurationError(f"{what} has at most {most} characters, {value[:40]!r}... has {len(value)}")
    if _UNPRINTABLE.search(value) or value != value.strip():
        raise ConfigurationError(f"{what} has no control characters and no spaces at its ends: {value!r} has")
    return value


def _word(words: type[Word], value: object, what: str) -> Word:
    try:
        return words(str(value))
    except ValueError:
        raise ConfigurationError(f"{what} is one of {', '.join(words)}; not {value!r}") from None


def _timeout(value: Any) -> float:
    limit = seconds(value, "timeout")
    if limit == 0:
        raise ConfigurationError("timeout is more than 0 seconds; None means no timeout")
    return limit


def _max_attempts(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_ATTEMPTS:
        raise ConfigurationError(f"max_attempts is a whole number from 1 to {_MOST_ATTEMPTS:,}, not {value!r}")
    return value


def _backoff(value: object) -> BackoffSpec:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, (list, tuple)) and value:
        return tuple(seconds(item, "backoff") for item in value)
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        return seconds(value, "backoff")
    raise ConfigurationError(f"backoff is seconds, a list of seconds, or a fencepost.Backoff; not {value!r}")


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        raise ConfigurationError(f"tags is a list of strings, not {value!r}")
    if len(value) > _MOST_TAGS:
        raise ConfigurationError(f"a job has at most {_MOST_TAGS} tags, not {len(value)}")
    return tuple(check_name(tag, "a tag", 100) for tag in value)


def _after(value: Any, when: When) -> tuple[Dependency, ...]:
    if value is None:
        return ()
    is_one = isinstance(value, (str, tuple)) or hasattr(value, "id") or not isinstance(value, Iterable)
    found = dict.fromkeys(dependency_on(each, when) for each in ([value] if is_one else value))
    if len(found) > _MOST_AFTER:
        raise ConfigurationError(f"a job waits for at most {_MOST_AFTER:,} others, not {len(found):,}")
    return tuple(found)


def _after_when(base: Options, when: When) -> tuple[Dependency, ...]:
    if not base.after:
        raise ConfigurationError("when says what is asked of the jobs in after: give it with after")
    return tuple(replace(dependency, when=when) for dependency in base.after)
