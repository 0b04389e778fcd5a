"""`Retention`: for how long, or how many, final jobs are kept. Plain data, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from fencepost.errors import ConfigurationError
from fencepost.job import FINAL_STATES, Micros, State
from fencepost.timing import micros

__all__ = ["EVERY_QUEUE", "Retention", "Rule", "build_rules"]

EVERY_QUEUE = "*"
"""Stands for all queues that are not named."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What goes of the final jobs of one queue and state: older ones than `age`, and all but the newest `keep`."""

    age: Micros | None = None
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long final jobs are kept, by state: `App(url, retention=Retention(succeeded=timedelta(days=7)))`.

    Args:
        succeeded, failed, cancelled, skipped: seconds or timedelta after their end; None (default): for ever.
        keep: how many of each state stay at most, the newest: one number for all states, or one a state
            ({"succeeded": 10_000}); None (default): any number. What is too old goes all the same.

    Raises:
        ConfigurationError: a value that cannot be, with what would be right.
    """

    succeeded: float | timedelta | None = None
    failed: float | timedelta | None = None
    cancelled: float | timedelta | None = None
    skipped: float | timedelta | None = None
    keep: int | Mapping[str, int] | None = None
    rules: Mapping[State, Rule] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        final = sorted(FINAL_STATES)
        keep = {} if self.keep is None else self.keep
        counts = dict(keep) if isinstance(keep, Mapping) else dict.fromkeys(final, keep)
        for word, number in counts.items():
            if word not in final:
                raise ConfigurationError(f"keep is by final state ({', '.join(final)}), not {word!r}")
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise ConfigurationError(f"keep is a whole number of jobs from 0 on, not {number!r}")
        rules = {}
        for state in final:
            age = getattr(self, state)
            count = counts.get(state)
            if age is not None or count is not None:
                rules[state] = Rule(None if age is None else micros(age, state), count)
        object.__setattr__(self, "rules", rules)


def build_rules(retention: Retention | Mapping[str, Retention]) -> dict[str, Mapping[State, Rule]]:
    """The rules by queue, of one `Retention` for all of them or of one a queue (`"*"`: all that are not named).

    Raises:
        ConfigurationError: neither.
    """
    named = {EVERY_QUEUE: retention} if isinstance(retention, Retention) else retention
    if not isinstance(named, Mapping) or not all(isinstance(each, Retention) for each in named.values()):
        raise ConfigurationError(
            'retention is a fencepost.Retention, or one a queue: {"mail": Retention(...), "*": Retention(...)}; '
            f"not {retention!r}"
        )
    return {queue: each.rules for queue, each in named.items()}
